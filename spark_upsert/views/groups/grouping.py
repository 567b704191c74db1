"""A grouping: which columns make the groups, what is wanted of them, and what must be kept for it.

    rows  --contributions-->  kept table (sums)  --result-->  one row per group

The table keeps only what can be taken back: counts and sums. For a sum, an average or a count of a
column it keeps the count of its values and, for the first two, their sum. The smallest and the
greatest value need a count per value, which stands in a part of the table of its own
(`model.engines`).

==================  ========================  ==================================
sum of              is kept as                is shown as
==================  ========================  ==================================
int8 to int32       int64                     int64
int64               decimal(38, 0)            int64
decimal(p, s)       decimal(38, s)            decimal(p + 10, s)
float with scale s  decimal(38, s), and       float64
                    counts of NaN, inf, -inf
==================  ========================  ==================================

So the kept sum is wider than the shown one: a batch, a merge of some runs, or all rows may pass the
bound of the shown type, and the group shows NULL until its sum fits again. Floats, and decimals of
more than `NARROW` digits, may pass 38 digits, too: their sums are kept as two
(`table.entries.sums.apart`), neither of which ever does. Floats without a scale are refused, for
``1e16 + 1 - 1e16`` is not 1.

Rejected: to read a group again when its smallest value goes (all its rows), to keep the k smallest
(which needs that at the end), and the engine's own min and max (which take nothing back).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_upsert.errors import PlanError, did_you_mean
from spark_upsert.model.engines import FROM, PART, TO, Engine, MergeEngine, Rule, value_column
from spark_upsert.model.names import find_repeated, has_column
from spark_upsert.model.schema import TableSchema
from spark_upsert.model.types import type_of, type_text
from spark_upsert.model.words import is_hashable
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.store.records import MALFORMED
from spark_upsert.table.entries.sums import average_type

VERSION = 2
"""Version of a grouping's text; 1 where no sum is kept as two, as 1 cannot express that."""

DIGITS = 38
"""Digits of the sums of int64, decimals and floats."""

NARROW = 19
"""Digits of decimals of which 10**19 rows, more than can be counted, come to no more than 38."""

SCALE_MAX = 15
"""Most digits behind the point of a float that mean something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """Columns of the kept table for the values of one column."""

    column: str
    count: str
    """Count of the values that are not NULL."""
    total: str | None = None
    beyond: str | None = None
    """The part of the sum beyond 64 bits, where 38 digits may not hold the whole."""
    scale: int | None = None
    apart: tuple[str, ...] = ()
    """Counts of NaN and of either infinity, for a float: no sum holds these."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all its columns, in their order."""
        sums = [name for name in (self.total, self.beyond) if name is not None]
        return (self.count, *sums, *self.apart)


@dataclass(frozen=True)
class Grouping:
    """The grouping of a view: keys, and aggregates over the rows.

    Parameters
    ----------
    rows : pyarrow.Schema
        The columns of the rows that are grouped.
    keys : tuple of str
        The columns that make the groups; none of them for one group of all rows.
    aggregates : tuple of Aggregate

    Raises
    ------
    PlanError
        A column is not there, or what is wanted of it cannot be kept exactly.
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
        for each in self.aggregates:
            self._check(each)
        names = [*self.keys, *(each.name for each in self.aggregates)]
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
        """The part of the values of each column of which the smallest or greatest is wanted."""
        wanted = [
            e.column for e in self.aggregates if e.kind in (AggregateKind.MIN, AggregateKind.MAX)
        ]
        names = dict.fromkeys(name for name in wanted if name is not None)
        return {name: index + 1 for index, name in enumerate(names)}

    @cached_property
    def _names(self) -> _Names:
        values = (value_column(part) for part in self.parts.values())
        return _Names([*self.keys, PART, *values, FROM, TO])

    @cached_property
    def multiplicity(self) -> str:
        """The name of the column that counts rows: ``n``, if no column of the group has it."""
        return self._names.free("n")

    @cached_property
    def sums(self) -> tuple[Summed, ...]:
        """The kept sums, one for each column and scale."""
        _ = self.multiplicity  # The first to choose its name.
        found = []
        free = self._names.free
        summed = [
            each for each in self.aggregates if each.kind in (AggregateKind.SUM, AggregateKind.AVG)
        ]
        wanted = dict.fromkeys((each.column, each.scale) for each in summed)
        named = {column for column, _ in wanted}
        counted = [
            each for each in self.aggregates if each.kind is AggregateKind.COUNT and each.column
        ]
        wanted |= {(each.column, None): None for each in counted if each.column not in named}
        for column, scale in wanted:
            assert column is not None
            has_total = column in named
            type_ = self.rows.field(column).type
            is_float = has_total and pa.types.is_floating(type_)
            is_wide = is_float or (pa.types.is_decimal(type_) and type_.precision > NARROW)
            found.append(
                Summed(
                    column=column,
                    count=free(f"c_{column}"),
                    total=free(f"s_{column}") if has_total else None,
                    beyond=free(f"b_{column}") if has_total and is_wide else None,
                    scale=scale,
                    apart=tuple(free(f"{kind}_{column}") for kind in _APART) if is_float else (),
                )
            )
        return tuple(found)

    def sum_of(self, aggregate: Aggregate) -> Summed:
        """Return what is kept for a count, a sum or an average of a column."""
        if aggregate.kind is AggregateKind.COUNT:
            return self._first_sums[aggregate.column]
        return self._scaled_sums[aggregate.column, aggregate.scale]

    @cached_property
    def _first_sums(self) -> Mapping[str | None, Summed]:
        return {each.column: each for each in reversed(self.sums)}

    @cached_property
    def _scaled_sums(self) -> Mapping[tuple[str | None, int | None], Summed]:
        return {(each.column, each.scale): each for each in self.sums}

    @cached_property
    def kept(self) -> TableSchema:
        """The schema of the kept table: the entries of a group lie together (`whole_groups`)."""
        fields = [self.rows.field(key) for key in self.keys]
        fields.append(pa.field(PART, pa.int32()))
        for column, part in self.parts.items():
            fields.append(pa.field(value_column(part), self.rows.field(column).type))
        keys = [field.name for field in fields]
        totals = {
            each.total: sum_types(each.column, self.rows.field(each.column).type, each.scale)[0]
            for each in self.sums
            if each.total is not None
        }
        totals |= dict.fromkeys(filter(None, (e.beyond for e in self.sums)), _TIMES)
        sums = [self.multiplicity, *(name for each in self.sums for name in each.columns)]
        fields += [pa.field(name, totals.get(name, pa.int64())) for name in sums]
        fields += [pa.field(FROM, pa.string()), pa.field(TO, pa.string())]
        rules = dict.fromkeys(sums, Rule.SUM)
        engine = MergeEngine(Engine.AGGREGATION, rules, multiplicity=self.multiplicity)
        return TableSchema.of(
            pa.schema(fields), keys=keys, engine=engine, hash_prefix=len(self.keys)
        )

    @cached_property
    def result(self) -> pa.Schema:
        """The columns of the result: those of the group, then what is wanted of it."""
        fields = [self.rows.field(key) for key in self.keys]
        fields += [pa.field(each.name, self._result_type(each)) for each in self.aggregates]
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
        """Return the text that stands in the properties of a kept table.

        It holds the types of the columns that matter, so that a result is shown without the tables
        that it was made from.
        """
        used = {*self.keys, *(each.column for each in self.aggregates)}
        rows = [[f.name, type_text(f.type)] for f in self.rows if f.name in used]
        record: dict[str, Any] = {"v": self._version, "rows": rows, "keys": list(self.keys)}
        record["aggregates"] = [each.to_json() for each in self.aggregates]
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    @property
    def _version(self) -> int:
        return VERSION if any(each.beyond for each in self.sums) else 1

    @classmethod
    def from_json(cls, text: str) -> Grouping:
        """Rebuild a grouping from its text.

        Raises
        ------
        PlanError
            It is none.
        """
        try:
            record = json.loads(text)
            rows = pa.schema([(name, type_of(type_)) for name, type_ in record["rows"]])
            aggregates = tuple(Aggregate.from_json(each) for each in record["aggregates"])
            found = cls(rows, tuple(record["keys"]), aggregates)
            if record["v"] != found._version:
                raise ValueError(f"the form {record['v']!r}")
            return found
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
    """Return the types in which the sum of a column is kept, and shown.

    Raises
    ------
    PlanError
        There is no exact sum of such values.
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
    """Names of columns, none the same as another, whatever its case."""

    def __init__(self, taken: Sequence[str]) -> None:
        self._taken = {name.lower() for name in taken}

    def free(self, name: str) -> str:
        """Return a name that is free, and take it: with underscores before it, if need be."""
        while name.lower() in self._taken or name.startswith("__"):
            name = f"_{name}" if not name.startswith("_") else f"{name}_"
        self._taken.add(name.lower())
        return name
