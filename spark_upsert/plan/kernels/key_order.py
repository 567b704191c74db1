"""The order of keys, as numbers: rows of two sides compare as integers do.

The order is the one of `model.words`: texts by bytes, NaN equal to itself and above all else, -0.0
equal to 0.0. Keys have no nulls here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.model.words import Words, compare, is_text, ordered_words


def ranks_of(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Words, Words]:
    """Return numbers that put the keys of two sides in one order.

    Parameters
    ----------
    left, right : sequence of pyarrow.Array
        As many columns, of the same types, without nulls; at least one row in each.
    """
    whole = [pa.concat_arrays([one, other]) for one, other in zip(left, right, strict=True)]
    both = ranks(whole)
    return both[: len(left[0])], both[len(left[0]) :]


def ranks(columns: Sequence[pa.Array]) -> Words:
    """Return numbers that put keys in order; at least one row."""
    result, *others = (_ranks(column) for column in columns)
    for other in others:
        # Dense numbers are below the number of rows, so that two of them fit into one.
        high, low = (np.unique(each, return_inverse=True)[1] for each in (result, other))
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
    found = np.flatnonzero(signs > 0)
    return int(found[0]) + 1 if len(found) else None
