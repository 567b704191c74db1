"""Payloads: bytes with a declared schema, decoded into columns, with bad ones told apart exactly."""
