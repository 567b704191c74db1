"""Golden data: tables, offsets and plan texts as they were written once, which later code reads.

``data/<case>/before.zip`` is what was written. ``expected.json`` beside it says what is seen in it,
and in what later code makes of it: one more epoch, one more batch. `cases` says how each
was made, and `make` makes it anew:

    .venv/bin/python -m tests.golden.make [case ...]

That is for a case that is new. A case that is made anew holds no more than that the code of today
reads what it writes itself.
"""
