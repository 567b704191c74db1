"""View groupings (`Grouping`): stored columns, exact float rounding, and contributions.

A materialized table stores only reversible values: counts and sums, and for minima and maxima a
count per value (docs/adr/0037).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import type_of, type_text
from spark_upsert.core.casts import convert
from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import is_hashable
from spark_upsert.core.merge_engines import (
    FROM,
    GROUP_PART,
    MARKER_PART,
    PART,
    TO,
    Engine,
    MergeEngine,
    Rule,
    value_column,
)
from spark_upsert.core.names import find_repeated, has_column
from spark_upsert.core.schema import DIFF, HASH, PUT, TableSchema, is_live
from spark_upsert.errors import DataError, PlanError, did_you_mean
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.join_keys import canonical
from spark_upsert.store.records import MALFORMED
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.fold import fold
from spark_upsert.table.state.sums import average_type, split_decimals
from spark_upsert.views.intervals import Pairs

VERSION = 2
"""Version of a grouping's text; 1 if no sum has two columns, which 1 cannot express."""

DIGITS = 38
"""Sum digits for int64, decimals and floats."""

NARROW = 19
"""Decimal digits for which 10**19 rows, more than can be counted, sum to at most 38 digits."""

SCALE_MAX = 15
"""Maximum significant fraction digits in a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumColumns:
    """Stored columns for one column's values."""

    column: str
    count: str
    """Count of non-NULL values."""
    total: str | None = None
    beyond: str | None = None
    """The sum's part beyond 64 bits, where 38 digits may not hold the total."""
    scale: int | None = None
    apart: tuple[str, ...] = ()
    """Counts of NaN and of either infinity, for a float: no sum can represent these."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All its column names, in order."""
        sums = [name for name in (self.total, self.beyond) if name is not None]
        return (self.count, *sums, *self.apart)


@dataclass(frozen=True)
class Grouping:
    """A view's grouping: keys, and aggregates over the rows.

    Parameters
    ----------
    rows : pyarrow.Schema
        The grouped rows' columns.
    keys : tuple of str
        The group columns; empty for one group of all rows.
    aggregates : tuple of Aggregate
    """

    rows: pa.Schema
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def __post_init__(self) -> None:
        for key in self.keys:
            type_ = self._type(key, "the group")
            if not is_hashable(type_):
                raise _error(key, f"is {type_}, by which nothing can be grouped", _HASHABLE)
        reserved = {PART, FROM, TO, *(value_column(part) for part in self.parts.values())}
        for name in self.keys:
            if name.lower() in reserved:
                raise _error(name, "has a name that a kept table needs", "rename it before")
        for aggregate in self.aggregates:
            self._check(aggregate)
        names = [*self.keys, *(own_aggregate.name for own_aggregate in self.aggregates)]
        repeated = find_repeated(names)
        if repeated is not None:
            raise _error(repeated[0], "stands twice in the result", "rename one")

    def _check(self, aggregate: Aggregate) -> None:
        kind, column = aggregate.kind, aggregate.column
        if column is None:
            if kind is not AggregateKind.COUNT:
                raise _error(aggregate.name, f"is a {kind.value} of nothing", "name a column")
            return
        type_ = self._type(column, f"'{aggregate.name}'")
        if kind in (AggregateKind.MIN, AggregateKind.MAX) and not is_hashable(type_):
            raise _error(column, f"is {type_}, which has no order", _HASHABLE)
        if kind in (AggregateKind.SUM, AggregateKind.AVG):
            sum_types(column, type_, aggregate.scale)
        elif aggregate.scale is not None:
            raise _error(column, f"has a scale for its {kind.value}", "a scale is for sums alone")

    def _type(self, column: str, of: str) -> pa.DataType:
        if not has_column(self.rows, column):
            hint = did_you_mean(column, self.rows.names)
            raise _error(column, f"is named by {of}, and the rows do not have it", hint.rstrip("."))
        return self.rows.field(column).type

    @cached_property
    def parts(self) -> Mapping[str, int]:
        """The number in entries' `PART` column for each column with a minimum or maximum.

        Entries with that number have one of the column's values each.
        """
        column_names = [
            e.column for e in self.aggregates if e.kind in (AggregateKind.MIN, AggregateKind.MAX)
        ]
        names = dict.fromkeys(name for name in column_names if name is not None)
        return {name: index + 1 for index, name in enumerate(names)}

    @cached_property
    def _names(self) -> _Names:
        values = (value_column(part) for part in self.parts.values())
        return _Names([*self.keys, PART, *values, FROM, TO])

    @cached_property
    def multiplicity(self) -> str:
        """The row count column's name: ``n``, unless a group column has it."""
        return self._names.take_free("n")

    @cached_property
    def sums(self) -> tuple[SumColumns, ...]:
        """The stored sums, one for each column and scale."""
        _ = self.multiplicity  # The first to choose its name.
        sums = []
        free = self._names.take_free
        summed = [
            aggregate
            for aggregate in self.aggregates
            if aggregate.kind in (AggregateKind.SUM, AggregateKind.AVG)
        ]
        scales = dict.fromkeys(
            (summed_column.column, summed_column.scale) for summed_column in summed
        )
        named = {column for column, _ in scales}
        counted = [
            aggregate
            for aggregate in self.aggregates
            if aggregate.kind is AggregateKind.COUNT and aggregate.column
        ]
        scales |= {
            (counted_column.column, None): None
            for counted_column in counted
            if counted_column.column not in named
        }
        for column, scale in scales:
            assert column is not None
            has_total = column in named
            type_ = self.rows.field(column).type
            is_float = has_total and pa.types.is_floating(type_)
            is_wide = is_float or (pa.types.is_decimal(type_) and type_.precision > NARROW)
            sums.append(
                SumColumns(
                    column=column,
                    count=free(f"c_{column}"),
                    total=free(f"s_{column}") if has_total else None,
                    beyond=free(f"b_{column}") if has_total and is_wide else None,
                    scale=scale,
                    apart=tuple(free(f"{kind}_{column}") for kind in _APART) if is_float else (),
                )
            )
        return tuple(sums)

    def sum_of(self, aggregate: Aggregate) -> SumColumns:
        """Return the stored columns for a column's count, sum or average."""
        if aggregate.kind is AggregateKind.COUNT:
            return self._first_sums[aggregate.column]
        return self._scaled_sums[aggregate.column, aggregate.scale]

    @cached_property
    def _first_sums(self) -> Mapping[str | None, SumColumns]:
        return {group_sum.column: group_sum for group_sum in reversed(self.sums)}

    @cached_property
    def _scaled_sums(self) -> Mapping[tuple[str | None, int | None], SumColumns]:
        return {(group_sum.column, group_sum.scale): group_sum for group_sum in self.sums}

    @cached_property
    def stored_schema(self) -> TableSchema:
        """The stored table's schema: a group's entries are adjacent (`align_to_groups`)."""
        fields = [self.rows.field(key) for key in self.keys]
        fields.append(pa.field(PART, pa.int32()))
        for column, part in self.parts.items():
            fields.append(pa.field(value_column(part), self.rows.field(column).type))
        keys = [field.name for field in fields]
        totals = {
            group_sum.total: sum_types(
                group_sum.column, self.rows.field(group_sum.column).type, group_sum.scale
            )[0]
            for group_sum in self.sums
            if group_sum.total is not None
        }
        totals |= dict.fromkeys(filter(None, (e.beyond for e in self.sums)), _TIMES)
        sums = [self.multiplicity, *(name for group_sum in self.sums for name in group_sum.columns)]
        fields += [pa.field(name, totals.get(name, pa.int64())) for name in sums]
        fields += [pa.field(FROM, pa.string()), pa.field(TO, pa.string())]
        rules = dict.fromkeys(sums, Rule.SUM)
        engine = MergeEngine(Engine.AGGREGATION, rules, multiplicity=self.multiplicity)
        return TableSchema.of(
            pa.schema(fields), keys=keys, engine=engine, hash_prefix=len(self.keys)
        )

    @cached_property
    def result_schema(self) -> pa.Schema:
        """The result columns: the group columns, then the aggregates."""
        fields = [self.rows.field(key) for key in self.keys]
        fields += [
            pa.field(aggregate.name, self._result_type(aggregate)) for aggregate in self.aggregates
        ]
        return pa.schema([field.with_nullable(True) for field in fields])

    def _result_type(self, aggregate: Aggregate) -> pa.DataType:
        if aggregate.kind is AggregateKind.COUNT or aggregate.column is None:
            return pa.int64()
        type_ = self.rows.field(aggregate.column).type
        if aggregate.kind is AggregateKind.SUM:
            return sum_types(aggregate.column, type_, aggregate.scale)[1]
        if aggregate.kind is not AggregateKind.AVG:
            return type_
        return average_type(type_) if pa.types.is_decimal(type_) else pa.float64()

    def to_json(self) -> str:
        """Return the text stored in the materialized table's properties.

        It includes the relevant column types, for computing a result without the base tables.
        """
        used = {*self.keys, *(aggregate.column for aggregate in self.aggregates)}
        rows = [[f.name, type_text(f.type)] for f in self.rows if f.name in used]
        record: dict[str, Any] = {"v": self._version, "rows": rows, "keys": list(self.keys)}
        record["aggregates"] = [aggregate.to_json() for aggregate in self.aggregates]
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    @property
    def _version(self) -> int:
        return VERSION if any(group_sum.beyond for group_sum in self.sums) else 1

    @classmethod
    def from_json(cls, text: str) -> Grouping:
        """Rebuild a grouping from its text."""
        try:
            record = json.loads(text)
            rows = pa.schema([(name, type_of(type_)) for name, type_ in record["rows"]])
            aggregates = tuple(Aggregate.from_json(aggregate) for aggregate in record["aggregates"])
            grouping = cls(rows, tuple(record["keys"]), aggregates)
            if record["v"] != grouping._version:
                raise ValueError(f"the form {record['v']!r}")
            return grouping
        except PlanError:
            raise
        except MALFORMED as error:
            raise PlanError(
                f"expected the text of a grouping in the form {VERSION}, found {text:.200}.",
                hint="keep the view in another path, by this version of upsertflow.",
            ) from error


def sum_types(
    column: str, type_: pa.DataType, scale: int | None
) -> tuple[pa.DataType, pa.DataType]:
    """Return the stored and the result type for a column's sum.

    A stored sum is wider than the result: the group shows NULL until its sum fits again. Sums with
    possibly more than 38 digits have two columns (`table.state.sums.split_decimals`).
    """
    if pa.types.is_floating(type_):
        if scale is None:
            raise _error(
                column,
                f"is {type_}, of which a sum is not exact under retraction",
                "set scale=, the digits behind the point to which each value is rounded, or cast "
                "the column to a decimal",
            )
        if type(scale) is not int or not 0 <= scale <= SCALE_MAX:
            raise _error(column, f"has scale={scale!r}", f"use a number from 0 to {SCALE_MAX}")
        return pa.decimal128(DIGITS, scale), pa.float64()
    if scale is not None:
        raise _error(column, f"is {type_} and has scale={scale!r}", "drop it: the sum is exact")
    if pa.types.is_decimal128(type_):
        shown = pa.decimal128(min(type_.precision + 10, DIGITS), type_.scale)
        return pa.decimal128(DIGITS, type_.scale), shown
    if not pa.types.is_integer(type_):
        raise _error(column, f"is {type_}, which has no sum", "sum numbers")
    if type_ in (pa.int64(), pa.uint64()):
        return pa.decimal128(DIGITS, 0), type_
    return pa.int64(), pa.int64()


_TIMES = pa.decimal128(DIGITS, 0)

_APART = ("nan", "inf", "ninf")

_HASHABLE = "use numbers, texts, binaries, booleans, dates, times or decimals"


def _error(column: str, found: str, hint: str) -> PlanError:
    end = "" if hint.endswith("?") else "."
    return PlanError(f"column '{column}' {found}.", hint=f"{hint}{end}", column=column)


class _Names:
    """Unique column names, compared case-insensitively."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = {name.lower() for name in taken}

    def take_free(self, name: str) -> str:
        """Return a free name, and take it: with underscores before it, if need be."""
        while name.lower() in self._taken or name.startswith("__"):
            name = f"_{name}" if not name.startswith("_") else f"{name}_"
        self._taken.add(name.lower())
        return name


_Doubles = npt.NDArray[np.float64]

_SPLITTER = float((1 << 27) + 1)


@dataclass(frozen=True, slots=True)
class Summand:
    """A float column as input for a sum: a value with too many digits is excluded."""

    type: pa.DataType
    name: str
    scale: int
    digits: int

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the rows' values."""
        column = rows.column(self.name)
        doubles = np.asarray(convert(column, pa.float64()).fill_null(0.0))
        _require_fitting(np.where(np.isfinite(doubles), doubles, 0.0), self.scale, self.digits)
        return column


def round_floats(values: pa.Array, scale: int, digits: int) -> pa.Array:
    """Return floats as decimals, NULL as NULL; half-even by exact value, so that 0.15 becomes 0.1.

    The fraction times ``10**scale`` is a double plus its error (T. J. Dekker, "A floating-point
    technique for extending the available precision", 1971), so its side of a half is exact.
    """
    mask = values.is_null().to_numpy(zero_copy_only=False)
    doubles = np.asarray(values.cast(pa.float64()).fill_null(0.0))
    # With digits behind the point the whole part is even among them; without, it has a parity.
    integers = np.trunc(doubles) if scale else np.rint(doubles)
    _require_fitting(integers, scale, digits)
    fraction = doubles - integers if scale else np.zeros_like(integers)
    ends = _half_even(fraction, 10.0**scale).astype(np.int64)
    type_ = pa.decimal128(digits, scale)
    parts = (pa.array(integers).cast(pa.decimal128(digits, 0)), _shifted(ends, scale))
    total = pc.add(*(part.cast(pa.decimal256(digits + 2, scale)) for part in parts))
    return pc.if_else(pa.array(mask), pa.scalar(None, type_), convert(total, type_))


def _require_fitting(whole: _Doubles, scale: int, digits: int) -> None:
    """Raise `DataError` if a number has too many digits before the point."""
    largest = float(np.abs(whole).max(initial=0.0))
    if largest >= 10.0 ** (digits - scale):
        raise DataError(
            f"{largest!r} has more than {digits - scale} digits before the point, which is the "
            f"most that a sum with scale={scale} takes."
        )


def _shifted(numbers: npt.NDArray[np.int64], scale: int) -> pa.Array:
    """Return integers as decimals with ``scale`` fraction digits: 5 is 0.05 by 2."""
    column = pa.array(numbers).cast(pa.decimal128(19, 0))
    return pa.Array.from_buffers(pa.decimal128(19, scale), len(column), column.buffers())


def _half_even(fraction: _Doubles, factor: float) -> _Doubles:
    """Return fractions times a factor below 2**53, rounded half to even."""
    product = fraction * factor
    error = _error_of_product(fraction, factor, product)
    nearest = np.rint(product)
    beyond = product - nearest
    # Only where the double lies just at a half does what it lacks decide.
    up = (beyond == 0.5) & (error > 0)
    down = (beyond == -0.5) & (error < 0)
    return nearest + up - down


def _error_of_product(one: _Doubles, other: float, product: _Doubles) -> _Doubles:
    """Return the exact rounding error of a product of doubles."""
    high, low = _halves(one)
    other_high, other_low = (float(half[0]) for half in _halves(np.array([other])))
    remainder = ((high * other_high - product) + high * other_low) + low * other_high
    return remainder + low * other_low


def _halves(values: _Doubles) -> tuple[_Doubles, _Doubles]:
    """Split doubles into two halves with 26 bits each."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high


_Signs = npt.NDArray[np.int64]


def contributions(grouping: Grouping, pairs: Pairs) -> pa.RecordBatch:
    """Return the contributions from row pairs.

    A row with sign d adds d to its group's count, d to the value count and ``d * x`` to the value
    sum of each non-NULL value x, and in a value part d to the value's count.
    """
    sides = ((pairs.old_rows(), -1), (pairs.new_rows(), +1))
    rows = pa.Table.from_batches([side for side, _ in sides]).combine_chunks()
    columns = {name: _whole(rows.column(name)) for name in grouping.rows.names}
    signs = np.repeat([sign for _, sign in sides], [side.num_rows for side, _ in sides])
    return fold_entries(grouping, _entries(grouping, columns, signs.astype(np.int64)))


def fold_entries(grouping: Grouping, entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return one entry per key: the sums, without all-zero entries."""
    schema = grouping.stored_schema
    if not entries.num_rows:
        return entries
    keys = [entries.column(key) for key in schema.keys]
    hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
    columns_added = {
        HASH: pa.array(hashes),
        DIFF: pa.array(np.full(len(hashes), PUT, dtype=np.int8)),
    }
    batch = pa.RecordBatch.from_arrays(
        [
            columns_added[name] if name in columns_added else entries.column(name)
            for name in schema.run.names
        ],
        schema=schema.run,
    )
    folded_rows = fold(Rows(schema, [BatchPart(batch)])).rows
    names = [*schema.columns.names, DIFF]
    *columns, diffs = folded_rows.take(names, np.arange(len(folded_rows)))
    folded_batch = pa.RecordBatch.from_arrays(columns, schema=schema.columns)
    return folded_batch.filter(pa.array(is_live(diffs)))


def marker_entry(grouping: Grouping, *, lower: str, upper: str) -> pa.RecordBatch:
    """Return the marker entry for a write's step: from one position to another."""
    marker_fields = {PART: MARKER_PART, FROM: lower, TO: upper}
    marker_fields |= dict.fromkeys(grouping.stored_schema.engine.rules, 0)
    row = {name: marker_fields.get(name) for name in grouping.stored_schema.columns.names}
    return pa.RecordBatch.from_pylist([row], schema=grouping.stored_schema.columns)


def _entries(grouping: Grouping, columns: Mapping[str, pa.Array], signs: _Signs) -> pa.RecordBatch:
    """Return each row's entries: one for its group, and one for each part's value."""
    keys = {key: canonical(columns[key]) for key in grouping.keys}
    of_group: dict[str, pa.Array] = {**keys, grouping.multiplicity: pa.array(signs)}
    for summed in grouping.sums:
        of_group |= _sum_columns(grouping, summed, columns[summed.column], signs)
    batches = [_batch(grouping, of_group, GROUP_PART, len(signs))]
    for name, part in grouping.parts.items():
        valid = columns[name].is_valid()
        count = pc.sum(valid).as_py() or 0
        of_value = {
            **{key: column.filter(valid) for key, column in keys.items()},
            value_column(part): canonical(columns[name].filter(valid)),
            grouping.multiplicity: pa.array(signs).filter(valid),
        }
        batches.append(_batch(grouping, of_value, part, count))
    return pa.concat_batches(batches)


def _batch(
    grouping: Grouping, columns: Mapping[str, pa.Array], part: int, count: int
) -> pa.RecordBatch:
    """Return one part's entries, with nulls in missing columns."""
    all_columns = {**columns, PART: pa.repeat(pa.scalar(part, pa.int32()), count)}
    schema = grouping.stored_schema.columns
    arrays = [
        all_columns[f.name] if f.name in all_columns else pa.nulls(count, f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sum_columns(
    grouping: Grouping, summed: SumColumns, column: pa.Array, signs: _Signs
) -> dict[str, pa.Array]:
    """Return the stored columns for one row column."""
    valid = column.is_valid()
    totals = {summed.count: _signed_counts(valid, signs)}
    if summed.total is None:
        return totals
    type_ = sum_types(summed.column, grouping.rows.field(summed.column).type, summed.scale)[0]
    if summed.scale is not None:
        for name, where in zip(summed.apart, _special_values(column), strict=True):
            totals[name] = _signed_counts(where, signs)
        finite = pc.and_(valid, pc.is_finite(column)).fill_null(False)
        values = round_floats(_masked(column, finite), summed.scale, DIGITS)
    else:
        values = convert(column, type_)
    values = values.fill_null(pa.scalar(0, type_))
    parts = [values] if summed.beyond is None else split_decimals(values)
    for name, part in zip(summed.columns[1:], parts, strict=False):
        totals[name] = pc.if_else(pa.array(signs < 0), pc.negate(part), part)
    return totals


def _special_values(column: pa.Array) -> tuple[pa.Array, ...]:
    """Return which floats are NaN, and which are either infinity."""
    endless = pc.is_inf(column)
    above = pc.greater(column, pa.scalar(0.0, column.type))
    parts = (pc.is_nan(column), pc.and_(endless, above), pc.and_not(endless, above))
    return tuple(part.fill_null(False) for part in parts)


def _signed_counts(where: pa.Array, signs: _Signs) -> pa.Array:
    return pc.if_else(where, pa.array(signs), pa.scalar(0, pa.int64()))


def _masked(column: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(where, column, pa.scalar(None, column.type))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
