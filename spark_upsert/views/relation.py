"""Relations (`Relation`): the rows of a plan node at a position, and between two positions.

A *position* is one epoch per live table, a *step* two positions. Old rows are computed at the
first, new rows at the second; a superset of the changed keys is looked up at both.
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
    empty_batch,
    first_indices,
    first_occurrences,
    is_among,
    join_codes,
    joinable,
)
from spark_upsert.plan.nodes import Scan
from spark_upsert.views.intervals import (
    Pairs,
    RelationRows,
    Spans,
    concat,
    select_columns,
    take_rows,
)

At: TypeAlias = Mapping[str, int]
"""A position: the version of each live table, by its path. A missing table is empty there."""

NOTHING: At = {}
"""Before all."""


@dataclass(frozen=True, slots=True)
class Step:
    """From a position to a later one, directly or epoch by epoch."""

    before: At
    after: At
    epochs: tuple[tuple[str, int], ...] = ()
    """The path and the version of each intermediate epoch, in order: each is a separate time,
    starting at 1. Without any, the position after the step is the time 1.
    """
    hash_range: HashRange = field(default=ALL_HASHES, kw_only=True)
    """Key hash range in the changed table: the step covers only the changes from its rows
    there. Valid only if `Relation.depends_on_one_row` holds for that table.
    """
    within: HashRange = field(default=ALL_HASHES, kw_only=True)
    """Key hash range in the driving table: the step covers only changes to the rows derived from
    its rows there. Valid for any step; all changes are read from other tables (`concat_pieces`).
    """

    @property
    def last_time(self) -> int:
        """The step's last time; the position before it is the time 0."""
        return max(1, len(self.epochs))

    def unrestricted(self) -> Step:
        """Return the step, whatever drives."""
        return self if self.within == ALL_HASHES else replace(self, within=ALL_HASHES)


class LookedUpRows(NamedTuple):
    """Rows aligned with the look-up keys."""

    rows: RelationRows
    """One row per key; all NULL if there is none."""
    present: Mask


class Driving(NamedTuple):
    """A plan's leftmost table: each plan row derives from one of its rows.

    (A full join's row may derive from the right side alone, and then has the right key.)
    """

    columns: tuple[str, ...]
    """The table's key columns."""
    hashes: Callable[[Sequence[pa.Array]], Words]
    """Hashes keys as the table does."""
    chunks: Callable[[At, HashRange], list[HashRange]]
    """Cuts a range at a position into pieces with rows fitting in memory."""

    def range_mask(self, rows: RelationRows, hash_range: HashRange) -> Mask:
        """Return which rows have a driving key with a hash in a range."""
        if hash_range == ALL_HASHES:
            return np.ones(rows.num_rows, dtype=np.bool_)
        if not rows.num_rows:
            return np.zeros(0, dtype=np.bool_)
        hashes = self.hashes(select_columns(rows, self.columns))
        inside = (hashes >= np.uint64(hash_range.first)) & (hashes <= np.uint64(hash_range.last))
        return np.asarray(inside, dtype=np.bool_)


class Source(NamedTuple):
    """A base table for each row in a relation, and the columns with its key."""

    scan: Scan
    columns: tuple[str, ...]
    """The relation's columns, in the table's key order."""
    is_kept: bool
    """Whether the table materializes a view: its rows are repaired in the base tables."""

    def rename(self, names: Mapping[str, str]) -> Iterator[Source]:
        """Yield the source with renamed columns, if all of them have a new name."""
        if names.keys() >= set(self.columns):
            yield self._replace(columns=tuple(names[column] for column in self.columns))


class Formulas(Protocol):
    """A node's formulas, and the rows read so far for which one has no value (`failing`)."""

    failed: int
    """How often there was no value."""

    def require_values(self, positions: Sequence[At]) -> None:
        """Raise if a recorded row lacks a value at every given position."""
        ...

    def clear(self) -> None:
        """Clear the recorded rows."""
        ...


class Relation(Protocol):
    """A node's rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns; any may be NULL."""
        ...

    @property
    def key(self) -> tuple[str, ...] | None:
        """The columns identifying a row; None if a projection drops one, as in a plan that is not
        run directly: grouped rows carry them (`bind_group`).
        """
        ...

    @property
    def may_lack_key(self) -> bool:
        """Whether a row may have NULL in all its key columns, as the NULL group does."""
        ...

    @property
    def dropped(self) -> str | None:
        """The key column dropped by a projection; None while there is a key."""
        ...

    @property
    def sources(self) -> tuple[Source, ...]:
        """The base tables for a row, as far as its columns identify them: the leftmost first."""
        ...

    @property
    def driving(self) -> Driving:
        """The leftmost table; without a key, that of a relation below this one."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """The tables read live, in plan order, repeated as often as they occur."""
        ...

    @property
    def formulas(self) -> tuple[Formulas, ...]:
        """The formulas in this node and in all nodes below it."""
        ...

    @property
    def worth_scanning(self) -> float:
        """The changed row share above which two scans cost less than look-ups (`views.view`)."""
        ...

    def depends_on_one_row(self, path: str) -> bool:
        """Return whether each output row depends on at most one row in a table."""
        ...

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless `find_matching` finds rows by some of these columns without a full read."""
        ...

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step, at all its times.

        They may include unchanged keys. All rows with a key are in one piece. A piece
        has about as many rows as an index piece (`CHUNK_ROWS`), regardless of how many rows a
        changed row affects.
        """
        ...

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for distinct keys (columns `key`), in any order."""
        ...

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows matching one row in ``values`` on its columns.

        A value may be repeated, and NULL in it joins nothing. Only rows with a driving key hash in
        the range are returned, each once; in pieces, by the index's key order.
        """
        ...

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows with a driving-key hash in a range."""
        ...


def changes_of(relation: Relation, step: Step) -> Pairs:
    """Return a step's changes, as they leave a plan: equal rows are dropped.

    The first step, from nothing, inserts all rows.
    """
    if not step.before:
        hash_range = step.hash_range.intersect(step.within)
        return Pairs.of_inserts(relation.scan(step.after, hash_range))
    pieces = [pairs for pairs, _ in timed_changes_of(relation, step)]
    return Pairs.concat([Pairs.empty(relation.schema), *pieces])


def timed_changes_of(relation: Relation, step: Step) -> Iterator[tuple[Pairs, Positions]]:
    """Yield each epoch's changes in a step (`changes_of`), with each pair's time."""
    assert relation.key is not None
    for spans in relation.spans(step):
        pairs, at = spans.changes(relation.key, step.last_time)
        differs = pairs.difference_mask()
        yield pairs.filter(differs), at[differs]


def concat_pieces(pieces: Iterable[RelationRows], schema: pa.Schema) -> RelationRows:
    """Return all pieces' rows."""
    return concat([empty_batch(schema), *pieces])


def align_rows(looked: RelationRows, keys: RelationRows) -> LookedUpRows:
    """Return looked-up rows, which include their key columns, aligned with the keys."""
    wanted_codes, row_codes = codes(keys.columns, select_columns(looked, keys.schema.names))
    at = first_indices(wanted_codes, row_codes)
    return LookedUpRows(take_rows(looked, at), at != NOWHERE)


def match_mask(rows: RelationRows, values: RelationRows) -> Mask:
    """Return a mask: the rows matching one of ``values`` on its columns; NULL joins none."""
    row_columns = select_columns(rows, values.schema.names)
    return first_indices(*join_codes(row_columns, values.columns)) != NOWHERE


def key_match_mask(rows: RelationRows, others: RelationRows, key: Sequence[str]) -> Mask:
    """Return a mask: the rows whose key is among the others'; NULL equals NULL, as in keys."""
    return is_among(select_columns(rows, key), select_columns(others, key))


def filter_matching(rows: RelationRows, values: RelationRows) -> RelationRows:
    """Return the rows kept by `match_mask`."""
    return rows.filter(pa.array(match_mask(rows, values)))


def distinct_rows(rows: RelationRows) -> RelationRows:
    """Return the distinct rows, by the engine's equality."""
    if not rows.num_columns:
        return rows.slice(0, 1)
    first_rows = first_occurrences(codes(rows.columns)[0])
    if len(first_rows) == rows.num_rows:
        return pa.RecordBatch.from_arrays(rows.columns, schema=as_nullable(rows.schema))
    return take_rows(rows, first_rows)


def distinct_values(rows: RelationRows) -> RelationRows:
    """Return the distinct joinable rows: without NULL."""
    can = joinable(rows.columns)
    return distinct_rows(rows if can is None else rows.filter(pa.array(can)))


def rename_columns(
    rows: RelationRows, columns: Sequence[str], names: Sequence[str]
) -> RelationRows:
    """Return some columns under other names."""
    fields = [
        rows.schema.field(column).with_name(name)
        for column, name in zip(columns, names, strict=True)
    ]
    return pa.RecordBatch.from_arrays(select_columns(rows, columns), schema=pa.schema(fields))


def as_nullable(schema: pa.Schema) -> pa.Schema:
    """Return the columns, all nullable."""
    return pa.schema([pa.field(own_field.name, own_field.type) for own_field in schema])
