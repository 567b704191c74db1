"""The options that users give, read and checked.

`reference` declares them, and docs/options.md is made from it; `lives` says what a change of each
means between two lives of a query.
"""
