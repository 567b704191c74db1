"""Hints that are followed: a mistake, then literally the advice of its message, and it works."""
