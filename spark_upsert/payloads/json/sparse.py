"""JSON payloads with arrays that mean far more than they say (`budgets.VALUES_PER_BYTE`).

An item of two bytes, ``{}``, has a place for each member of its type once it is in columns. Where
items have few members nothing can be wrong. Where they have many, commas and brackets are counted
first, and only payloads that have very many are read to count their items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.model.arrays import Mask
from spark_upsert.payloads.budgets import VALUES_PER_BYTE, parts_of, values_max

_ITEM_BYTES_MIN = 2
"""Bytes of the shortest item, with the comma before the next one: ``1,``."""


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
    arrays = _Arrays.of(fields) if found.any() else None
    for row in np.flatnonzero(found).tolist():
        found[row] = _means_more(payloads[row].as_py(), arrays, values_max(int(lengths[row])))
    return found if found.any() else None


def _widest_item(type_: pa.DataType) -> int:
    inside = [type_.field(index).type for index in range(type_.num_fields)]
    own = parts_of(type_.value_type) if pa.types.is_list(type_) else 0
    return max([own, *map(_widest_item, inside)])


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays inside a value; members that hold none are left out."""

    members: Mapping[str, _Arrays] = field(default_factory=dict)
    item_parts: int = 0
    """Parts of an item of an array; 0 for an object."""
    item: _Arrays | None = None

    @classmethod
    def of(cls, fields: Iterable[pa.Field]) -> _Arrays | None:
        found = {each.name: cls._in(each.type) for each in fields}
        members = {name: inside for name, inside in found.items() if inside is not None}
        return cls(members) if members else None

    @classmethod
    def _in(cls, type_: pa.DataType) -> _Arrays | None:
        if pa.types.is_list(type_):
            return cls({}, parts_of(type_.value_type), cls._in(type_.value_type))
        return cls.of(type_) if pa.types.is_struct(type_) else None


def _means_more(payload: bytes, arrays: _Arrays | None, most: int) -> bool:
    """Return whether the arrays of a payload mean more than so many values; looks no further."""
    try:
        left = [(json.loads(payload), arrays)]
    except (ValueError, RecursionError):
        return False
    values = 0
    while left and values <= most:
        found, inside = left.pop()
        if inside is None:
            continue
        if inside.item_parts and isinstance(found, list):
            values += len(found) * inside.item_parts
            if inside.item is not None and values <= most:
                left += [(each, inside.item) for each in found]
        elif not inside.item_parts and isinstance(found, dict):
            left += [(found[name], part) for name, part in inside.members.items() if name in found]
    return values > most
