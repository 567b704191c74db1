"""Plans as values: nodes, aggregates, SQL expressions, casts and functions.

`nodes` has the plan of a task, a view or a flow, `json` its text. `sql` parses an expression,
`expressions` binds it, `functions` and `casts` compute it. `join_keys` decides key equality.
"""
