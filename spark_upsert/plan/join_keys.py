"""Key equality for joins, groups and look-ups: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0.

In a join NULL matches nothing (`joinable`). Rows in memory get equal codes for equal keys
(`codes`), a `KeyIndex` looks up batches, groups use `canonical` columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import convert, try_convert
from spark_upsert.core.key_hash import HASH_BITS, hash_keys, is_injective, order_of
from spark_upsert.core.keys import (
    Mask,
    Positions,
    Words,
    compare,
    equal_rows,
    fixed_words,
    is_text,
    ordered_words,
    validity,
)

NOWHERE = -1
"""Index for a missing match, and code for a row that matches nothing."""

Columns = Sequence[pa.Array]
"""Columns of equal length."""


def codes(*sides: Columns) -> list[Positions]:
    """Number rows by value across all sides; codes ascend by first appearance."""
    lengths = [len(side[0]) if side else 0 for side in sides]
    numbers = None
    for parts in zip(*sides, strict=True):
        column = parts[0] if len(parts) == 1 else pa.concat_arrays(list(map(_plain, parts)))
        for word in _numbered(column):
            if numbers is None:
                numbers = word
                continue
            count = int(word.max(initial=0)) + 1
            # Numbered anew behind each column, so that the product stays below 2 ** 63.
            numbers = _dense(pa.array(numbers * count + word))
    if numbers is None:
        numbers = np.zeros(sum(lengths), dtype=np.int64)
    return np.split(numbers, np.cumsum(lengths)[:-1])


def joinable(columns: Columns) -> Mask | None:
    """Return a mask for rows without a NULL key, which can join; None if all can."""
    masks = [mask for column in columns if (mask := validity(column)) is not None]
    return np.logical_and.reduce(masks) if masks else None


def join_codes(left: Columns, right: Columns) -> tuple[Positions, Positions]:
    """Number rows by value (`codes`); a row with a NULL key gets `NOWHERE`."""
    masks = joinable(left), joinable(right)
    one, right_codes = (
        code_array if mask is None else np.where(mask, code_array, NOWHERE)
        for code_array, mask in zip(codes(left, right), masks, strict=True)
    )
    return one, right_codes


def canonical(column: pa.Array) -> pa.Array:
    """Return a column with equal bits for equal values: 0.0 for -0.0, and one NaN."""
    if not pa.types.is_floating(column.type):
        return column
    valid = validity(column)
    values = fixed_words(column)[0].view(np.float64)
    return pa.array(values, mask=None if valid is None else ~valid).cast(column.type)


def first_indices(wanted: Positions, among: Positions) -> Positions:
    """Return each code's first index in ``among``; `NOWHERE` if it is absent.

    The code `NOWHERE` never matches.
    """
    row_indices = np.flatnonzero(among != NOWHERE)[::-1]
    # The last entry is that of `NOWHERE`.
    table = np.full(max(wanted.max(initial=-1), among.max(initial=-1)) + 2, NOWHERE, dtype=np.int64)
    table[among[row_indices]] = row_indices
    return table[wanted]


def is_among(rows: Columns, others: Columns) -> Mask:
    """Return a mask for rows with a key in the other rows; NULL equals NULL."""
    return first_indices(*codes(rows, others)) != NOWHERE


def matches(left: Positions, right: Positions) -> tuple[Positions, Positions]:
    """Return all index pairs with equal codes, ordered by the left index.

    The code `NOWHERE` never matches.
    """
    table = np.full(max(left.max(initial=-1), right.max(initial=-1)) + 2, NOWHERE, dtype=np.int64)
    matched_rows = np.flatnonzero(right >= 0)
    counts = np.bincount(right[matched_rows], minlength=len(table))
    if counts.max(initial=0) <= 1:  # No row has two partners: there is nothing to sort.
        table[right[matched_rows]] = matched_rows
        partners = table[left]
        matched = np.flatnonzero((left >= 0) & (partners != NOWHERE))
        return matched, partners[matched]
    order = matched_rows[np.argsort(right[matched_rows], kind="stable")]
    begins = np.cumsum(counts) - counts
    counts = np.where(left >= 0, counts[left], 0)
    ends = np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    return np.repeat(np.arange(len(left)), counts), order[np.repeat(begins[left], counts) + within]


def first_occurrences(numbers: Positions) -> Positions:
    """Return each code's first row index, ascending; codes must ascend by first appearance."""
    reached = np.maximum.accumulate(numbers)
    return np.flatnonzero(numbers > np.append(-1, reached[:-1])[: len(numbers)])


def _plain(column: pa.Array) -> pa.Array:
    """Convert text and binary columns to large types, with room for all sides."""
    if not is_text(column.type):
        return column
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if is_bytes else pa.large_string())


def _numbered(column: pa.Array) -> list[npt.NDArray[np.int64]]:
    """Return code arrays for a column; values are equal if all their codes are."""
    if is_text(column.type):
        return [_dense(column)]
    words = fixed_words(column)
    valid = validity(column)
    if valid is not None:
        words = [np.where(valid, word, np.uint64(0)) for word in words]
        words.append(valid.astype(np.uint64))
    return [_dense(pa.array(word)) for word in words]


def _dense(column: pa.Array) -> npt.NDArray[np.int64]:
    """Number a column's distinct values by first appearance."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False)).astype(np.int64)


_SEED = 0


class KeyIndex:
    """An index from keys to rows.

    Rows are sorted by key hash, so that one key's rows are adjacent (a *group*). The upper hash
    bits give the bucket.

    Parameters
    ----------
    keys : sequence of pyarrow.Array
        Key columns without nulls, in valid key types.
    """

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self._is_injective = is_injective([key.type for key in keys])
        hashes = hash_keys(keys, seed=_SEED)
        order = order_of(hashes)
        same = self._has_same_key(keys, hashes, order)
        if not bool((same == _equals_previous(hashes[order])).all()):
            # Two keys share a hash: among such rows, those of one key must be brought together.
            order = np.lexsort((codes(keys)[0], hashes))
            same = self._has_same_key(keys, hashes, order)
        begins = np.flatnonzero(~same)
        self.order = order
        """Row indices, sorted by group; rows in a group keep their order."""
        self.starts = begins
        """Each group's first index in `order`."""
        self.counts = np.diff(begins, append=len(order))
        """Each group's row count."""
        firsts = pa.array(order[begins])
        self._keys = [key.take(firsts) for key in keys]
        self._hashes = hashes[order[begins]]
        bits = max(1, len(begins).bit_length())
        self._shift = np.uint64(HASH_BITS - bits)
        sizes = np.bincount(self._bucket_of(self._hashes), minlength=1 << bits)
        self._buckets = np.concatenate([[0], np.cumsum(sizes)])

    def find(self, keys: Sequence[pa.Array]) -> Positions:
        """Return each key's group; `NOWHERE` if there is none."""
        hashes = hash_keys(keys, seed=_SEED)
        buckets = self._bucket_of(hashes)
        starts, ends = self._buckets[buckets], self._buckets[buckets + 1]
        groups = np.full(len(hashes), NOWHERE)
        rows = np.flatnonzero(starts < ends)
        while len(rows):
            at = starts[rows]
            is_match = self._is_at(keys, rows, at, self._hashes[at] == hashes[rows])
            groups[rows[is_match]] = at[is_match]
            rows = rows[~is_match]
            starts[rows] += 1
            rows = rows[starts[rows] < ends[rows]]
        return groups

    def _bucket_of(self, hashes: Words) -> Positions:
        return (hashes >> self._shift).astype(np.int64)

    def _is_at(
        self, keys: Sequence[pa.Array], rows: Positions, at: Positions, same_hash: Mask
    ) -> Mask:
        """Return which keys equal their candidate group's key; ``same_hash`` marks equal hashes."""
        if self._is_injective:
            return same_hash
        likely = np.flatnonzero(same_hash)
        sides = ((self._keys, at), (keys, rows))
        taken = [
            [key.take(pa.array(row_indices[likely])) for key in side] for side, row_indices in sides
        ]
        is_match = same_hash.copy()
        is_match[likely] = equal_rows(*taken)
        return is_match

    def _has_same_key(self, keys: Sequence[pa.Array], hashes: Words, order: Positions) -> Mask:
        """Return a mask for rows with the same key as the previous row in an order."""
        same = _equals_previous(hashes[order])
        likely = np.flatnonzero(same)
        if len(likely) and not self._is_injective:
            taken = [
                [key.take(pa.array(order[row_indices])) for key in keys]
                for row_indices in (likely, likely - 1)
            ]
            same[likely] = equal_rows(*taken)
        return same


def _equals_previous(hashes: Words) -> Mask:
    """Return a mask for hashes equal to the previous hash."""
    same = np.zeros(len(hashes), dtype=np.bool_)
    same[1:] = hashes[1:] == hashes[:-1]
    return same


def ranks_of(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Words, Words]:
    """Return ranks that sort the keys from two sides in one order."""
    joined = [
        pa.concat_arrays([one, right_column]) for one, right_column in zip(left, right, strict=True)
    ]
    both = ranks(joined)
    return both[: len(left[0])], both[len(left[0]) :]


def ranks(columns: Sequence[pa.Array]) -> Words:
    """Return ranks that sort keys; needs at least one row."""
    result, *others = (_ranks(column) for column in columns)
    for next_codes in others:
        # Dense numbers are below the number of rows, so that two of them fit into one.
        high, low = (
            np.unique(code_array, return_inverse=True)[1] for code_array in (result, next_codes)
        )
        result = (high * (int(low.max()) + 1) + low).astype(np.uint64)
    return result


def _ranks(column: pa.Array) -> Words:
    if not is_text(column.type) and not pa.types.is_decimal(column.type):
        return ordered_words(column)[0]
    # One long text must not make words of its length of all the others.
    encoded = column.dictionary_encode()
    order = np.asarray(pc.sort_indices(encoded.dictionary))
    ranks = np.empty(len(order), dtype=np.uint64)
    ranks[order] = np.arange(len(order), dtype=np.uint64)
    return ranks[np.asarray(encoded.indices)]


def first_descent(keys: Sequence[pa.Array]) -> int | None:
    """Return the first row with a smaller key than the row before it; None in ascending rows."""
    count = len(keys[0]) - 1
    if count < 1:
        return None
    signs = compare([key.slice(0, count) for key in keys], [key.slice(1) for key in keys])
    descents = np.flatnonzero(signs > 0)
    return int(descents[0]) + 1 if len(descents) else None


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type in which two key types are compared; None if they are not comparable.

    Plans never cast a join key, because a cast would hide an index.
    """
    if one == other:
        return one
    is_whole = pa.types.is_integer(one) and pa.types.is_integer(other)
    return pa.int64() if is_whole and pa.uint64() not in (one, other) else None


def cast_columns(
    columns: Sequence[pa.Array], types: Sequence[pa.DataType | None]
) -> list[pa.Array]:
    """Convert key columns to their comparison types, which are never narrower."""
    return [
        column if column.type == type_ else convert(column, type_)
        for column, type_ in zip(columns, types, strict=True)
    ]


def to_common_types(one: Sequence[pa.Array], other: Sequence[pa.Array]) -> list[list[pa.Array]]:
    """Convert two sides' columns pairwise to common types."""
    types = [common_type(a.type, b.type) for a, b in zip(one, other, strict=True)]
    assert None not in types, "checked when the plan was bound"
    return [cast_columns(side, types) for side in (one, other)]


def cast_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to a schema's types; a whole number that does not fit becomes NULL."""
    fields = [schema.field(name) for name in rows.schema.names]
    if all(
        column_field.type == field.type
        for column_field, field in zip(rows.schema, fields, strict=True)
    ):
        return rows
    arrays = [try_convert(rows.column(field.name), field.type)[0] for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def take_or_null(columns: Sequence[pa.Array], places: Positions) -> list[pa.Array]:
    """Take values by index; NULL for `NOWHERE`."""
    absent = places == NOWHERE
    indices = pa.array(places, mask=absent if bool(absent.any()) else None)
    return [column.take(indices) for column in columns]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return an empty batch with a schema."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
