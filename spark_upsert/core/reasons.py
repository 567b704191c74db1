"""Reasons for undecodable values, and the rounding rule of conversions."""

from __future__ import annotations

from enum import Enum
from typing import Any

SHOWN_CHARS = 60
"""Bound of the text that a reason quotes."""


class Undecodable(Exception):
    """A value is not what was declared; never leaves the module that asked for it."""


def shown(text: str) -> str:
    """Return the beginning of a text, so that a reason has room for what is wrong with it."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


class QuotedValue:
    """A value of any type as an error quotes it: bounded, also if Python does not print it."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        try:
            return shown(repr(self._value))
        except ValueError:  # Python prints no integer of more than 4300 digits.
            return f"a value of type {type(self._value).__name__}"


class Rounding(Enum):
    """The rule for digits behind the last that a type keeps."""

    EXACT = "exact"
    """A number that has such digits does not fit."""
    HALF_UP = "half_up"
    """Away from zero from a half on: SQL's casts to decimals, and ROUND."""
    DOWN = "down"
    """Towards zero: SQL's casts to whole numbers."""
    CEILING = "ceiling"
    FLOOR = "floor"
