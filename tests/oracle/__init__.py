"""The table against a dictionary."""
