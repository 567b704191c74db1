"""Payloads: bytes with a declared schema, decoded into columns; bad ones are told apart exactly.

A decoder takes a column of bytes and returns columns of equal length beside a reason for each
payload that could not be read. Schemas come from an option, a registry or the payload itself, and
are bounded before they are believed (`budgets`).
"""
