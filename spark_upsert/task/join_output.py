"""A join's output: shape, matches, and rows in batches bounded by rows and bytes (`JoinOutput`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions, Words, is_hashable, is_text
from spark_upsert.core.names import find_repeated, has_column
from spark_upsert.errors import PlanError
from spark_upsert.plan.join_keys import (
    NOWHERE,
    cast_columns,
    common_type,
    empty_batch,
    joinable,
    take_or_null,
)
from spark_upsert.plan.nodes import Join, JoinType

BATCH_BYTES = 16 << 20
"""Maximum bytes in a join's batch, except for a single larger row."""


class Widths:
    """Byte widths of a batch's rows; approximate for lists, structs and maps."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._fixed = 0
        self._varying = np.zeros(rows.num_rows, dtype=np.int64)
        for column in rows.columns:
            self._add(column)
        self.most = self._fixed + int(self._varying.max(initial=0))
        """The maximum row width."""

    def _add(self, column: pa.Array) -> None:
        if is_text(column.type):
            lengths, unit = pc.binary_length(column), 1
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            items = column.flatten()
            lengths, unit = pc.list_value_length(column), 1 + items.nbytes // max(1, len(items))
        else:
            self._fixed += 1 + column.nbytes // max(1, len(column))
            return
        self._varying += unit * np.asarray(lengths.fill_null(0), dtype=np.int64)

    def of(self, places: Positions) -> Positions:
        """Return the byte widths at row positions; `NOWHERE` has the width of a null row."""
        if not len(self._varying):
            return np.full(len(places), self._fixed)
        return self._fixed + np.where(places == NOWHERE, 0, self._varying[places])


SHOWS_LEFT_ALONE = frozenset({JoinType.LEFT, JoinType.FULL, JoinType.ANTI})
"""Joins returning left rows without a match."""

SHOWS_RIGHT_ALONE = frozenset({JoinType.RIGHT, JoinType.FULL})
"""Joins returning right rows without a match."""

SHOWS_LEFT_ONLY = frozenset({JoinType.SEMI, JoinType.ANTI})
"""Joins without the right side's columns, which only test for a match."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A join side: its columns and key columns."""

    schema: pa.Schema
    keys: tuple[str, ...]
    types: tuple[pa.DataType | None, ...] = ()
    """The types in which keys are compared; by default the columns' types."""

    def keys_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns."""
        columns = [rows.column(name) for name in self.keys]
        return cast_columns(columns, self.types) if self.types else columns

    def has_key(self, rows: pa.RecordBatch) -> Mask | None:
        """Return which rows have a key without a null, None if all have: others match nothing."""
        return joinable(self.keys_of(rows))

    def split(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows with a key without nulls, and the others."""
        has_key = self.has_key(rows)
        if has_key is None:
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(has_key)), rows.filter(pa.array(~has_key))

    @property
    def empty_rows(self) -> pa.RecordBatch:
        """Return no rows."""
        return empty_batch(self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Both sides of a join, and its output columns."""

    kind: JoinType
    left: Side
    right: Side
    pairs: pa.Schema
    """Both sides' columns concatenated; a name may occur on both."""
    schema: pa.Schema
    """The output columns."""

    @classmethod
    def of(cls, node: Join, left: pa.Schema, right: pa.Schema) -> Shape:
        """Return a node's shape for its input columns."""
        if not node.on:
            raise PlanError(
                "a join is on one column of each side at least.",
                hint="say in 'on' which are equal.",
            )
        for names, schema in ((node.left_keys, left), (node.right_keys, right)):
            for name in names:
                if not has_column(schema, name):
                    raise PlanError.missing_column(name, schema.names)
        is_one = not node.shows_both_keys
        keys = [left.field(on.left) for on in node.on], [right.field(on.right) for on in node.on]
        require_types(*keys, may_widen=is_one and node.how not in SHOWS_RIGHT_ALONE)
        types = tuple(
            common_type(one.type, right_column.type)
            for one, right_column in zip(*keys, strict=True)
        )
        pairs = pair_schema = schema_of(node.how, left, right)
        if is_one and node.how not in SHOWS_LEFT_ONLY:
            build_columns = list(pairs)[len(left) :]
            pair_schema = pa.schema(
                [
                    *list(pairs)[: len(left)],
                    *(f for f in build_columns if f.name not in node.right_keys),
                ]
            )
        require_names(pair_schema)
        sides = Side(left, node.left_keys, types), Side(right, node.right_keys, types)
        return cls(node.how, *sides, pairs, pair_schema)

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the join's output columns from concatenated rows of both sides."""
        if self.schema is self.pairs:
            return rows
        columns, right = (
            rows.columns[: len(self.left.schema)],
            rows.columns[len(self.left.schema) :],
        )
        if self.kind in SHOWS_RIGHT_ALONE:
            for left_key, right_key in zip(self.left.keys, self.right.keys, strict=True):
                at = self.left.schema.get_field_index(left_key)
                key = right[self.right.schema.get_field_index(right_key)]
                columns[at] = pc.coalesce(columns[at], key)
        columns += [
            column
            for field, column in zip(self.right.schema, right, strict=True)
            if field.name not in self.right.keys
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def schema_of(kind: JoinType, left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """Return a join's columns: the left side's, then the right side's."""
    if kind in SHOWS_LEFT_ONLY:
        return left.remove_metadata()
    return pa.schema(
        [
            *_fields(left, may_be_null=kind in SHOWS_RIGHT_ALONE),
            *_fields(right, may_be_null=kind in SHOWS_LEFT_ALONE),
        ]
    )


def _fields(schema: pa.Schema, *, may_be_null: bool) -> list[pa.Field]:
    return [field.with_nullable(True) if may_be_null else field for field in schema]


def require_types(
    left: Sequence[pa.Field], right: Sequence[pa.Field], *, may_widen: bool = False
) -> None:
    """Raise if paired keys have different types, or no common type."""
    for one, right_type in zip(left, right, strict=True):
        is_alike = one.type == right_type.type
        if not is_alike and not (may_widen and common_type(one.type, right_type.type)):
            raise PlanError(
                f"keys of one type are joined, but '{one.name}' is {one.type} and "
                f"'{right_type.name}' is {right_type.type}.",
                hint="cast one of them in a projection below the join.",
                left=one.name,
                right=right_type.name,
            )
        if not is_hashable(one.type):
            raise PlanError(
                f"'{one.name}' cannot be joined on, because it is {one.type}.",
                hint="cast both sides in a projection below the join, to a text for instance.",
                left=one.name,
                right=right_type.name,
            )


def require_names(schema: pa.Schema) -> None:
    """Raise if two columns have the same name."""
    repeated = find_repeated(schema.names, is_exact=True)
    if repeated is not None:
        name, _ = repeated
        raise PlanError(
            f"both sides have a column '{name}'.",
            hint="rename it, or leave it out, by a projection below the join.",
            column=name,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Matches between two sides: each entry is a left row with right rows.

    ``starts`` are positions in the right rows. An entry without right rows (a start of `NOWHERE`)
    shows only its left row, and one without a left row (a left of `NOWHERE`) only its right rows.
    """

    left: Positions
    starts: Positions
    counts: Positions

    @classmethod
    def of(cls, kind: JoinType, starts: Positions, counts: Positions) -> Matches:
        """Return the left rows' matches by join type, from match starts and counts."""
        has_match = counts > 0
        if kind in SHOWS_LEFT_ONLY:
            left = np.flatnonzero(has_match if kind is JoinType.SEMI else ~has_match)
            return cls.unmatched_left(left)
        if kind in SHOWS_LEFT_ALONE:
            left = np.arange(len(counts))
            return cls(left, np.where(has_match, starts, NOWHERE), np.maximum(counts, 1))
        left = np.flatnonzero(has_match)
        return cls(left, starts[left], counts[left])

    @classmethod
    def unmatched_left(cls, left: Positions) -> Matches:
        """Return left rows without a match."""
        return cls(left, np.full(len(left), NOWHERE), np.ones(len(left), dtype=np.int64))

    @classmethod
    def unmatched_right(cls, right: Positions) -> Matches:
        """Return right rows without a match."""
        return cls(np.full(len(right), NOWHERE), right, np.ones(len(right), dtype=np.int64))

    def merge(self, ranks: Words, other: Matches, other_ranks: Words) -> Matches:
        """Return these and other matches merged by rank; for equal ranks these come first."""
        order = np.argsort(np.concatenate([ranks, other_ranks]), kind="stable")
        return Matches(
            np.concatenate([self.left, other.left])[order],
            np.concatenate([self.starts, other.starts])[order],
            np.concatenate([self.counts, other.counts])[order],
        )


class JoinOutput:
    """The rows for given matches, created one batch at a time.

    Parameters
    ----------
    schema : pyarrow.Schema
        The output schema: without right columns for a join showing only the left side.
    matches : Matches
    left, right : pyarrow.RecordBatch
        The rows referenced by the matches.
    order : numpy.ndarray of int64, optional
        The right row for each position in `Matches`; by default the position.
    right_widths : Widths, optional
        The right rows' widths, if several joins share them; by default computed here.
    """

    def __init__(
        self,
        schema: pa.Schema,
        matches: Matches,
        left: pa.RecordBatch,
        right: pa.RecordBatch,
        order: Positions | None = None,
        right_widths: Widths | None = None,
    ) -> None:
        self._widths = Widths(left), right_widths or Widths(right)
        self._schema = schema
        self._matches = matches
        self._ends = np.cumsum(matches.counts)
        self._left = left
        self._right = right
        self._order = order
        self._given = 0

    @property
    def rows_left(self) -> int:
        """Number of rows not yet returned."""
        return (int(self._ends[-1]) if len(self._ends) else 0) - self._given

    def next(self, rows_max: int, *, bytes_held: int = 0) -> pa.RecordBatch | None:
        """Return the next rows; None if there are no more, or if none fits.

        Returns at most `rows_max` rows, and together with the bytes already in the batch at most
        `BATCH_BYTES`; an empty batch has room for one row of any size.
        """
        count = min(rows_max, self.rows_left)
        if not count:
            return None
        left, right = self._row_indices(count)
        count = self._count_fitting(left, right, BATCH_BYTES - bytes_held)
        if not count and bytes_held:
            return None
        count = max(1, count)
        self._given += count
        columns = take_or_null(self._left.columns, left[:count])
        if right is not None:
            columns += take_or_null(self._right.columns, right[:count])
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _row_indices(self, count: int) -> tuple[Positions, Positions | None]:
        """Return the left and right row positions for the next rows."""
        at = np.arange(self._given, self._given + count)
        entries = np.searchsorted(self._ends, at, side="right")
        matches = self._matches
        left = matches.left[entries]
        if len(self._schema) == self._left.num_columns:
            return left, None
        starts = matches.starts[entries]
        within = at - (self._ends[entries] - matches.counts[entries])
        row_indices = np.where(starts == NOWHERE, NOWHERE, starts + within)
        if self._order is not None and len(self._order):
            row_indices = np.where(row_indices == NOWHERE, NOWHERE, self._order[row_indices])
        return left, row_indices

    def _count_fitting(self, left: Positions, right: Positions | None, bytes_max: int) -> int:
        """Return how many of the joined rows fit into a byte limit."""
        sides = [(left, self._widths[0])]
        if right is not None:
            sides.append((right, self._widths[1]))
        if len(left) * sum(widths.most for _, widths in sides) <= bytes_max:
            return len(left)
        reached = np.cumsum(sum(widths.of(row_indices) for row_indices, widths in sides))
        return int(np.searchsorted(reached, bytes_max, side="right"))


class BatchCoalescer:
    """Combines several joins' rows into full batches.

    Parameters
    ----------
    batch_rows : int
        Rows in a full batch; a batch with `BATCH_BYTES` is full, too.
    """

    def __init__(self, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        self.clear()

    def clear(self) -> None:
        """Discard the buffered rows."""
        self._pieces: list[pa.RecordBatch] = []
        self.rows = self._bytes = 0

    def add(self, joined: JoinOutput) -> pa.RecordBatch | None:
        """Buffer rows; return a batch once full, else None."""
        piece = joined.next(self._batch_rows - self.rows, bytes_held=self._bytes)
        if piece is not None:
            self._pieces.append(piece)
            self.rows += piece.num_rows
            self._bytes += piece.nbytes
        # What has rows left has none that fits.
        return self.flush() if self.rows == self._batch_rows or joined.rows_left else None

    def flush(self) -> pa.RecordBatch | None:
        """Return the buffered rows; None if there are none."""
        pieces = self._pieces
        self.clear()
        return pa.concat_batches(pieces) if len(pieces) > 1 else next(iter(pieces), None)
