"""One run: an immutable file with entries sorted by key hash, verified block by block.

`file` writes it, opens it and searches its hashes, `format` parses its bytes, `rows` reads entries
by position, `remote` reads parts of it from an object store.
"""
