"""All cases of golden data."""

from __future__ import annotations

from tests.golden import tables

CASES = (tables.CASE,)
