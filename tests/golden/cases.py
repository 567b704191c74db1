"""All cases of golden data."""

from __future__ import annotations

from tests.golden import streams, tables

CASES = (streams.CASE, tables.CASE)
