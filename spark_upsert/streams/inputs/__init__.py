"""Inputs of a stream: tables, views, groups and discovered tables, each with positions and steps.

`protocol` defines an input: it returns the backlog after a position and divides it into splits.
"""
