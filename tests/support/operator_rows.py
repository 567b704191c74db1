"""Small random rows with many collisions, and what operators make of them in plain Python."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_upsert.plan.nodes import JoinType
from spark_upsert.task.operator import Signal

Row = dict[str, Any]

_NOON = dt.datetime(1969, 12, 31, 12)

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, -1, 0, 1, 2, 3],
    pa.float64(): [None, float("nan"), -0.0, 0.0, 1.5, float("-inf")],
    pa.string(): [None, "", "a", "a\0", "b" * 9, "b" * 8 + "a"],
    pa.decimal128(20, 2): [None, Decimal("-1.00"), Decimal("0.00"), Decimal("1.50")],
    pa.bool_(): [None, False, True],
    pa.uint64(): [None, 0, 1, 2**64 - 1],
    pa.large_binary(): [None, b"", b"a", b"a\0"],
    pa.timestamp("us"): [None, _NOON, _NOON + dt.timedelta(microseconds=1)],
    pa.duration("s"): [None, dt.timedelta(seconds=-1), dt.timedelta(0)],
    pa.date32(): [None, dt.date(1969, 12, 31), dt.date(1970, 1, 1)],
}
"""The values that a column may have, by its type."""


def place_of(value: Any) -> tuple[int, Any]:
    """Return where a value stands: null first, NaN last; equal values have one place."""
    if value is None:
        return 0, 0
    if isinstance(value, float) and math.isnan(value):
        return 2, 0
    return 1, value.encode() if isinstance(value, str) else value


def key_of(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the key of a row so that equal keys are equal."""
    return tuple(place_of(row[name]) for name in names)


def some_rows(
    random_: random.Random, schema: pa.Schema, count_max: int, first: int = 0
) -> list[Row]:
    """Return rows with the values of `VALUES`; integers named ``id...`` count up."""
    return [
        {
            field.name: first + index
            if field.name.startswith("id")
            else random_.choice(VALUES[field.type])
            for field in schema
        }
        for index in range(random_.randint(0, count_max))
    ]


def cut(random_: random.Random, schema: pa.Schema, rows: Sequence[Row]) -> list[pa.RecordBatch]:
    """Return rows as batches of random sizes, some of them slices of larger ones."""
    whole = pa.RecordBatch.from_pylist([*rows[:1], *rows], schema=schema).slice(len(rows[:1]))
    batches = []
    begin = 0
    while begin < len(rows):
        count = random_.choice([1, 2, 3, 7])
        batches.append(whole.slice(begin, count))
        begin += count
    return batches


def with_waits(
    random_: random.Random, batches: Sequence[pa.RecordBatch]
) -> list[pa.RecordBatch | Signal]:
    """Put waits between batches."""

    def items() -> Iterator[pa.RecordBatch | Signal]:
        for batch in batches:
            if random_.random() < 0.3:
                yield Signal.WAIT
            yield batch

    return list(items())


def joined_rows(
    kind: JoinType,
    left: Sequence[Row],
    right: Sequence[Row],
    keys: Sequence[tuple[str, str]],
    right_names: Sequence[str] = (),
    left_names: Sequence[str] = (),
) -> list[Row]:
    """Return the rows of a join: each left row is held against each right row."""

    def matches(one: Row, other: Row) -> bool:
        return all(
            one[a] is not None and other[b] is not None and place_of(one[a]) == place_of(other[b])
            for a, b in keys
        )

    found: list[Row] = []
    for one in left:
        others = [other for other in right if matches(one, other)]
        if kind is JoinType.SEMI or kind is JoinType.ANTI:
            found += [one] if bool(others) is (kind is JoinType.SEMI) else []
        else:
            found += [one | other for other in others]
            if not others and kind in (JoinType.LEFT, JoinType.FULL):
                found.append(one | dict.fromkeys(right_names))
    if kind in (JoinType.RIGHT, JoinType.FULL):
        found += [
            dict.fromkeys(left_names) | other
            for other in right
            if not any(matches(one, other) for one in left)
        ]
    return found


def alike(rows: Sequence[Row]) -> list[str]:
    """Return rows so that equal ones in any order are equal."""
    return sorted(repr(sorted(row.items())) for row in rows)
