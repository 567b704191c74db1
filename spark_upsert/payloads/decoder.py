"""The protocol of all payload decoders, and the blocks in which payloads are decoded.

Whether a payload is good, what it decodes to and why it is bad depend on that payload alone,
never on those around it: a replay in other batches gives the same rows and the same reasons.
So a bad payload is told from its neighbours by the decoder, which notes it and goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import SchemaError

BLOCK_BYTES = 4 << 20
"""Payload bytes that are decoded at once. One payload may be larger: then it is alone.

In smaller blocks the fixed cost of a block is seen (a third more at 512 KiB)."""

REASON_CHARS = 200
"""Bound of a reason's text: a library may quote the whole payload."""

Bad = dict[int, str]
"""Why payloads are bad, by their place in what was given."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Decoded payloads; all arrays of the same length."""

    columns: tuple[pa.Array, ...]
    """One per field of the decoder; null where the payload is absent or bad."""
    reasons: pa.Array | None
    """Why a payload is bad, as text; null where it is good or absent, None if none is bad."""


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field of payloads that no column can hold. Its decoder passes over it."""

    path: tuple[str, ...]
    """The names that lead to it."""
    error: SchemaError
    """The error of a write that is to store it."""

    def within(self, name: str) -> RefusedField:
        """Return it as a field below a name."""
        return RefusedField((name, *self.path), self.error)


IMAGES = ("before", "after")
"""The fields of a change event that hold a row: their fields are columns."""


def column_at(where: str) -> str:
    """Return the column that a field belongs to: ``value.after.x.y`` is in ``x``."""
    _, *path = where.split(".")
    place = 1 if len(path) > 1 and path[0] in IMAGES else 0
    return path[place] if path else where


def refused_columns(refused: Iterable[RefusedField], images: bool) -> dict[str, SchemaError]:
    """Return the columns that rows have and no table can hold, with the error of each.

    Parameters
    ----------
    refused : iterable of RefusedField
    images : bool
        Whether the columns are the fields of `IMAGES`; other fields are no columns then.
    """
    found: dict[str, SchemaError] = {}
    for each in refused:
        path = each.path
        if images and (path[0] not in IMAGES or len(path) == 1):
            continue
        found.setdefault(path[1] if images else path[0], each.error)
    return found


def refused_fields(decoder: object) -> tuple[RefusedField, ...]:
    """Return the fields that a decoder passes over, because no column can hold them."""
    found: tuple[RefusedField, ...] = getattr(decoder, "refused", ())
    return found


class Decoder(Protocol):
    """Turns payloads into columns. Pure; travels to the tasks by pickle."""

    @property
    def fields(self) -> pa.Schema:
        """The columns, in storage types."""
        ...

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode binary payloads; null is absent, empty is a payload like any other."""
        ...


def decode_blocks(
    fields: pa.Schema, payloads: pa.Array, decode: Callable[[pa.Array], tuple[pa.Array, Bad]]
) -> Payloads:
    """Decode payloads block by block.

    Parameters
    ----------
    fields : pyarrow.Schema
    payloads : pyarrow.Array of binary, shape (n,)
    decode : callable
        Takes payloads without nulls; returns an array of `row_type`, of the same length, and
        the bad ones, which are null in it.
    """
    present = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    given = payloads if len(present) == len(payloads) else payloads.drop_null()
    pieces: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for start, stop in _blocks(given):
        found, bad = decode(given.slice(start, stop - start))
        pieces.append(found)
        for place, reason in bad.items():
            reasons[int(present[start + place])] = shortened(reason)
    found = pa.concat_arrays(pieces) if pieces else pa.nulls(0, row_type(fields))
    if len(present) < len(payloads):
        places = np.zeros(len(payloads), dtype=np.int64)
        absent = np.ones(len(payloads), dtype=np.bool_)
        places[present], absent[present] = np.arange(len(present)), False
        found = found.take(pa.array(places, mask=absent))
    columns = tuple(found.flatten())
    return Payloads(columns, _spread(reasons, len(payloads)) if reasons else None)


def _spread(texts: dict[int, str], count: int) -> pa.Array:
    """Return texts at their places, and null elsewhere."""
    places = np.full(count, -1, dtype=np.int64)
    places[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(pa.array(places, mask=places < 0))


def row_type(fields: pa.Schema) -> pa.DataType:
    """Return the type of the rows that a decoder makes; a bad one is null, whatever is declared."""
    return pa.struct([field.with_nullable(True) for field in fields])


def with_faults(
    columns: Sequence[pa.Array],
    reasons: pa.Array | None,
    faults: Iterable[tuple[str, npt.NDArray[np.bool_]]],
) -> Payloads:
    """Return payloads of which some turned out bad after they were decoded.

    Parameters
    ----------
    columns : sequence of pyarrow.Array
    reasons : pyarrow.Array or None
        What is known to be bad (`Payloads`).
    faults : iterable of (str, numpy.ndarray of bool)
        A reason, and the payloads that it holds for.
    """
    for reason, bad in faults:
        because = pc.if_else(pa.array(bad), reason, None)
        reasons = because if reasons is None else pc.coalesce(reasons, because)
    if reasons is None:
        return Payloads(tuple(columns), None)
    good = reasons.is_null()
    return Payloads(tuple(pc.if_else(good, column, None) for column in columns), reasons)


def built_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that is built of values in Python; times are numbers of their unit.

    Python's own dates and times would take longer, and make zones of their own.
    """
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_map(type_):
        return pa.map_(built_type(type_.key_type), built_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(built_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(built_type(field.type)) for field in type_.fields])
    return type_


def _blocks(payloads: pa.Array) -> Iterator[tuple[int, int]]:
    """Cut payloads into blocks of about `BLOCK_BYTES`."""
    ends = np.cumsum(np.asarray(pc.binary_length(payloads)), dtype=np.int64)
    start = 0
    while start < len(payloads):
        limit = (int(ends[start - 1]) if start else 0) + BLOCK_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        yield start, stop
        start = stop


def shortened(reason: str) -> str:
    """Return a reason within its bound, on one line."""
    text = re.sub(r"\s+", " ", reason[: 2 * REASON_CHARS]).strip().rstrip(".")
    text = text.encode(errors="backslashreplace").decode()  # Half a surrogate pair is no text.
    return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]}..."
