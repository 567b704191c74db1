"""The changelog: retractions and insertions of epochs, computed at read time (docs/adr/0008).

`epoch_ranges` divides epochs into stretches, `read` opens their files, `changes` computes old and
new entry pairs, and `render` makes the reader's rows. `history` adds validity intervals.
"""
