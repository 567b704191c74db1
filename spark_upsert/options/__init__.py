"""The options that users give, read and checked.

Each is declared once, at the field that holds it (`declared`); docs/options.md is made from the
declarations. `lives` has the words for what a change means between two lives of a query.
"""
