"""Values and rules of tables, keys and epochs, which know no storage.

`schema`, `words` and `hashing` say what a key is and where its hash lies; `precedence` says which
of two commands of a key wins, `engines` what becomes of the other one; `orders` are the exact
orders of a merge. Helpers that every room may use stand here, too: durations, calls that threads
share, work in several threads, the text of Arrow's types.
"""
