"""Views: what a plan makes of tables, kept up to date by their changes alone.

Each node of a plan becomes a relation (`relation`): its rows at a position, and what changed
between two positions. Scans find rows by key, by index or by reading; `groups` are kept in a table
of sums.
"""
