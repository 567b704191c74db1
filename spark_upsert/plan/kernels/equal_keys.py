"""Equal keys: which rows have the same key, by the equality of the engine.

NULL equals NULL, NaN equals NaN, -0.0 equals 0.0: so keys identify rows. A *join* differs in one
thing: NULL joins nothing, even as a part of a key (`joinable`). Texts are equal by their bytes, and
there is no collation.

Rows that are all there are numbered by their values (`codes`), column by column and without a sort:
two rows of any side have the same number exactly when they are equal. Rows that come batch by batch
are sought in an index of the others (`kernels.key_index`). Groups, which Arrow makes by bits, are
made of `canonical` columns. All three say the same of any two rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.words import fixed_words, is_text, validity

NOWHERE = -1
"""The place of a row that has no match, and the code of one that joins nothing."""

Columns = Sequence[pa.Array]
"""Columns of equal length."""


def codes(*sides: Columns) -> list[Positions]:
    """Number rows by their values.

    Parameters
    ----------
    *sides : sequence of pyarrow.Array
        The same columns in each, of types that can be keys.

    Returns
    -------
    list of numpy.ndarray of int64
        For each side a number for each of its rows. Different values have the numbers from 0 on in
        the order in which they first come, one side after the other. Without columns all rows are
        equal.
    """
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
    """Return which rows can join at all, those without a NULL in these columns; None if all can."""
    masks = [mask for column in columns if (mask := validity(column)) is not None]
    return np.logical_and.reduce(masks) if masks else None


def join_codes(left: Columns, right: Columns) -> tuple[Positions, Positions]:
    """Number rows by their values (`codes`); those that join nothing get `NOWHERE`."""
    masks = joinable(left), joinable(right)
    one, other = (
        own if mask is None else np.where(mask, own, NOWHERE)
        for own, mask in zip(codes(left, right), masks, strict=True)
    )
    return one, other


def canonical(column: pa.Array) -> pa.Array:
    """Return a column in which equal values have equal bits: 0.0 for -0.0, and one NaN."""
    if not pa.types.is_floating(column.type):
        return column
    valid = validity(column)
    values = fixed_words(column)[0].view(np.float64)
    return pa.array(values, mask=None if valid is None else ~valid).cast(column.type)


def places(wanted: Positions, among: Positions) -> Positions:
    """Return where the first of some codes stands among others, `NOWHERE` if it does not.

    The code `NOWHERE` equals none.
    """
    own = np.flatnonzero(among != NOWHERE)[::-1]
    # The last entry is that of `NOWHERE`.
    table = np.full(max(wanted.max(initial=-1), among.max(initial=-1)) + 2, NOWHERE, dtype=np.int64)
    table[among[own]] = own
    return table[wanted]


def is_among(rows: Columns, others: Columns) -> Mask:
    """Return which rows have the key of another one; NULL is NULL, as keys identify rows."""
    return places(*codes(rows, others)) != NOWHERE


def matches(left: Positions, right: Positions) -> tuple[Positions, Positions]:
    """Return all pairs of places with equal codes, ordered by the place in ``left``.

    The code `NOWHERE` equals none.
    """
    table = np.full(max(left.max(initial=-1), right.max(initial=-1)) + 2, NOWHERE, dtype=np.int64)
    own = np.flatnonzero(right >= 0)
    counts = np.bincount(right[own], minlength=len(table))
    if counts.max(initial=0) <= 1:  # No row has two partners: there is nothing to sort.
        table[right[own]] = own
        partners = table[left]
        matched = np.flatnonzero((left >= 0) & (partners != NOWHERE))
        return matched, partners[matched]
    order = own[np.argsort(right[own], kind="stable")]
    begins = np.cumsum(counts) - counts
    counts = np.where(left >= 0, counts[left], 0)
    ends = np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    return np.repeat(np.arange(len(left)), counts), order[np.repeat(begins[left], counts) + within]


def firsts(numbers: Positions) -> Positions:
    """Return the place of the first row of each code, ascending.

    Parameters
    ----------
    numbers : numpy.ndarray of int64
        As `codes` gives them, of one side or of all: a number is new if it is above all before it.
    """
    reached = np.maximum.accumulate(numbers)
    return np.flatnonzero(numbers > np.append(-1, reached[:-1])[: len(numbers)])


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as text that has room for all sides, or as it is."""
    if not is_text(column.type):
        return column
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if is_bytes else pa.large_string())


def _numbered(column: pa.Array) -> list[npt.NDArray[np.int64]]:
    """Return numbers that are equal together exactly where the values are."""
    if is_text(column.type):
        return [_dense(column)]
    words = fixed_words(column)
    valid = validity(column)
    if valid is not None:
        words = [np.where(valid, word, np.uint64(0)) for word in words]
        words.append(valid.astype(np.uint64))
    return [_dense(pa.array(word)) for word in words]


def _dense(column: pa.Array) -> npt.NDArray[np.int64]:
    """Number the different values of a column in the order in which they come."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False)).astype(np.int64)
