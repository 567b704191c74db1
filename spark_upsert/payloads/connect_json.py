"""JSON as Kafka Connect writes it: ``{...}``, or ``{"schema": {...}, "payload": {...}}``.

Each message may say of itself what it is made of, over and over again in the same words. So
messages are taken apart by the text of their schema, each schema is read once, and the messages
of one schema are decoded at once, as those without a schema are.

Source: ``JsonConverter`` of Kafka Connect, ``schemas.enable``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.model.arrays import Positions
from spark_upsert.payloads.connect import DecimalForm, Said, Unreadable, Unsaid, object_wire
from spark_upsert.payloads.decoder import Payloads, with_faults
from spark_upsert.payloads.json_text import JsonDecoder

_SCHEMA, _PAYLOAD = "schema", "payload"

_WRAPPED = rf'^\s*\{{\s*"{_SCHEMA}"\s*:'
_TAKE_SCHEMA = rf'(?s){_WRAPPED}\s*(?P<{_SCHEMA}>null|\{{.*?\}})\s*,\s*"{_PAYLOAD}"\s*:'
"""In Connect's own schemas ``}`` and then ``"payload":`` stand at the end alone. A text that is
cut elsewhere is no JSON, and so an error."""


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
        order: list[Positions] = [np.empty(0, dtype=np.int64)]
        columns: list[list[pa.Array]] = [[pa.nulls(0, field.type)] for field in self.fields]
        reasons = [pa.nulls(0, pa.string())]
        for rows, text in _by_schema(payloads):
            found = self._decode_alike(payloads.take(pa.array(rows)), text)
            order.append(rows)
            for pieces, column in zip(columns, found.columns, strict=True):
                pieces.append(column)
            none = pa.nulls(len(rows), pa.string())
            reasons.append(none if found.reasons is None else found.reasons)
        back = pa.array(np.argsort(np.concatenate(order), kind="stable"))
        why = pa.concat_arrays(reasons).take(back)
        return Payloads(
            tuple(pa.concat_arrays(pieces).take(back) for pieces in columns),
            why if why.null_count < len(why) else None,
        )

    def _decode_alike(self, payloads: pa.Array, schema: bytes | None) -> Payloads:
        """Decode payloads of one schema, ``b"null"`` if wrapped without, None if bare."""
        try:
            said = None if schema in (None, b"null") else Said.parse(_loaded(schema))
            wire = object_wire(self.fields, said, self.unsaid, images=self.images)
        except Unreadable as error:
            nulls = tuple(pa.nulls(len(payloads), field.type) for field in self.fields)
            return Payloads(nulls, pc.if_else(payloads.is_valid(), str(error), None))
        if schema is None:
            read = JsonDecoder(pa.schema(wire.type.fields)).decode(payloads)
            given = pa.StructArray.from_arrays(list(read.columns), fields=wire.type.fields)
        else:
            read = JsonDecoder(pa.schema([pa.field(_PAYLOAD, wire.type)])).decode(payloads)
            given = read.columns[0]
        found, faults = wire.convert(given)
        return with_faults(found.flatten(), read.reasons, faults)


def _by_schema(payloads: pa.Array) -> Iterator[tuple[Positions, bytes | None]]:
    """Yield the rows of each schema, and its text; first those that are bare or absent."""
    wrapped = pc.match_substring_regex(payloads, _WRAPPED).fill_null(False)
    is_wrapped = np.asarray(wrapped.to_numpy(zero_copy_only=False), dtype=np.bool_)
    bare, rows = np.flatnonzero(~is_wrapped), np.flatnonzero(is_wrapped)
    if len(bare):
        yield bare, None
    if not len(rows):
        return
    taken = pc.extract_regex(payloads.take(pa.array(rows)), _TAKE_SCHEMA)
    texts = pc.struct_field(taken, _SCHEMA).fill_null(b"").dictionary_encode()
    codes = texts.indices.to_numpy()
    by_code = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[by_code], np.arange(len(texts.dictionary) + 1))
    for code, text in enumerate(texts.dictionary.to_pylist()):
        yield rows[by_code[ends[code] : ends[code + 1]]], text


def _loaded(text: bytes | None) -> object:
    try:
        return json.loads(text or b"")
    except (ValueError, RecursionError) as error:
        raise Unreadable("the message's schema is not JSON, or no payload follows it") from error
