"""All cases of golden data."""

from __future__ import annotations

from tests.golden import files, kept, streams, tables, texts

CASES = (files.CASE, kept.CASE, streams.CASE, tables.CASE, texts.CASE)
