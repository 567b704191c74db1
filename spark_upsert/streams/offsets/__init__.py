"""Offsets: where a stream stands in its inputs, as text of bounded size.

Positions of very many inputs lie in bases beside the checkpoint, and an offset says what differs.
"""
