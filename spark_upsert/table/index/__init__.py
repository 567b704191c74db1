"""Indexes: tables of ours that propose the keys of rows with a value in some column.

An index may lag behind its table and may name keys in vain; the table itself has the last word.
"""
