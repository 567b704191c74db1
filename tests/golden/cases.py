"""All cases of golden data."""

from __future__ import annotations

from tests.golden import kept, streams, tables, texts

CASES = (kept.CASE, streams.CASE, tables.CASE, texts.CASE)
