"""Indexes: tables proposing the keys of rows with a value in one column.

An index may lag its table and may propose too many keys; a look-up in the table decides
(docs/adr/0036).
"""
