"""The kernel: a table, its log, its runs, what is written, and what changed.

`table.Table` is the door: Arrow in, Arrow out. The folders below it are ordered by what they know:
`run` (a file), `log` (versions), `entries` (a table at one version), `compaction` and `retention`,
`changes`, `write`, `index`. The kernel knows no payload, no option and no stream.
"""
