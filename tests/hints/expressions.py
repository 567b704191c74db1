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


def value_of(text: str) -> object:
    """Return the value of an expression without columns."""
    return bind(text, ROWS.schema)(ROWS)[0].as_py()


@follows("task.sql:_Parser._number")
def _(told: Told) -> None:
    with told:
        value_of("1.5 < 1" + "0" * 40)
    told("write it as a DOUBLE, with an exponent: 1e40")
    assert value_of("1.5 < 1e40") is True


@follows("task.sql:_Parser._double")
def _(told: Told) -> None:
    with told:
        value_of("1.5 < 1e400")
    told("write CAST('Infinity' AS DOUBLE) for what is above all numbers")
    assert value_of("1.5 < CAST('Infinity' AS DOUBLE)") is True


@follows("task.sql:_Parser._moment")
def _(told: Told) -> None:
    with told:
        value_of("DATE '31.1.2026'")
    told("write DATE '2026-01-31'")
    assert value_of("DATE '2026-01-31' > DATE '2026-01-30'") is True
    with told:
        value_of("TIMESTAMP '2026-01-31 noon'")
    told("TIMESTAMP '2026-01-31 12:00:00', which is UTC")
    assert value_of("TIMESTAMP '2026-01-31 12:00:00' < TIMESTAMP '2026-01-31 12:00:00-01:00'")
