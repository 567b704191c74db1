"""Entries: how those of one key become one, where a key is found, and a table at one version.

`mechanism` asks the engine: `resolve` chooses one entry of a key, `fold` adds them up. `lookup`
finds the entries of many keys, `snapshot` is the table at a version, `check` verifies all of it.
"""
