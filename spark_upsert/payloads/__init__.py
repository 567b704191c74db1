"""Payload decoders: bytes to columns, by a schema from an option, a registry or the payload itself.

A decoder returns columns of equal length and a reason for each bad payload. Schemas are bounded
before use (`decoder.Parts`).
"""
