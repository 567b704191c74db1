"""Table state: one entry per key, key look-ups and snapshots at one version.

`reduce` selects by merge engine: `resolve` chooses an entry, `fold` aggregates entries. `lookup`
finds keys, `snapshot` reads a version, `check` verifies a table.
"""
