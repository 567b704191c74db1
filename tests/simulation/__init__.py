"""Whole lives of a table under faults, each from one seed."""
