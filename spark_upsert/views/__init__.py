"""Views: a plan's result over tables, maintained incrementally from their changes.

Each plan node becomes a relation (`relation`): its rows at a position, and the changes
between two positions. Scans find rows by key, by index or by a full read; `groups` are materialized
in a table of sums.
"""
