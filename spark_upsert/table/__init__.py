"""The table kernel: log, runs, writes, changes and upkeep of one table.

`table.Table` is the entry point: Arrow in, Arrow out. Lower folders first: `run` (one file), `log`
(versions), `state` (entries at a version), `retention`, `compaction`, `changelog`, `write`,
`index`. The kernel imports no payload format, no Spark option and no stream.
"""
