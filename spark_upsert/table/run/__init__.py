"""One run: the immutable file, how it is laid out, checked and read.

A run holds entries sorted by the hash of their key, in blocks that are verified when they are first
touched. `file` opens and writes it, `rows` reads entries by position, `layout` and `frame` are the
bytes.
"""
