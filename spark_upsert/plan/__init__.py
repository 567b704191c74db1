"""The algebra of plans: nodes, aggregates, expressions in SQL, casts and functions.

`nodes` is the plan of a view as values; its text stands in checkpoints. `sql` reads the text of an
expression, `expressions` binds it to columns, `functions` and `casts` compute it on whole columns,
as Spark does with ANSI mode.
"""
