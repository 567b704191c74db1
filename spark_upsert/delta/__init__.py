"""The mirror: a Delta table that shows one version of a table and follows it, change by change.

Runs are sorted by hash, so that they are an index from key to (file, row): a change becomes a
deletion vector instead of a MERGE. A *twin* is a Parquet file with the entries of one run in the
run's order; a *vector* says which of its rows are dead. What is Delta's stands in
`delta.log`, `delta.actions` and `delta.types`; the rest would serve another format too.

Nothing that reads rows or commits imports this room.
"""
