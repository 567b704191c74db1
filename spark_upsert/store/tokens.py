"""Names that were never used before, for data files and for the versions of a log."""

from __future__ import annotations

import uuid


def new_token() -> str:
    """Return 128 random bits, as digits."""
    return uuid.uuid4().hex
