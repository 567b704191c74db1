"""Entry contents: values or a delete marker, without key and order.

Entries with equal keys and order keys are *duplicates* if their contents are equal, otherwise a
*tie* (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import (
    Mask,
    Positions,
    Words,
    identical_rows,
    is_hashable,
    signs,
    sort_words,
)
from spark_upsert.core.schema import DIFF, REASON, TOMBSTONE, TableSchema
from spark_upsert.table.run.rows import Rows


def _names(schema: TableSchema) -> tuple[str, ...]:
    """Return the content columns; `DIFF` is the first."""
    return (DIFF, *schema.contents, *((REASON,) if schema.has_quarantine else ()))


def content_words(rows: Rows, chosen: Positions) -> list[Words]:
    """Return sort words that order the rows' contents, ascending."""
    diffs, *values = rows.take(_names(rows.schema), chosen)
    is_delete = diffs.to_numpy() == TOMBSTONE
    words = [word for value in values for word in _value_words(value)]
    # The values of a delete are arbitrary.
    return [*sort_words([diffs]), *(np.where(is_delete, np.uint64(0), word) for word in words)]


def _value_words(column: pa.Array) -> list[Words]:
    """Return sort words that define some order for values with any type.

    Nested values are compared by their text, row by row: some 10 us each, only in ties.
    """
    if pa.types.is_struct(column.type):
        return [
            *sort_words([column.is_valid()]),
            *(word for child in column.flatten() for word in _value_words(child)),
        ]
    if is_hashable(column.type):
        is_float = pa.types.is_floating(column.type)
        return sort_words([column, *([pa.array(~signs(column))] if is_float else ())])
    return sort_words([pa.array([repr(value) for value in column.to_pylist()], pa.string())])


def equal_contents(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return a mask: whether paired rows have equal contents; both sides share one schema."""
    if not len(chosen):
        return np.empty(0, dtype=np.bool_)
    diffs, *values = one.take(_names(one.schema), chosen)
    other_diffs, *other_values = other.take(_names(one.schema), against)
    kinds, other_kinds = diffs.to_numpy(), other_diffs.to_numpy()
    same: Mask = kinds == other_kinds
    return same & ((kinds == TOMBSTONE) | _equal(values, other_values, len(kinds)))


def have_reasons(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return a mask: the row pairs in which either row has a reason (an error or displacement).

    Such a row has no tie, because its order derives from its arrival. A bad row that
    a corrected declaration makes valid on re-read retains its order.
    """
    if not one.schema.has_quarantine:
        return np.zeros(len(chosen), dtype=np.bool_)
    [ours], [theirs] = one.take([REASON], chosen), other.take([REASON], against)
    either = pc.or_(ours.is_valid(), theirs.is_valid())
    return np.asarray(either.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _equal(values: Sequence[pa.Array], others: Sequence[pa.Array], count: int) -> Mask:
    return identical_rows(values, others) if values else np.ones(count, dtype=np.bool_)
