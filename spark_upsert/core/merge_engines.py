"""Merge engines: the result for several commands with one key (docs/adr/0007).

Merging is associative, so a stash, a compaction and a read may merge any neighbours first. A table
of *contributions* stores a grouped view's sums (docs/adr/0037).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from spark_upsert.core.names import find_columns
from spark_upsert.errors import NewerFormatError, OptionError, SchemaError, did_you_mean

CONTRIBUTIONS = "contributions"
"""Engine name in the log for a table of contributions (`MergeEngine.multiplicity`)."""

CONTRIBUTIONS_VERSION = 2
"""Format version for a table of contributions; a missing version in the log means 1.

Increase it with every engine or rule that older readers would misread: they refuse versions
above their own.
"""

ORDERS_VERSION = 3
"""Format version for a widened order, or for columns with their own order.

Earlier releases compared deletes with those orders.
"""

REGISTERS_VERSION = 4
"""Format version for a table with unchanged values (`TableSchema.unchanged`).

Earlier releases took the winning entry's nulls for values.
"""

PART = "_part"
"""Key column in a table of contributions.

`GROUP_PART`, ``i`` for a value in the ``i``-th column with a minimum or maximum (in ``_v<i>``),
or `MARKER_PART`. Each entry counts its rows in ``n``.
"""
FROM = "_from"
"""In the marker, which each step writes: the view's position before the newest step."""
TO = "_to"
"""In the marker: the view's position after the newest step (`table.write.outcomes`)."""

MARKER_PART = -1
GROUP_PART = 0


class Engine(Enum):
    """Rule that merges commands with one key, as in Apache Paimon's primary-key tables.

    The first two choose an entry, the others fold all entries (`table.state.fold`). Results do not
    depend on batches, except that ``sum`` counts a repeated row again and float sums may differ in
    their last bits.
    """

    DEDUPLICATE = "deduplicate"
    FIRST_ROW = "first-row"
    PARTIAL_UPDATE = "partial-update"
    AGGREGATION = "aggregation"


class Rule(Enum):
    """Aggregate rule for a column's values; nulls never count."""

    LAST = "last_non_null"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    COLLECT = "collect"
    """The set of all values, as a sorted list."""


@dataclass(frozen=True)
class MergeEngine:
    """A table's merge engine and column rules."""

    kind: Engine = Engine.DEDUPLICATE
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """For `Engine.AGGREGATION`: columns with a rule other than `Rule.LAST`."""
    column_order: Mapping[str, str] = field(default_factory=dict)
    """For `Rule.LAST`: a column's order column, if it is not the ``sequenceBy`` column."""
    multiplicity: str | None = None
    """For a table of contributions: the sum column that counts an entry's rows."""
    has_null_for_overflow: bool = False
    """For a read: an overflowing sum is NULL instead of an error. Not stored in the log."""

    def __str__(self) -> str:
        """The equivalent options: ``aggregation aggregate.n=sum``."""
        rules = [f"aggregate.{column}={rule.value}" for column, rule in self.rules.items()]
        order = [
            f"sequenceBy.{column}={order_name}" for column, order_name in self.column_order.items()
        ]
        counted = [f"multiplicity={self.multiplicity}"] if self.multiplicity else []
        return " ".join([self.kind.value, *rules, *order, *counted])

    @property
    def folds(self) -> bool:
        """Whether entries are folded instead of chosen."""
        return self.kind in (Engine.PARTIAL_UPDATE, Engine.AGGREGATION)

    @property
    def takes_deletes(self) -> bool:
        """Whether commands may be tombstones."""
        return self.kind in (Engine.DEDUPLICATE, Engine.PARTIAL_UPDATE)

    def rule(self, column: str) -> Rule:
        """Return a value column's rule."""
        return self.rules.get(column, Rule.LAST)

    def to_json(self) -> dict[str, Any]:
        """Return the log representation."""
        record: dict[str, Any] = {
            "kind": self.kind.value,
            "rules": {column: rule.value for column, rule in self.rules.items()},
            "column_order": dict(self.column_order),
        }
        if self.multiplicity is not None:
            # A separate kind: an older release would otherwise fold the table like any other, show
            # cancelled entries as rows, and write into it without a marker.
            counted = {"kind": CONTRIBUTIONS, "multiplicity": self.multiplicity}
            record |= {"version": CONTRIBUTIONS_VERSION, **counted}
        if self.column_order:
            record["version"] = ORDERS_VERSION
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> MergeEngine:
        """Rebuild an engine; None, from an older release, means deduplication.

        Raises
        ------
        NewerFormatError
            A newer release wrote it.
        """
        if record is None:
            return cls()
        version = record.get("version", 1)
        if type(version) is not int or version < 1:
            raise ValueError(f"{version!r:.80} is no version of a merge engine")
        if version > REGISTERS_VERSION:
            raise NewerFormatError.of("the table's merge engine", version, REGISTERS_VERSION)
        is_counted = record["kind"] == CONTRIBUTIONS
        counted = record.get("multiplicity")
        if is_counted and type(counted) is not str:
            raise ValueError(f"{counted!r:.80} is no column that counts rows")
        return cls(
            kind=Engine.AGGREGATION if is_counted else Engine(record["kind"]),
            rules={column: Rule(rule) for column, rule in record["rules"].items()},
            column_order=record["column_order"],
            multiplicity=counted,
        )

    @classmethod
    def chosen(
        cls, kind: Engine, rules: Mapping[str, Rule], order: Mapping[str, str]
    ) -> MergeEngine:
        """Build an engine from the options ``mergeEngine``, ``aggregate.*``, ``sequenceBy.*``."""
        for rule, option, rule_engine in (
            (rules, "aggregate", Engine.AGGREGATION),
            (order, "sequenceBy", Engine.PARTIAL_UPDATE),
        ):
            if rule and kind is not rule_engine:
                raise OptionError.conflict(
                    f"{option}.{next(iter(rule))}",
                    f"mergeEngine={kind.value}",
                    hint=f"use mergeEngine={rule_engine.value}, or drop the option.",
                )
        return cls(kind, dict(rules), dict(order))

    def resolved(self, columns: Sequence[str], rows: Sequence[str]) -> MergeEngine:
        """Return the engine with column names as the table and the rows spell them."""

        def own(names: Iterable[str]) -> tuple[str, ...]:
            return find_columns(names, columns, role="column of an option")

        sources = find_columns(self.column_order.values(), rows, role="sequenceBy column")
        return MergeEngine(
            self.kind,
            dict(zip(own(self.rules), self.rules.values(), strict=True)),
            dict(zip(own(self.column_order), sources, strict=True)),
            self.multiplicity and own([self.multiplicity])[0],
        )

    def check(self, columns: pa.Schema, keys: Sequence[str], order: Sequence[pa.Field]) -> None:
        """Raise `SchemaError` or `OptionError` for rules or orders that do not fit a table."""
        values = dict.fromkeys(name for name in columns.names if name not in keys)
        for column, rule in self.rules.items():
            self._require_value(column, values)
            type_ = columns.field(column).type
            if rule is Rule.SUM and not _is_summable(type_):
                raise SchemaError(
                    f"column '{column}' is {type_}, which has no sum.",
                    hint="sum integers, floats or decimals, or choose another aggregate.",
                    column=column,
                )
            if rule in (Rule.MAX, Rule.MIN) and pa.types.is_nested(type_):
                raise SchemaError(
                    f"column '{column}' is {type_}, which has no order.",
                    hint="use aggregate last_non_null for nested columns.",
                    column=column,
                )
        counted = self.multiplicity
        if counted is not None:
            self._require_value(counted, values)
            if self.rule(counted) is not Rule.SUM or columns.field(counted).type != pa.int64():
                raise SchemaError(
                    f"column '{counted}' counts rows; expected a sum of int64, found "
                    f"{self.rule(counted).value} of {columns.field(counted).type}.",
                    hint="let a view make the table ('keep').",
                    column=counted,
                )
        for column in self.column_order:
            self._require_value(column, values)
        if self.column_order and len(order) != 1:
            raise OptionError.missing(
                "sequenceBy",
                "the order of deletes and of all columns without their own; exactly one column "
                "goes with 'sequenceBy.<column>'",
            )

    def _require_value(self, column: str, values: Collection[str]) -> None:
        if column not in values:
            raise OptionError(
                f"an option names the column '{column}', which is not a value column.",
                hint=did_you_mean(column, values),
                column=column,
            )


DEDUPLICATE = MergeEngine()
"""The default engine."""


def _is_summable(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal128(type_)
    )


def value_column(part: int) -> str:
    """Return the column name for a part's values."""
    return f"_v{part}"
