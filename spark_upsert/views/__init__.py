"""Views: a plan's result over tables, maintained incrementally from their changes (docs/adr/0035).

Each plan node becomes a relation (`relation`): its rows at a position, and its changes between two
positions. `plan_builder` is the user's interface, `view` binds a plan to its tables, and
`materialized` stores a grouped view's sums in a table.
"""
