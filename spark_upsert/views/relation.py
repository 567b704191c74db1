"""Relations: what each node of a plan gives, at a position and between two of them.

A *position* names one epoch of each table that a plan reads live; `V(p)` is what the batch query
gives at ``p``. A *step* goes from one position to a later one. A relation has at most one row per
key, and tells four things:

    spans(step)         the rows of the keys that the step touched, and when each is there
    look_up(keys, at)   the rows of whole keys
    having(values, at)  the rows whose columns have some values, NULL joining nothing
    scan(at)            all rows

The rule above all: an old row is computed wholly at the position before the step, a new one wholly
at the one behind it. An operator finds a *superset* of the keys that a step changed, looks each up
on both sides, and drops what is the same. Rejected: to look the other side up at the newest
version, which gives rows of a state that never was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, Positions, Words
from spark_upsert.plan.join_keys import (
    NOWHERE,
    codes,
    firsts,
    is_among,
    join_codes,
    joinable,
    no_rows,
    places,
)
from spark_upsert.plan.nodes import Scan
from spark_upsert.views.intervals import Spans
from spark_upsert.views.pairs import Pairs, RelationRows, columns_of, concat, taken

At: TypeAlias = Mapping[str, int]
"""A position: the version of each table that is read live, by its path. A table that is missing is
empty there."""

NOTHING: At = {}
"""Before all."""


@dataclass(frozen=True, slots=True)
class Step:
    """From a position to a later one, at once or epoch by epoch."""

    before: At
    after: At
    epochs: tuple[tuple[str, int], ...] = ()
    """The path and the version of each epoch on the way, in order: each is a time of its own, the
    first is 1. Without any the position behind the step is the time 1."""
    hash_range: HashRange = field(default=ALL_HASHES, kw_only=True)
    """Range of the key hashes of the table that moved: the step is only what its rows there
    changed. Only where `Relation.depends_on_one_row` holds of that table."""
    within: HashRange = field(default=ALL_HASHES, kw_only=True)
    """Range of the key hashes of the driving table: the step is only what changed of the rows that
    come of its rows there. For any step; tables that do not drive are asked for all that changed
    (`whole`)."""

    @property
    def times(self) -> int:
        """The last of its times; the position before it is the time 0."""
        return max(1, len(self.epochs))

    def whole(self) -> Step:
        """Return the step, whatever drives."""
        return self if self.within == ALL_HASHES else replace(self, within=ALL_HASHES)


class LookedUpRows(NamedTuple):
    """Rows beside the keys that were looked up."""

    rows: RelationRows
    """One for each key; of NULLs where there is none."""
    present: Mask


class Driving(NamedTuple):
    """The table that stands leftmost in a plan: each row of the plan comes of one of its rows.

    (A row of a full join may come of the right side alone; the right key then stands for it.)
    """

    columns: tuple[str, ...]
    """Columns that hold the table's key."""
    hashes: Callable[[Sequence[pa.Array]], Words]
    """Hashes keys as the table does."""
    chunks: Callable[[At, HashRange], list[HashRange]]
    """Cuts a range at a position so that the rows of each piece fit in memory."""

    def within(self, rows: RelationRows, hash_range: HashRange) -> Mask:
        """Return which rows have a driving key with a hash in a range."""
        if hash_range == ALL_HASHES:
            return np.ones(rows.num_rows, dtype=np.bool_)
        if not rows.num_rows:
            return np.zeros(0, dtype=np.bool_)
        hashes = self.hashes(columns_of(rows, self.columns))
        inside = (hashes >= np.uint64(hash_range.first)) & (hashes <= np.uint64(hash_range.last))
        return np.asarray(inside, dtype=np.bool_)


class Source(NamedTuple):
    """A table of which each row of a relation is made, and the columns that hold its key."""

    scan: Scan
    columns: tuple[str, ...]
    """Columns of the relation, in the order of the table's key."""
    is_kept: bool
    """Whether the table keeps a view, so that its rows are mended where that comes from."""

    def renamed(self, names: Mapping[str, str]) -> Iterator[Source]:
        """Yield the source under other names of its columns, if all of them have one."""
        if names.keys() >= set(self.columns):
            yield self._replace(columns=tuple(names[column] for column in self.columns))


class Formulas(Protocol):
    """The formulas of a node, and the rows met so far for which one has no value (`failing`)."""

    failed: int
    """How often there was no value."""

    def require_values(self, positions: Sequence[At]) -> None:
        """Raise if a row that was met has no value at each of some positions."""
        ...

    def forget(self) -> None:
        """Forget what was met."""
        ...


class Relation(Protocol):
    """The rows of a node."""

    @property
    def schema(self) -> pa.Schema:
        """The columns; any may be NULL."""
        ...

    @property
    def key(self) -> tuple[str, ...] | None:
        """The columns that identify a row; None where a projection drops one, as a plan that is
        not run may: what is summed carries them (`bind_group`).
        """
        ...

    @property
    def may_lack_key(self) -> bool:
        """Whether a row may have NULL in all columns of its key, as the group NULL has."""
        ...

    @property
    def dropped(self) -> str | None:
        """The key column that a projection has dropped; None while there is a key."""
        ...

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tables that a row is made of, as far as its columns tell: the leftmost first."""
        ...

    @property
    def driving(self) -> Driving:
        """The leftmost table; without a key, that of a relation below this one."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The tables that are read live, in the order of the plan; one twice if it comes twice."""
        ...

    @property
    def formulas(self) -> tuple[Formulas, ...]:
        """The formulas of this node and of all nodes below it."""
        ...

    @property
    def worth_scanning(self) -> float:
        """From which share of changed rows on two scans cost less than look-ups (`views.view`)."""
        ...

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether each output row depends on at most one row of a table."""
        ...

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless `having` finds rows by some of these columns without reading all."""
        ...

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows of keys that a step touched, at all of its times.

        Keys that did not change may be among them. All rows of a key are in one piece. A piece
        holds about as many rows as a piece of an index (`CHUNK_ROWS`), however many rows a changed
        row reaches.
        """
        ...

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows of keys (of the columns `key`), in any order; none twice."""
        ...

    def having(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows that hold one row of ``values`` in the columns of ``values``.

        A value may come twice, and NULL in it joins nothing. Only rows with a driving-key hash in
        the range are given, each once; in pieces, as an index names their keys.
        """
        ...

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows with a driving-key hash in a range."""
        ...


def changes_of(relation: Relation, step: Step) -> Pairs:
    """Return what a step changed, as it leaves a plan: rows that are equal are dropped.

    The first step, from nothing, inserts all rows.
    """
    if not step.before:
        hash_range = step.hash_range.intersect(step.within)
        return Pairs.of_inserts(relation.scan(step.after, hash_range))
    pieces = [pairs for pairs, _ in timed_changes_of(relation, step)]
    return Pairs.concat([Pairs.none(relation.schema), *pieces])


def timed_changes_of(relation: Relation, step: Step) -> Iterator[tuple[Pairs, Positions]]:
    """Yield what each epoch of a step changed (`changes_of`), and the time of each pair."""
    assert relation.key is not None
    for spans in relation.spans(step):
        pairs, at = spans.changes(relation.key, step.times)
        differs = pairs.differs()
        yield pairs.where(differs), at[differs]


def whole(pieces: Iterable[RelationRows], schema: pa.Schema) -> RelationRows:
    """Return the rows of all pieces."""
    return concat([no_rows(schema), *pieces])


def aligned(looked: RelationRows, keys: RelationRows) -> LookedUpRows:
    """Return found rows, which hold the columns of their keys, beside the keys."""
    wanted_codes, row_codes = codes(keys.columns, columns_of(looked, keys.schema.names))
    at = places(wanted_codes, row_codes)
    return LookedUpRows(taken(looked, at), at != NOWHERE)


def among(rows: RelationRows, values: RelationRows) -> Mask:
    """Return which rows hold, in the columns of ``values``, one of their rows; NULL joins none."""
    row_columns = columns_of(rows, values.schema.names)
    return places(*join_codes(row_columns, values.columns)) != NOWHERE


def with_key_of(rows: RelationRows, others: RelationRows, key: Sequence[str]) -> Mask:
    """Return which rows have the key of another one; NULL is NULL, as keys identify rows."""
    return is_among(columns_of(rows, key), columns_of(others, key))


def matching(rows: RelationRows, values: RelationRows) -> RelationRows:
    """Return the rows that `among` keeps."""
    return rows.filter(pa.array(among(rows, values)))


def distinct(rows: RelationRows) -> RelationRows:
    """Return each row once, by the equality of the engine."""
    if not rows.num_columns:
        return rows.slice(0, 1)
    first_rows = firsts(codes(rows.columns)[0])
    if len(first_rows) == rows.num_rows:
        return pa.RecordBatch.from_arrays(rows.columns, schema=nullable(rows.schema))
    return taken(rows, first_rows)


def distinct_values(rows: RelationRows) -> RelationRows:
    """Return each row that can join once: without NULL."""
    can = joinable(rows.columns)
    return distinct(rows if can is None else rows.filter(pa.array(can)))


def renamed(rows: RelationRows, columns: Sequence[str], names: Sequence[str]) -> RelationRows:
    """Return some columns under other names."""
    fields = [
        rows.schema.field(column).with_name(name)
        for column, name in zip(columns, names, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns_of(rows, columns), schema=pa.schema(fields))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return columns any of which may be NULL."""
    return pa.schema([pa.field(own_field.name, own_field.type) for own_field in schema])
