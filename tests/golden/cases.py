"""All cases of golden data."""

from __future__ import annotations

from tests.golden import kept, kept_rows, python, routed, streams, tables, texts

CASES = (
    kept.CASE,
    kept_rows.CASE,
    python.CASE,
    routed.CASE,
    streams.CASE,
    tables.CASE,
    tables.LARGE_CASE,
    texts.CASE,
)
