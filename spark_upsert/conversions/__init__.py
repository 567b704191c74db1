"""Conversions of what came from outside: exact or rounded as asked, and never unchecked."""

from spark_upsert.conversions.door import (
    UnfitError,
    array_of,
    convert,
    range_of,
    readable,
    rounded,
    try_convert,
)
from spark_upsert.conversions.rounding import Rounding

__all__ = [
    "Rounding",
    "UnfitError",
    "array_of",
    "convert",
    "range_of",
    "readable",
    "rounded",
    "try_convert",
]
