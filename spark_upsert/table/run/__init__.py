"""One run: an immutable file with entries sorted by key hash, verified block by block.

`file` writes and opens it, `format` parses its bytes, `rows` reads entries by position, `search`
finds hashes, `remote` reads parts of it from an object store.
"""
