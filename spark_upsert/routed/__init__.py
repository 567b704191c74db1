"""One stream into many tables: each row goes to the table that its own values name.

`routes` finds the table of each row, `stage` and `commit` write all tables of a batch as one, and
`group` reads them at one whole batch. What a table cannot take is parked beside it (`park`).
"""
