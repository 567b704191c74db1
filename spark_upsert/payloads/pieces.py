"""Payloads that are decoded in pieces: those of one schema, or those that broke their decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.errors import UpsertFlowError
from spark_upsert.model.arrays import Positions
from spark_upsert.payloads.decoder import Decoder, Payloads, shortened


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the payloads, decoded."""

    rows: Positions
    """Their places among all; each place is in one piece."""
    columns: Mapping[str, pa.Array]
    """By field; one that is lacking is null."""
    reasons: pa.Array | None
    """As `Payloads.reasons`."""

    @classmethod
    def of(cls, rows: Positions, fields: pa.Schema, found: Payloads) -> Piece:
        """Return decoded payloads with their places."""
        return cls(rows, dict(zip(fields.names, found.columns, strict=True)), found.reasons)


def taken(payloads: Payloads, rows: Positions) -> Payloads:
    """Return some of the decoded payloads."""
    places = pa.array(rows)
    reasons = None if payloads.reasons is None else payloads.reasons.take(places)
    return Payloads(tuple(column.take(places) for column in payloads.columns), reasons)


def gathered(fields: pa.Schema, pieces: Iterable[Piece]) -> Payloads:
    """Return payloads that were decoded in pieces, in the order in which they were given.

    Notes
    -----
    O(columns times payloads), which is what is returned, and O(1) for each piece and column that it
    holds: a batch in which each payload has a schema of its own costs no more.
    """
    found: dict[str, _Parts] = {field.name: _Parts() for field in fields}
    why = _Parts()
    count = 0
    for piece in pieces:
        count += len(piece.rows)
        for name, column in piece.columns.items():
            found[name].add(piece.rows, column)
        if piece.reasons is not None:
            why.add(piece.rows, piece.reasons)
    places: dict[tuple[int, ...], pa.Array | None] = {}
    reasons = why.whole(pa.string(), count, places)
    return Payloads(
        tuple(found[field.name].whole(field.type, count, places) for field in fields),
        reasons if reasons.null_count < count else None,
    )


class _Parts:
    """The parts of one column, and their places in the whole."""

    __slots__ = ("_parts", "_rows")

    def __init__(self) -> None:
        self._rows: list[Positions] = []
        self._parts: list[pa.Array] = []

    def add(self, rows: Positions, part: pa.Array) -> None:
        self._rows.append(rows)
        self._parts.append(part)

    def whole(
        self, type_: pa.DataType, count: int, known: dict[tuple[int, ...], pa.Array | None]
    ) -> pa.Array:
        """Return the column; ``known`` keeps the places of parts for the columns that share them.

        The rows of all pieces are alive until the last column is made, and so are their ids.
        """
        if not self._parts:
            return pa.nulls(count, type_)
        key = tuple(map(id, self._rows))
        if key not in known:
            known[key] = self._places(count)
        whole = self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)
        places = known[key]
        return whole if places is None else whole.take(places)

    def _places(self, count: int) -> pa.Array | None:
        """Return where each row of the whole stands in the parts; None if all stand in order."""
        rows = np.concatenate(self._rows)
        if len(rows) == count and bool((np.diff(rows) > 0).all()):
            return None
        places = np.full(count, -1, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        return pa.array(places, mask=places < 0)


def decoded(decoder: Decoder, payloads: pa.Array) -> Payloads:
    """Decode payloads, whatever a decoder meets in them: the door that envelopes go through.

    A payload may be made for an error that no decoder foresees: of Python's stack, of a library, of
    the memory that a value takes. Such an error is the reason of the payload for which it comes
    when that is decoded alone, with the error's type, and not one of its neighbours.

    Raises
    ------
    UpsertFlowError
        No payload is at fault: a registry is away, or a schema contradicts the table's.

    Notes
    -----
    Halves what fails until single payloads are left: for one of n, log2(n) more attempts.
    """
    try:
        return decoder.decode(payloads)
    except UpsertFlowError:
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the reason of the payload
        if len(payloads) > 1:
            return gathered(decoder.fields, _halves(decoder, payloads))
        nulls = tuple(pa.nulls(len(payloads), field.type) for field in decoder.fields)
        return Payloads(nulls, pa.array([unforeseen(error)] * len(payloads), pa.string()))


def _halves(decoder: Decoder, payloads: pa.Array) -> Iterator[Piece]:
    middle = len(payloads) // 2
    for first, half in ((0, payloads.slice(0, middle)), (middle, payloads.slice(middle))):
        rows = np.arange(first, first + len(half))
        yield Piece.of(rows, decoder.fields, decoded(decoder, half))


def unforeseen(error: Exception) -> str:
    """Return the reason of a bad value by a foreign error: its type, and what it says."""
    return shortened(f"{type(error).__name__}: {error}")
