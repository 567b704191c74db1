"""The log: what a version says, and the order in which versions follow each other.

A commit is one object that is put if it is absent. `log` writes and reads them, `manifest` is what
a table consists of at a version, `fold` makes one of the other. What a table's properties may say
stands beside (`properties`, `caps`, `indexed`, `tombstones`).
"""
