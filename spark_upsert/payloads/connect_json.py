"""JSON as Kafka Connect writes it: ``{...}``, or ``{"schema": {...}, "payload": {...}}``.

Messages are taken apart by the text of their schema, each schema is read once, and the messages
of one schema are decoded at once (`payloads.wrapped`), as those without a schema are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.payloads.connect import DecimalForm, Said, Unreadable, Unsaid, Wire, object_wire
from spark_upsert.payloads.decoder import Payloads, gathered, with_faults
from spark_upsert.payloads.json_text import JsonDecoder
from spark_upsert.payloads.wrapped import PAYLOAD, Alike, by_schema

_READY_MAX = 1024
"""Decoders that a process keeps, with the patterns that they have made of names and types."""


@dataclass(frozen=True)
class ConnectJsonDecoder:
    """Decodes JSON objects into declared fields.

    Parameters
    ----------
    fields : pyarrow.Schema
        The members to keep, in storage types.
    unsaid : Unsaid
        What messages without a schema leave open.
    images : tuple of str
        The fields that are rows of a table themselves.
    """

    fields: pa.Schema
    unsaid: Unsaid
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Raises what a task would, where it is of use. How decimals are written matters not.
        some = replace(self.unsaid, decimals=DecimalForm.STRING)
        JsonDecoder(pa.schema(object_wire(self.fields, None, some, images=self.images).type.fields))

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the declared members of each payload."""
        pieces = (
            (alike.rows, self._decode_alike(payloads, alike)) for alike in by_schema(payloads)
        )
        return gathered(self.fields, pieces)

    def _decode_alike(self, payloads: pa.Array, alike: Alike) -> Payloads:
        bodies = alike.bodies(payloads)
        try:
            said = None if alike.says_nothing else Said.parse(alike.said())
            wire = object_wire(self.fields, said, self.unsaid, images=self.images)
        except Unreadable as error:
            return all_bad(self.fields, bodies, str(error))
        if alike.schema is not None:
            return read_body(wire, bodies)
        read = JsonDecoder(pa.schema(wire.type.fields)).decode(bodies)
        given = pa.StructArray.from_arrays(list(read.columns), fields=wire.type.fields)
        return converted(wire, given, read)


def read_body(wire: Wire, bodies: pa.Array, *, may_be_null: bool = True) -> Payloads:
    """Return the fields of payloads behind their schemas (`Alike.bodies`), as the schema has them.

    A payload that is ``null`` is a row of nulls, or bad.
    """
    read = _body_decoder(wire.type, may_be_null).decode(bodies)
    return converted(wire, read.columns[0], read)


@lru_cache(maxsize=_READY_MAX)
def _body_decoder(type_: pa.DataType, may_be_null: bool) -> JsonDecoder:
    return JsonDecoder(pa.schema([pa.field(PAYLOAD, type_, nullable=may_be_null)]))


def converted(wire: Wire, given: pa.Array, read: Payloads) -> Payloads:
    """Return values as they were written in the types that a table has."""
    found, faults = wire.convert(given)
    columns = found.flatten() if pa.types.is_struct(found.type) else [found]
    return with_faults(columns, read.reasons, faults)


def all_bad(fields: pa.Schema, payloads: pa.Array, reason: str) -> Payloads:
    """Return payloads none of which can be decoded, those that are absent apart."""
    nulls = tuple(pa.nulls(len(payloads), field.type) for field in fields)
    return Payloads(nulls, pc.if_else(payloads.is_valid(), reason, None))
