"""Hints of expressions: each is a text that is refused, and the text that its message tells."""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.task import bind
from tests.hints.hint import Told, follows

ROWS = pa.record_batch({"id": [1, 3], "note": ["a", None], "now": [2, 2]})


@follows("task.sql:not_of_one_row")
def _(told: Told) -> None:
    with told:
        bind("id > now()", ROWS.schema)
    told("a column of this name is read without brackets")
    told("store such values in a column, and read that")
    assert bind("id > now", ROWS.schema)(ROWS).to_pylist() == [False, True]
