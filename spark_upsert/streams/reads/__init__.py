"""Reads: splits, what one task does with its own, columns, and explanations.

A split carries all that its task needs, so that a task asks no log. `serve` yields its rows,
`packs`
shares splits out among tasks, and `passage` is a piece of an exact order.
"""
