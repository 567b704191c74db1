"""The changelog: retractions and insertions of epochs, computed at read time (docs/adr/0008).

`changes` divides epochs into ranges and computes old and new entry pairs, `read` opens their files,
and `render` makes the reader's rows. `history` adds validity intervals.
"""
