"""Rounding: the fate of digits that a type has no room for."""

from __future__ import annotations

from enum import Enum


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
