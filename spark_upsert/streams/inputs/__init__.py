"""Inputs: tables, views, groups and found tables, each with its positions and steps.

`input` is the protocol. An input says what lies ahead of a position, and makes splits of it.
"""
