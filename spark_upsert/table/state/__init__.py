"""Table state: entry resolution per key, key look-ups, and table snapshots.

`mechanism` selects by merge engine: `resolve` chooses one entry per key, `fold` aggregates them.
`lookup` finds the entries for many keys, `snapshot` is the table at a version, `check` verifies
the complete table.
"""
