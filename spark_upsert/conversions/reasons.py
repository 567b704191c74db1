"""Why a value is not what was declared."""

from __future__ import annotations

SHOWN_CHARS = 60
"""Bound of the text that a reason quotes."""


class Undecodable(Exception):
    """A value is not what was declared; never leaves the module that asked for it."""


def shown(text: str) -> str:
    """Return the beginning of a text, so that a reason has room for what is wrong with it."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
