"""What every payload decoder promises, and how one bad payload is told from its neighbours.

A decoder is fast on whole blocks and knows only that a block failed. `isolate` halves a
failing block until what fails is one payload. So whether a payload is good, what it decodes
to and why it is bad depend on that payload alone, never on those around it: a replay in other
batches gives the same rows and the same reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BLOCK_BYTES = 16 << 20
"""Payload bytes that are decoded at once. One payload may be larger: then it is alone."""

REASON_CHARS = 200
"""Bound of a reason's text: a library may quote the whole payload."""


class Undecodable(Exception):
    """A block holds a payload that is not what was declared; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Decoded payloads; all arrays of the same length."""

    columns: tuple[pa.Array, ...]
    """One per field of the decoder; null where the payload is absent or bad."""
    reasons: pa.Array | None
    """Why a payload is bad, as text; null where it is good or absent, None if none is bad."""


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
    fields: pa.Schema, payloads: pa.Array, attempt: Callable[[pa.Array], pa.Array]
) -> Payloads:
    """Decode payloads block by block with a decoder that fails as a whole.

    Parameters
    ----------
    fields : pyarrow.Schema
    payloads : pyarrow.Array of binary, shape (n,)
    attempt : callable
        Takes payloads without nulls, returns a struct array of the fields; raises
        `Undecodable` if one of them is bad.
    """
    type_ = pa.struct(list(fields))
    present = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    given = payloads if len(present) == len(payloads) else payloads.drop_null()
    pieces: list[pa.Array] = []
    bad: dict[int, str] = {}
    for start, stop in _blocks(given):
        pieces += isolate(given, start, stop, attempt, bad, type_)
    found = pa.concat_arrays(pieces) if pieces else pa.array([], type_)
    if len(present) < len(payloads):
        places = np.zeros(len(payloads), dtype=np.int64)
        absent = np.ones(len(payloads), dtype=np.bool_)
        places[present], absent[present] = np.arange(len(present)), False
        found = found.take(pa.array(places, mask=absent))
    columns = tuple(pc.struct_field(found, [i]) for i in range(len(fields)))
    if not bad:
        return Payloads(columns, None)
    texts: list[str | None] = [None] * len(payloads)
    for place, reason in bad.items():
        texts[int(present[place])] = reason
    return Payloads(columns, pa.array(texts, pa.string()))


def isolate(
    payloads: pa.Array,
    start: int,
    stop: int,
    attempt: Callable[[pa.Array], pa.Array],
    bad: dict[int, str],
    type_: pa.DataType,
) -> Iterator[pa.Array]:
    """Yield the decoded payloads ``start <= i < stop``; note the bad ones, which become null.

    Notes
    -----
    With ``b`` bad payloads of ``n``: at most ``2 b log2(n / b) + 2 b`` attempts.
    """
    try:
        yield attempt(payloads.slice(start, stop - start))
        return
    except Undecodable as error:
        reason = str(error)
    if stop - start == 1:
        bad[start] = shortened(reason)
        yield pa.nulls(1, type_)
        return
    middle = (start + stop) // 2
    yield from isolate(payloads, start, middle, attempt, bad, type_)
    yield from isolate(payloads, middle, stop, attempt, bad, type_)


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
    return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]}..."
