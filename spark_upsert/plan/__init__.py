"""The algebra of plans: nodes, aggregates, expressions in SQL, casts and functions.

`nodes` is a plan as values, of a task, a view or a flow; the text of a view's stands in
checkpoints. `kernels` decide which keys are equal. `sql` reads the text of an expression,
`expressions` binds it to columns, `functions` and `casts` compute it on whole columns, as Spark
does with ANSI mode.
"""
