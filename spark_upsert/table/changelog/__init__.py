"""Changes: the effect of epochs, as retractions and insertions.

`stretches` cuts epochs into what one pass computes, `changes` computes it, `render` makes of it
what a reader sees, by the options of `modes`; `read` opens the files. `new_values`
is for readers that cannot take a row back.
"""
