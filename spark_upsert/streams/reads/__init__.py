"""Reads in tasks: splits, their rows, columns and explanations.

A split contains everything its task needs: a task reads no log. `read_split` yields its rows,
`packing` distributes splits among tasks, and `ordered` is a piece of an exact order.
"""
