"""Reads in tasks: splits, their rows, columns and explanations.

A split contains all that its task needs, so that a task reads no log. `read_split` yields its rows,
`packing` distributes splits among tasks, and `ordered` is a piece of an exact order.
"""
