"""How much of a change event can be read: all of it, or what places the error that it is.

A payload is bad as a whole for its decoder. An event is not: a value that no column can hold leaves
its key, its order and what it does as they are. So the events that cannot be read whole are read
again with fewer fields asked for, until something can be read:

===================================  =====================================================
read                                 the event is
===================================  =====================================================
all, with the old key                what it says
all but ``before``                   what it says: ``before`` is asked for its key alone
op, order, keys in both rows         an error at its key; a delete is what it says
op, order, key in ``after``          the same
op, order                            an error at the key of the record
nothing                              an error of unknown order
===================================  =====================================================

The reason is the one that the values were refused for. What a payload gives depends on that
payload alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.envelopes.debezium.events import AFTER
from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.payloads.decoder import Decoder, Payloads
from spark_upsert.payloads.pieces import decoded


@dataclass(frozen=True, kw_only=True)
class Fewer:
    """Decodes fewer fields of an event than all."""

    decoder: Decoder
    has_values: bool = False
    """Whether the whole row is among them."""
    knows_after: bool = True
    """Whether it can be told if there is a row behind the change."""


class Events(NamedTuple):
    """The events read from n payloads."""

    events: pa.StructArray
    reasons: pa.Array | None
    """Why the values of an event could not be read, as text."""
    is_cut: Mask
    """True where it is unknown if there is a row behind the change."""

    def replaced(self, pieces: Sequence[tuple[Positions, Events]]) -> Events:
        """Return events of which those at some places are others, which were decoded again."""
        if not pieces:
            return self
        count = len(self.events)
        events, reasons = [self.events], [_reasons_of(self.reasons, count)]
        places, is_cut = np.arange(count), self.is_cut.copy()
        for rows, piece in pieces:
            places[rows] = count + np.arange(len(rows))
            count += len(rows)
            is_cut[rows] = piece.is_cut
            events.append(piece.events)
            reasons.append(_reasons_of(piece.reasons, len(rows)))
        at = pa.array(places)
        return Events(pa.concat_arrays(events).take(at), pa.concat_arrays(reasons).take(at), is_cut)


@dataclass(frozen=True, kw_only=True)
class EventDecoder:
    """Decodes the values of records into change events.

    Parameters
    ----------
    whole : Decoder
        The decoder of all fields that are asked for.
    fewer : tuple of Fewer
        What to try where that fails, one after the other.
    required : tuple of str
        The columns that are declared NOT NULL.
    """

    whole: Decoder
    fewer: tuple[Fewer, ...]
    required: tuple[str, ...]

    def without(self, names: Collection[str]) -> EventDecoder:
        """Return the decoder of events that lack columns, though these are declared NOT NULL."""
        return replace(self, required=tuple(n for n in self.required if n not in names))

    def decode(self, payloads: pa.Array) -> Events:
        """Return as much of each event as can be read."""
        read = decoded(self.whole, payloads)
        fields = [field.with_nullable(True) for field in self.whole.fields]
        events = pa.StructArray.from_arrays(list(read.columns), fields=fields)
        reasons, is_cut = read.reasons, np.zeros(len(payloads), dtype=np.bool_)
        if reasons is not None:
            events, reasons, is_cut = self._again(payloads, events, reasons)
        return Events(events, self._nulls(events, reasons), is_cut)

    def _again(self, payloads: pa.Array, events: pa.StructArray, reasons: pa.Array) -> Events:
        """Read the events that are bad with fewer fields; as many steps as there are `fewer`."""
        left = np.flatnonzero(_valid(reasons))
        places = np.arange(len(payloads))
        pieces, count = [events], len(events)
        is_cut = np.zeros(len(payloads), dtype=np.bool_)
        for step in self.fewer:
            found = decoded(step.decoder, payloads.take(pa.array(left)))
            is_read = _readable(found, len(left))
            rows, good = left[is_read], pa.array(np.flatnonzero(is_read))
            columns = dict(zip(step.decoder.fields.names, found.columns, strict=True))
            taken = {name: column.take(good) for name, column in columns.items()}
            pieces.append(_laid_out(taken, events.type, len(rows)))
            places[rows] = count + np.arange(len(rows))
            count += len(rows)
            is_cut[rows] = not step.knows_after
            if step.has_values:
                reasons = _renewed(reasons, left, found.reasons)
            left = left[~is_read]
        is_cut[left] = True
        whole = pa.concat_arrays(pieces).take(pa.array(places))
        return Events(whole, reasons, is_cut)

    def _nulls(self, events: pa.StructArray, reasons: pa.Array | None) -> pa.Array | None:
        """Add why rows that lack what is declared NOT NULL cannot be applied."""
        after = pc.struct_field(events, [events.type.get_field_index(AFTER)])
        for name in self.required:
            column = pc.struct_field(after, [after.type.get_field_index(name)])
            lacks = pc.and_(after.is_valid(), column.is_null())
            why = pc.if_else(lacks, f"'{AFTER}.{name}' is null, and declared NOT NULL", None)
            reasons = why if reasons is None else pc.coalesce(reasons, why)
        return reasons


def _reasons_of(reasons: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if reasons is None else reasons


def _renewed(reasons: pa.Array, rows: Positions, found: pa.Array | None) -> pa.Array:
    """Return reasons with other ones for some rows, or none."""
    places = np.arange(len(reasons))
    places[rows] = len(reasons) + np.arange(len(rows))
    return pa.concat_arrays([reasons, _reasons_of(found, len(rows))]).take(pa.array(places))


def _laid_out(columns: Mapping[str, pa.Array], type_: pa.StructType, count: int) -> pa.StructArray:
    """Return columns as structs of more fields; what they lack is null."""
    parts = []
    for field in type_:
        column = columns.get(field.name)
        if column is None:
            parts.append(pa.nulls(count, field.type))
        elif column.type == field.type:
            parts.append(column)
        else:
            names = [inner.name for inner in column.type]
            inside = dict(zip(names, column.flatten(), strict=True))
            whole = _laid_out(inside, field.type, count)
            parts.append(pc.if_else(column.is_valid(), whole, None))
    return pa.StructArray.from_arrays(parts, fields=list(type_))


def _readable(found: Payloads, count: int) -> Mask:
    return np.ones(count, dtype=np.bool_) if found.reasons is None else ~_valid(found.reasons)


def _valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
