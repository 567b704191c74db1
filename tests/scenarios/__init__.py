"""Conformance cases as text that can be read without the code."""
