"""JSON as Kafka Connect writes it: ``{...}``, or ``{"schema": {...}, "payload": {...}}``.

Messages are taken apart by the text of their schema, each schema is read once, and the messages
of one schema are decoded at once (`payloads.wrapped`), as those without a schema are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.payloads.budgets import Unreadable, bytes_kept, parts_of
from spark_upsert.payloads.connect.logical import (
    NUMBER_MARK,
    DecimalForm,
    Said,
    Unsaid,
    Wire,
    object_wire,
    wire_of,
)
from spark_upsert.payloads.decoder import Payloads, with_faults
from spark_upsert.payloads.json.text import NUMBER, JsonDecoder, leaf_types, named
from spark_upsert.payloads.pieces import Piece, gathered
from spark_upsert.payloads.recent import Recent
from spark_upsert.payloads.wrapped import PAYLOAD, SCHEMA, Alike, by_schema, has_wrapped

_READY: Recent[tuple[pa.DataType, bool], JsonDecoder] = Recent(
    lambda key, _: bytes_kept(0, parts_of(key[0]))
)
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
            Piece.of(alike.rows, self.fields, self._decode_alike(payloads, alike))
            for alike in by_schema(payloads)
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
        read = _decode(JsonDecoder(pa.schema(wire.type.fields)), wire, bodies)
        given = pa.StructArray.from_arrays(list(read.columns), fields=wire.type.fields)
        return converted(wire, given, read)


@dataclass(frozen=True)
class DeclaredJsonDecoder:
    """Decodes JSON into declared fields; messages with their schema in front are unwrapped.

    Read as it stands, such a message would lack all that is declared, and be a row of nulls. Where
    ``schema`` or ``payload`` is declared itself, messages are read as they stand.

    Parameters
    ----------
    fields : pyarrow.Schema
        As of `JsonDecoder`.
    is_bare : bool
        Whether a payload is the value of the only field, instead of an object that holds it.
    """

    fields: pa.Schema
    is_bare: bool = False

    def __post_init__(self) -> None:
        JsonDecoder(self.fields, self.is_bare)  # Raises what a task would.

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the declared members of each payload."""
        plain = JsonDecoder(self.fields, self.is_bare)
        if not (self._unwraps and has_wrapped(payloads)):
            return plain.decode(payloads)
        pieces = (
            Piece.of(alike.rows, self.fields, self._decode_alike(plain, payloads, alike))
            for alike in by_schema(payloads)
        )
        return gathered(self.fields, pieces)

    @property
    def _unwraps(self) -> bool:
        return self.is_bare or not {SCHEMA, PAYLOAD} & set(self.fields.names)

    def _decode_alike(self, plain: JsonDecoder, payloads: pa.Array, alike: Alike) -> Payloads:
        bodies = alike.bodies(payloads)
        if alike.schema is None:
            return plain.decode(bodies)
        if alike.says_nothing:
            return self._decode_unsaid(bodies)
        try:
            wire = self._wire(Said.parse(alike.said()))
        except Unreadable as error:
            return all_bad(self.fields, bodies, str(error))
        return read_body(wire, bodies, may_be_null=self.is_bare)

    def _wire(self, said: Said) -> Wire:
        if not self.is_bare:
            return object_wire(self.fields, said, Unsaid())
        name = self.fields.names[0]
        return wire_of(name, self.fields.types[0], said, Unsaid(), where=name)

    def _decode_unsaid(self, bodies: pa.Array) -> Payloads:
        """Return the members of payloads behind a schema that is ``null``."""
        type_ = self.fields.types[0] if self.is_bare else pa.struct(list(self.fields))
        read = _body_decoder(type_, self.is_bare).decode(bodies)
        return read if self.is_bare else replace(read, columns=tuple(read.columns[0].flatten()))


def read_body(wire: Wire, bodies: pa.Array, *, may_be_null: bool = True) -> Payloads:
    """Return the fields of payloads behind their schemas (`Alike.bodies`), as the schema has them.

    A payload that is ``null`` is a row of nulls, or bad.
    """
    read = _decode(_body_decoder(wire.type, may_be_null), wire, bodies)
    return converted(wire, read.columns[0], read)


def _decode(decoder: JsonDecoder, wire: Wire, bodies: pa.Array) -> Payloads:
    """Decode payloads in which decimals may be numbers (``decimal.format=NUMERIC``).

    A number in the place of a decimal's text becomes a text with a mark, by the name before it. So
    a name that other members have, too, and the items of an array are read as Base64 alone.
    """
    pattern = _number_pattern(wire)
    if pattern and pc.any(pc.match_substring_regex(bodies, pattern), min_count=0).as_py():
        bodies = pc.replace_substring_regex(bodies, pattern, rf'\1"{NUMBER_MARK}\2"')
    read = decoder.decode(bodies)
    if read.reasons is None or not wire.numbers:
        return read
    is_number = pc.match_substring(read.reasons, _READ_AS_TEXT)
    advised = pc.binary_join_element_wise(read.reasons, _NUMERIC, "")
    return replace(read, reasons=pc.if_else(is_number, advised, read.reasons))


_READ_AS_TEXT = "is declared string, found number"
_NUMERIC = " (a decimal here is Base64: set the converter's decimal.format=BASE64)"


def _number_pattern(wire: Wire) -> str:
    """Return the pattern of a number in the place of a decimal's text; empty if there is none."""
    numbers = Counter(name or PAYLOAD for name in wire.numbers)
    leaves = Counter(name for name, _ in leaf_types(pa.struct([pa.field(PAYLOAD, wire.type)])))
    names = [name for name, count in numbers.items() if leaves[name] == count]
    return rf"({named(names)}\s*:\s*)({NUMBER})" if names else ""


def _body_decoder(type_: pa.DataType, may_be_null: bool) -> JsonDecoder:
    def make() -> JsonDecoder:
        return JsonDecoder(pa.schema([pa.field(PAYLOAD, type_, nullable=may_be_null)]))

    return _READY.of((type_, may_be_null), make)


def converted(wire: Wire, given: pa.Array, read: Payloads) -> Payloads:
    """Return values as they were written in the types that a table has."""
    found, faults = wire.convert(given)
    columns = found.flatten() if pa.types.is_struct(found.type) else [found]
    return with_faults(columns, read.reasons, faults)


def all_bad(fields: pa.Schema, payloads: pa.Array, reason: str) -> Payloads:
    """Return payloads none of which can be decoded, those that are absent apart."""
    nulls = tuple(pa.nulls(len(payloads), field.type) for field in fields)
    return Payloads(nulls, pc.if_else(payloads.is_valid(), reason, None))
