"""Grouped views by brute force: the rows of a base in Python, and what a group of them is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Any

import pyarrow as pa

from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.table.log.manifest import KeptPosition, TableVersion
from spark_upsert.table.table import Table
from spark_upsert.views.grouping import Grouping
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.materialized import MaterializedView
from tests.support.stores import MemoryStore

Row = tuple[Any, ...]


def kept_in_memory(grouping: Grouping) -> MaterializedView:
    """Make a kept table in a store of its own."""
    table = Table(MemoryStore())
    table.ensure(grouping.stored_schema)
    return MaterializedView(table, grouping)


def position(epoch: int) -> str:
    """Return the position of one input at an epoch; nothing before the first."""
    return position_of(O=epoch) if epoch >= 0 else ""


def position_of(snapshot: int | None = None, **inputs: int) -> str:
    """Return the position of some inputs at epochs, each the table that bears its name."""
    places = {
        name: TableVersion(table_id=name, version=epoch, token=f"{name}{epoch}")
        for name, epoch in inputs.items()
    }
    return KeptPosition(at=places, snapshot=snapshot).text


def batch_of(rows: Iterable[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of Python as a batch."""
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=schema)


def pairs_of(old: Mapping[Any, Row], new: Mapping[Any, Row], schema: pa.Schema) -> Pairs:
    """Return the rows of two contents, aligned by key, those that stay the same included."""
    keys = sorted({*old, *new}, key=repr)
    nothing = (None,) * len(schema)
    sides = [batch_of((side.get(key, nothing) for key in keys), schema) for side in (old, new)]
    masks = [pa.array([key in side for key in keys], pa.bool_()) for side in (old, new)]
    old_there, new_there = (mask.to_numpy(zero_copy_only=False) for mask in masks)
    return Pairs(sides[0], sides[1], old_there, new_there)


def same_value(value: Any) -> Any:
    """Return what stands for a value, so that equal ones by the engine are equal in Python."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def expected(grouping: Grouping, rows: Iterable[Row]) -> dict[Row, Row]:
    """Return the result over rows, each group on its own, by the words of the rules."""
    groups: dict[Row, list[dict[str, Any]]] = {}
    for row in rows:
        named = dict(zip(grouping.rows.names, row, strict=True))
        key = tuple(same_value(named[name]) for name in grouping.keys)
        groups.setdefault(key, []).append(named)
    return {
        key: tuple(same_value(_value(each, members, grouping)) for each in grouping.aggregates)
        for key, members in groups.items()
    }


def shown(grouping: Grouping, result: pa.RecordBatch) -> dict[Row, Row]:
    """Return a result as `expected` gives it."""
    width = len(grouping.keys)
    rows = [tuple(same_value(value) for value in row.values()) for row in result.to_pylist()]
    found = {row[:width]: row[width:] for row in rows}
    assert len(found) == len(rows), "a group stands twice"
    return found


def _value(aggregate: Aggregate, rows: Sequence[Mapping[str, Any]], grouping: Grouping) -> Any:
    if aggregate.column is None:
        return len(rows)
    values = [row[aggregate.column] for row in rows if row[aggregate.column] is not None]
    if aggregate.kind is AggregateKind.COUNT:
        return len(values)
    if not values:
        return None
    if aggregate.kind in (AggregateKind.MIN, AggregateKind.MAX):
        ordered = sorted(values, key=lambda v: (isinstance(v, float) and math.isnan(v), v))
        return ordered[0 if aggregate.kind is AggregateKind.MIN else -1]
    type_ = grouping.rows.field(aggregate.column).type
    if pa.types.is_floating(type_):
        assert aggregate.scale is not None
        total: Any = float_sum(values, aggregate.scale)
    else:
        with localcontext() as context:
            context.prec = 100
            total = sum(values)
    shown_type = grouping.result_schema.field(aggregate.name).type
    if aggregate.kind is AggregateKind.SUM:
        return total if _fits(total, shown_type) else None
    if not isinstance(total, Decimal):
        return total / len(values)
    with localcontext() as context:
        context.prec = 100
        exponent = Decimal(1).scaleb(-shown_type.scale)
        mean = (total / len(values)).quantize(exponent, "ROUND_HALF_UP")
    return mean if _fits(mean, shown_type) else None


def _fits(number: Any, type_: pa.DataType) -> bool:
    """Return whether a sum fits into the type in which it is shown."""
    if pa.types.is_decimal(type_):
        limit = Decimal(10) ** (type_.precision - type_.scale)  # `abs` would round.
        return bool(limit.copy_negate() < number < limit)
    if pa.types.is_integer(type_):
        return bool(-(1 << 63) <= number < 1 << 63)
    return True


def float_sum(values: Sequence[float], scale: int) -> float:
    """Return a sum of floats of which each is rounded first; infinities and NaN as in IEEE."""
    apart = {v for v in values if math.isinf(v)} | {v for v in values if math.isnan(v)}
    if apart:
        return sum(apart)
    with localcontext() as context:
        context.prec = 100
        exponent = Decimal(1).scaleb(-scale)
        return float(sum(Decimal(v).quantize(exponent, ROUND_HALF_EVEN) for v in values))
