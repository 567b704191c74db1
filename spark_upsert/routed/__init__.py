"""Routed writes: one stream into many tables, by the values of each row (docs/adr/0043).

`router` finds a row's table, `stage` and `commit` write a batch, `group` records complete batches,
and `dead_letter` stores rows of failing tables until `replay` applies them.
"""
