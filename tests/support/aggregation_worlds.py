"""Aggregations of small random rows, and what they are in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa

from spark_upsert.errors import DataError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import ArrowScan, Group
from spark_upsert.task.aggregation import aggregation
from tests.support.chains import Chain, rows_of
from tests.support.operator_rows import VALUES, Row, cut, key_of, place_of

ORDERED = (pa.string(), pa.large_binary(), pa.duration("s"), pa.date32(), pa.bool_(), pa.float64())
"""Types of which there are extremes, and no sums here."""

EDGES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, 2**62, -(2**62), 1, -1],
    pa.uint8(): [None, 0, 255],
    pa.decimal128(28, 1): [None, Decimal("9" * 27 + ".9"), Decimal("-" + "9" * 27 + ".9")],
    pa.float32(): [None, float("nan"), -0.0, 0.0, 2.5, float("inf")],
    **{type_: VALUES[type_] for type_ in ORDERED},
}
"""The values of the columns that are aggregated."""

FUNCTIONS = {
    pa.int64(): ["count", "sum", "min", "max", "avg"],
    pa.uint8(): ["count", "sum", "min", "max", "avg"],
    pa.decimal128(28, 1): ["count", "sum", "min", "max", "avg"],
    pa.float32(): ["count", "min", "max"],
    **{type_: ["count", "min", "max"] for type_ in ORDERED},
}


class World:
    """An aggregation, and three sets of splits of random rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        keys = self.random.choices(list(VALUES), k=self.random.choice([0, 1, 1, 2]))
        values = self.random.choices(list(EDGES), k=self.random.choice([1, 2]))
        self.keys = tuple(f"k{index}" for index in range(len(keys)))
        columns = {f"v{index}": type_ for index, type_ in enumerate(values)}
        self.schema = pa.schema([*zip(self.keys, keys, strict=True), *columns.items()])
        self.aggregates = tuple(
            Aggregate.of(f"{function} {name}", function, name)
            for name, type_ in columns.items()
            for function in FUNCTIONS[type_]
        )
        self.sets = [self._rows() for _ in range(3)]

    def _rows(self) -> list[Row]:
        choices = {
            field.name: (VALUES if field.name in self.keys else EDGES)[field.type]
            for field in self.schema
        }
        return [
            {name: self.random.choice(values) for name, values in choices.items()}
            for _ in range(self.random.randint(0, 14))
        ]

    def plan(self, *, is_clustered: bool = False, batch_rows: int | None = None) -> Group:
        return Group(
            id="sums",
            input=ArrowScan(id="rows", schema=self.schema),
            keys=self.keys,
            aggregates=self.aggregates,
            is_clustered=is_clustered,
            batch_rows=batch_rows or self.random.choice([1, 2, 100]),
        )

    def clustered(self, rows: Sequence[Row]) -> list[Row]:
        """Put rows of equal keys side by side."""
        return sorted(rows, key=lambda row: key_of(row, self.keys))

    def answers(self, rows: Sequence[Row]) -> list[Row]:
        """Return the row of each group, in the order in which groups first appear."""
        groups: dict[tuple[Any, ...], list[Row]] = {} if self.keys else {(): []}
        for row in rows:
            groups.setdefault(key_of(row, self.keys), []).append(row)
        return [self._answer(members) for members in groups.values()]

    def _answer(self, members: Sequence[Row]) -> Row:
        keys = {name: members[0][name] for name in self.keys}
        return keys | {
            each.name: answer_of(each.kind.value, [row[each.column or ""] for row in members])
            for each in self.aggregates
        }


def comparable(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows so that equal ones are equal; of averages the first digits."""
    return [
        [
            f"{value:.12g}" if name.startswith("avg") and type(value) is float else place_of(value)
            for name, value in row.items()
        ]
        for row in rows
    ]


def answer_of(function: str, values: Sequence[Any]) -> Any:
    """Return an aggregate of values, told slowly."""
    present = [value for value in values if value is not None]
    if function == "count":
        return len(present)
    if not present:
        return None
    match function:
        case "sum":
            with localcontext(prec=80):
                return sum(present)
        case "avg" if isinstance(present[0], Decimal):
            with localcontext(prec=80):
                return (sum(present) / len(present)).quantize(Decimal("1e-5"), "ROUND_HALF_UP")
        case "avg":
            return float(sum(present)) / len(present)
        case "min":
            return min(present, key=place_of)
        case _:
            return max(present, key=place_of)


def overflows(world: World) -> bool:
    """Say whether a sum of 64 bits does not fit."""
    return any(
        not -(2**63) <= (answer[each.name] or 0) < 2**63
        for rows in world.sets
        for answer in world.answers(rows)
        for each in world.aggregates
        if each.kind is AggregateKind.SUM and world.schema.field(each.column).type == pa.int64()
    )


def run(world: World, plan: Group, sets: Sequence[Sequence[Row]]) -> list[list[Row]] | None:
    """Return what comes out of each set and at the end; None if a sum does not fit."""
    chain = Chain([aggregation(plan, world.schema)])
    try:
        given = chain.run([cut(world.random, world.schema, rows) for rows in sets])
    except DataError:
        return None
    assert all(batch.num_rows <= plan.batch_rows for batches in given for batch in batches)
    return [rows_of(batches) for batches in given]
