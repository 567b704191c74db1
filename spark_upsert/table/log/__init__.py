"""The log: what a version says, and the order in which versions follow each other.

A commit is one object that is put if it is absent. `log` writes them, `read` finds where they end,
and what it found is a `look`, which answers for all versions up to there; `stored` are the records
themselves. `manifest` is what a table consists of at a version, `fold` makes one of commits. What a
table's properties may say stands beside (`properties`, `caps`, `indexed`, `tombstones`).
"""
