"""Offsets: the positions of a stream in its inputs, as text of bounded size.

Positions of many inputs are in base objects next to the checkpoint (docs/adr/0021).
"""
