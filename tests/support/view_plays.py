"""Cases and histories of views, played on tables that are dictionaries (`view_tables`: real ones).

What a view is, is told by `rows_of`: the batch query in plain Python, over dictionaries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys
from spark_upsert.core.keys import Positions, Words
from spark_upsert.plan.join_keys import empty_batch
from spark_upsert.plan.nodes import (
    Filter,
    Join,
    JoinKeys,
    JoinType,
    Node,
    Project,
    ProjectedColumn,
    Reverse,
    Scan,
    Unnest,
)
from spark_upsert.table.index.index import Index
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.relation import LookedUpRows
from spark_upsert.views.scan import BaseTable
from tests.support.view_cases import TABLES, Epoch, Row, Shape

Key = tuple[Any, ...]
Contents = Mapping[Key, Row]
"""Rows by their canonical keys."""


def canonical(value: Any) -> Any:
    """Return a value that is equal to another exactly where the engine finds both equal."""
    if isinstance(value, tuple | list):
        return tuple(map(canonical, value))
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, int | float):
        return float(value) + 0.0
    return value


# -- plans in the words of the cases ---------------------------------------------------------

SIGN = """CASE WHEN f IS NULL THEN NULL
     WHEN CAST(f AS STRING) LIKE '-%' THEN CAST(-1 AS DOUBLE) ELSE CAST(1 AS DOUBLE) END"""


def _sign(value: float) -> float:
    return 1.0 if math.isnan(value) else math.copysign(1.0, value)


def _divided(value: int | None) -> int | None:
    return None if value in (None, 2) else int(60 / (value - 2))


def _above(value: int | None, bound: int) -> bool | None:
    return None if value is None else value > bound


HUGE = 9 * 10**37
"""Two of them are more than a decimal holds."""


def _huge(value: int | None) -> Decimal | None:
    return None if value is None else Decimal(HUGE if value > 5 else -HUGE if value < 2 else 1)


FORMULAS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "x>5": ("x > 5", lambda row: None if row["x"] is None else row["x"] > 5),
    "x<2": ("x < 2", lambda row: None if row["x"] is None else row["x"] < 2),
    "x*2": ("x * 2", lambda row: None if row["x"] is None else row["x"] * 2),
    # None where x is 2: what has no value is NULL, and passes no filter.
    "60/(x-2)": ("60 DIV (x - 2)", lambda row: _divided(row["x"])),
    "60/(x-2)>20": ("60 DIV (x - 2) > 20", lambda row: _above(_divided(row["x"]), 20)),
    "huge(x)": (
        f"CASE WHEN x > 5 THEN {HUGE} WHEN x < 2 THEN -{HUGE} WHEN x IS NOT NULL THEN 1 END",
        lambda row: _huge(row["x"]),
    ),
    # 1.0 and -1.0 for both zeros, too: what an expression can tell and the engine cannot.
    "sign(f)": (SIGN, lambda row: None if row["f"] is None else _sign(row["f"])),
}
"""Formulas in SQL, and in plain Python."""


@dataclass(frozen=True, slots=True)
class P:
    """A plan, built as the cases write it."""

    node: Node

    def filter(self, where: str) -> P:
        return P(Filter(input=self.node, where=FORMULAS[where][0]))

    def project(self, *plain: str, **named: str) -> P:
        columns = [ProjectedColumn(name, name) for name in plain]
        columns += [ProjectedColumn(name, FORMULAS.get(f, (f,))[0]) for name, f in named.items()]
        return P(Project(input=self.node, columns=tuple(columns)))

    def unnest(self, column: str) -> P:
        return P(Unnest(input=self.node, column=column))

    def join(self, other: P, on: str, how: str = "inner", reverse: str = "index") -> P:
        pairs = [(each.split("=") * 2)[:2] for each in on.split(",")]
        return P(
            Join(
                left=self.node,
                right=other.node,
                on=tuple(JoinKeys(left, right) for left, right in pairs),
                how=JoinType(how),
                reverse=Reverse(reverse),
            )
        )

    def at_version(self, version: int) -> P:
        assert isinstance(self.node, Scan)
        scan = self.node
        return P(Scan(path=scan.path, columns=scan.columns, key=scan.key, version=version))


SCANS = {name: P(Scan.of(name, shape.columns, shape.key)) for name, shape in TABLES.items()}


def plan_of(text: str) -> Node:
    """Return the plan that a case names."""
    found = eval(text, {"__builtins__": {}}, dict(SCANS))
    assert isinstance(found, P)
    return found.node


# -- the batch query, in plain Python --------------------------------------------------------

Record = Mapping[str, Any]


def rows_of(node: Node, contents: Callable[[Scan], Iterable[Row]]) -> list[Record]:
    """Return what a plan gives over some contents of its tables."""
    match node:
        case Scan(columns=columns):
            return [
                dict(zip([each.name for each in columns], row, strict=True))
                for row in contents(node)
            ]
        case Filter(input=below, where=where):
            holds = _python(where)
            return [row for row in rows_of(below, contents) if holds(row) is True]
        case Project(input=below, columns=columns):
            made = [(each.name, _python(each.formula)) for each in columns]
            return [
                {name: formula(row) for name, formula in made} for row in rows_of(below, contents)
            ]
        case Unnest(input=below, column=column):
            return [
                _unnested(row, column, place, element)
                for row in rows_of(below, contents)
                for place, element in enumerate(row[column] or ())
            ]
        case Join():
            return _joined(node, rows_of(node.left, contents), rows_of(node.right, contents))
    raise AssertionError(node)


def _python(formula: Any) -> Callable[[Record], Any]:
    known = dict(FORMULAS.values())
    return known.get(formula) or (lambda row: row[formula])


def _unnested(row: Record, column: str, place: int, element: Any) -> Record:
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= {"pos": place, name: element} if name == column else {name: value}
    return found


def _joined(node: Join, left: Sequence[Record], right: Sequence[Record]) -> list[Record]:
    def partners(row: Record) -> list[Record]:
        wanted = [canonical(row[on.left]) for on in node.on]
        if None in wanted:
            return []
        return [r for r in right if [canonical(r[on.right]) for on in node.on] == wanted]

    hidden = {on.right for on in node.on}

    def beside(row: Record, other: Record | None) -> Record:
        names = right_names if other is None else other
        shown = {name: other and other[name] for name in names if name not in hidden}
        return {**row, **shown}

    right_names = names_of(node.right)
    found: list[Record] = []
    for row in left:
        met = partners(row)
        if not node.how.shows_right:
            if bool(met) == (node.how is JoinType.SEMI):
                found.append(row)
            continue
        found += [beside(row, other) for other in met]
        if not met and node.how is not JoinType.INNER:
            found.append(beside(row, None))
    if node.how is JoinType.FULL:
        [on] = node.on
        known = {canonical(row[on.left]) for row in left} - {None}
        empty = dict.fromkeys(names_of(node.left))
        for other in right:
            if canonical(other[on.right]) not in known:
                found.append({**beside(empty, other), on.left: other[on.right]})
    return found


def names_of(node: Node) -> list[str]:
    """Return the columns of a plan."""
    match node:
        case Scan(columns=columns) | Project(columns=columns):
            return [each.name for each in columns]
        case Unnest(input=below, column=column):
            return list(_unnested(dict.fromkeys(names_of(below)), column, 0, None))
        case Join():
            hidden = {on.right for on in node.on}
            shown = names_of(node.right) if node.how.shows_right else []
            return [*names_of(node.left), *(name for name in shown if name not in hidden)]
        case _:
            return names_of(node.inputs[0])


# -- tables ----------------------------------------------------------------------------------


def table_of(shape: Shape, rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as Arrow."""
    given = list(rows)
    columns = list(zip(*given, strict=True)) if given else [()] * len(shape.columns)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, shape.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.columns)


def applied(shape: Shape, contents: Contents, epoch: Epoch) -> dict[Key, Row]:
    """Return what an epoch makes of the contents of a table."""
    width = len(shape.key)
    found = {} if epoch.overwrite else dict(contents)
    for key in epoch.deletes:
        found.pop(canonical(key), None)
    for row in epoch.puts:
        found[canonical(row[:width])] = row
    return found


@dataclass(slots=True)
class PlayedIndex:
    """An index that shows any version of its table: it lags, or it leads."""

    shape: Shape
    column: str
    contents: Mapping[int, Contents]
    """The table's at each version."""
    chance: random.Random
    oldest: int = 0
    """It shows none before this: their changes are expired."""

    def iter_keys_having(
        self, values: pa.Array, *, near: int | None = None
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        shown = self.chance.choice([v for v in self.contents if v >= self.oldest])
        wanted = {canonical(value) for value in values.to_pylist()}
        place = self.shape.columns.names.index(self.column)
        rows = [row for row in self.contents[shown].values() if canonical(row[place]) in wanted]
        keys = table_of(self.shape, rows).select(list(self.shape.key))
        return shown, iter([keys.slice(at, 1) for at in range(keys.num_rows)])


@dataclass(slots=True)
class DictBase:
    """A table that is a dictionary per version (`BaseTable`)."""

    shape: Shape
    contents: dict[int, dict[Key, Row]]
    commands: dict[int, set[Key]]
    """The keys that the commands of each version touched."""
    indexes: Mapping[str, Any]

    @property
    def may_lack_key(self) -> bool:
        return self.shape.is_kept

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        return hash_keys(keys, seed=7)

    def is_indexed(self, column: str) -> bool:
        return column in self.indexes

    def index(self, column: str) -> Index | None:
        return self.indexes.get(column)

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        return hash_range.cut(2)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        if net:
            pairs = self._pairs(before, after, hash_range)
            return pairs, np.full(len(pairs), after)
        found, versions = [self._pairs(before, before, hash_range)], []
        for version in range(before + 1, after + 1):
            found.append(self._pairs(version - 1, version, hash_range))
            versions += [version] * len(found[-1])
        return Pairs.concat(found), np.array(versions, dtype=np.int64)

    def _pairs(self, before: int, after: int, hash_range: HashRange) -> Pairs:
        old, new = self.contents[before], self.contents[after]
        every = (self.commands[v] for v in self.commands if before < v <= after)
        keys = sorted(set().union(*every), key=repr)
        sides = []
        for side in (old, new):
            absent = (None,) * len(self.shape.columns)
            rows = table_of(self.shape, [side.get(key, absent) for key in keys])
            sides.append((rows, np.array([key in side for key in keys], dtype=np.bool_)))
        pairs = Pairs(sides[0][0], sides[1][0], sides[0][1], sides[1][1]).drop_absent()
        own = pairs.keys(self.shape.key)
        return pairs.filter(self._within(own, hash_range)) if len(pairs) else pairs

    def look_up(self, keys: pa.RecordBatch, version: int | None) -> LookedUpRows:
        rows = {} if version is None else self.contents[version]
        wanted = [canonical(tuple(key.values())) for key in keys.to_pylist()]
        absent = (None,) * len(self.shape.columns)
        found = table_of(self.shape, [rows.get(key, absent) for key in wanted])
        return LookedUpRows(found, np.array([key in rows for key in wanted], dtype=np.bool_))

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> pa.RecordBatch:
        if version is None:
            return empty_batch(self.shape.columns)
        rows = table_of(self.shape, self.contents[version].values())
        return rows.filter(pa.array(self._within(rows, hash_range)))

    def _within(self, rows: pa.RecordBatch, hash_range: HashRange) -> Any:
        if not rows.num_rows:
            return np.zeros(0, dtype=np.bool_)
        hashes = self.hashes([rows.column(name) for name in self.shape.key])
        return np.array([int(hash_) in hash_range for hash_ in hashes], dtype=np.bool_)


@dataclass(slots=True)
class World:
    """The tables of the cases, empty at first; every one at version 0."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    shapes: Mapping[str, Shape] = field(default_factory=lambda: TABLES)
    bases: dict[str, DictBase] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            contents: dict[int, dict[Key, Row]] = {0: {}}
            indexes = {
                column: PlayedIndex(shape, column, contents, self.chance)
                for column in shape.indexes
            }
            self.bases[name] = DictBase(shape, contents, {0: set()}, indexes)

    def open(self, scan: Scan) -> BaseTable:
        return self.bases[scan.path]

    def apply(self, epoch: Epoch) -> int:
        """Commit an epoch; return its version."""
        base = self.bases[epoch.table]
        newest = max(base.contents)
        contents = applied(base.shape, base.contents[newest], epoch)
        base.contents[newest + 1] = contents
        keys = {canonical(row[: len(base.shape.key)]) for row in (*epoch.puts, *epoch.deletes)}
        base.commands[newest + 1] = keys | (
            set(base.contents[newest]) if epoch.overwrite else set()
        )
        return newest + 1

    def known_versions(self, path: str) -> list[int]:
        """Return the versions of a table, the oldest first."""
        return sorted(self.bases[path].contents)

    def contents(self, at: Mapping[str, int]) -> Callable[[Scan], Iterable[Row]]:
        """Return what tells the rows of a scan at a position."""

        def rows(scan: Scan) -> Iterable[Row]:
            version = at[scan.path] if scan.version is None else scan.version
            return self.bases[scan.path].contents[version].values()

        return rows


def records(rows: pa.RecordBatch) -> list[Row]:
    """Return rows as tuples."""
    return [tuple(row.values()) for row in rows.to_pylist()]


def changes(pairs: Pairs) -> list[tuple[Row | None, Row | None]]:
    """Return pairs as tuples of an old and a new row."""
    return [
        (tuple(old.values()) if has_old else None, tuple(new.values()) if has_new else None)
        for old, new, has_old, has_new in zip(
            pairs.old.to_pylist(), pairs.new.to_pylist(), pairs.has_old, pairs.has_new, strict=True
        )
    ]
