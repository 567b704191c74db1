"""A growing set of files as an input."""
