"""The promises P1 to P6, by name."""
