"""JSON payloads whose arrays mean far more than they say (`budgets.VALUES_PER_BYTE`).

An item of two bytes, ``{}``, has a place for each member of its type once it is in columns. Where
items have few members nothing can be wrong. Where they have many, commas and brackets are counted
first, and only payloads that have very many are read to count their items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.model.arrays import Mask
from spark_upsert.payloads.budgets import VALUES_PER_BYTE, parts_of, values_max

_ITEM_BYTES_MIN = 2
"""Of the shortest item, and what divides it from the next one: ``1,``."""


def may_be_sparse(fields: pa.Schema) -> bool:
    """Return whether payloads with some members may mean too many values."""
    return max(map(_widest_item, fields.types), default=0) > VALUES_PER_BYTE * _ITEM_BYTES_MIN


def are_sparse(payloads: pa.Array, fields: pa.Schema) -> Mask | None:
    """Return which payloads mean too many values; None if none does.

    Parameters
    ----------
    payloads : pyarrow.Array of binary
    fields : pyarrow.Schema
        The declared members.
    """
    widest = max(map(_widest_item, fields.types))
    marks = (pc.count_substring(payloads, mark).fill_null(0) for mark in (",", "["))
    items = np.sum([np.asarray(each, dtype=np.int64) for each in marks], axis=0)
    lengths = np.asarray(pc.binary_length(payloads).fill_null(0), dtype=np.int64)
    found = items * widest > values_max(0) + VALUES_PER_BYTE * lengths
    for row in np.flatnonzero(found).tolist():
        found[row] = _values_in(payloads[row].as_py(), fields) > values_max(int(lengths[row]))
    return found if found.any() else None


def _widest_item(type_: pa.DataType) -> int:
    inside = [type_.field(index).type for index in range(type_.num_fields)]
    own = parts_of(type_.value_type) if pa.types.is_list(type_) else 0
    return max([own, *map(_widest_item, inside)])


def _values_in(payload: bytes, fields: pa.Schema) -> int:
    """Return how many values the arrays of a payload mean; 0 if it is no object."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return 0
    return _of_members(found, fields) if isinstance(found, dict) else 0


def _of_members(found: dict[str, Any], fields: Iterable[pa.Field]) -> int:
    return sum(_of(found.get(field.name), field.type) for field in fields)


def _of(found: Any, type_: pa.DataType) -> int:
    if isinstance(found, dict) and pa.types.is_struct(type_):
        return _of_members(found, type_)
    if isinstance(found, list) and pa.types.is_list(type_):
        inner = type_.value_type
        inside = sum(_of(each, inner) for each in found) if pa.types.is_nested(inner) else 0
        return len(found) * parts_of(inner) + inside
    return 0
