"""All cases of golden data."""

from __future__ import annotations

from tests.golden import files, kept, kept_rows, python, routed, streams, tables, texts

CASES = (
    files.CASE,
    kept.CASE,
    kept_rows.CASE,
    python.CASE,
    routed.CASE,
    streams.CASE,
    tables.CASE,
    texts.CASE,
)
