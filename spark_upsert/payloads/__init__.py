"""Payloads: bytes with a declared schema, decoded into columns; bad ones are told apart exactly."""
