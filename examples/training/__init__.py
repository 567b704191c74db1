"""Train a small model on the rows of a table, with exact resume."""
