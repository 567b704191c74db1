"""A runner for each system: how its own documentation says to apply changes by key."""
