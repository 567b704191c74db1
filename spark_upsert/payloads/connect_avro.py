"""Avro as Kafka Connect writes it: what a value means stands beside its type, as ``connect.name``.

The writer's schema is declared, so that the types of a table follow from it: Debezium's times of no
zone are TIMESTAMP_NTZ, its zoned ones TIMESTAMP, its days DATE. All else is as Avro has it; a
decimal of variable scale is a struct.

Source: ``AvroData`` of Confluent's converter.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_upsert.payloads.avro import AvroDecoder, parse_avro, read_avro
from spark_upsert.payloads.connect import Said, Wire, natural_wire
from spark_upsert.payloads.decoder import Decoder, Payloads, with_faults


@dataclass(frozen=True)
class ConnectAvroDecoder:
    """Decodes Avro records into the types that Connect means.

    Parameters
    ----------
    inner : Decoder
        Decodes into Avro's own types.
    said : Said
        What the schema says of the record.
    only : collection of str, optional
        The names of fields to keep, nested ones with dots. Without it, all.
    """

    inner: Decoder
    said: Said
    only: Collection[str] | None = None

    @classmethod
    def parse(cls, option: str, text: str, *, bare_name: str) -> ConnectAvroDecoder:
        """Return the decoder of the Avro schema that an option gives (`parse_avro`)."""
        return cls._of(parse_avro(option, text, bare_name=bare_name))

    @classmethod
    def read(cls, text: str, *, bare_name: str) -> ConnectAvroDecoder:
        """Return the decoder of an Avro schema (`read_avro`)."""
        return cls._of(read_avro(text, bare_name=bare_name))

    @classmethod
    def _of(cls, inner: AvroDecoder) -> ConnectAvroDecoder:
        said = _said(json.loads(inner.schema_json), {}, "")
        if said.type != "record":
            said = Said("record", fields={inner.bare_name: said})
        return cls(inner, said)

    @cached_property
    def fields(self) -> pa.Schema:
        """The fields in the types of a table."""
        return pa.schema(list(self._natural()[0]))

    def _natural(self) -> tuple[pa.DataType, Wire]:
        # Not kept: a way of functions does not travel to the tasks.
        written = pa.struct(list(self.inner.fields))
        return natural_wire(written, self.said, keep=self.only)

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the fields of each payload."""
        read = self.inner.decode(payloads)
        fields = [field.with_nullable(True) for field in self.inner.fields]
        given = pa.StructArray.from_arrays(list(read.columns), fields=fields)
        found, faults = self._natural()[1].convert(given)
        return with_faults(found.flatten(), read.reasons, faults)


def _said(schema: Any, named: dict[str, Said], space: str) -> Said:
    """Return what an Avro schema says, which is known to be one without recursion."""
    if isinstance(schema, list):
        branches = [_said(branch, named, space) for branch in schema]
        return next((branch for branch in branches if branch.type != "null"), branches[0])
    if isinstance(schema, str):
        return named.get(f"{space}.{schema}", named.get(schema, Said(schema)))
    kind = schema["type"]
    if not isinstance(kind, str):
        return _said(kind, named, space)
    name = schema.get("connect.name")
    if kind == "array":
        return Said(kind, name, items=_said(schema["items"], named, space))
    if "name" not in schema:
        return Said(kind, name)
    own = schema["name"]
    space = own.rpartition(".")[0] or schema.get("namespace", space)
    fields = {f["name"]: _said(f["type"], named, space) for f in schema.get("fields", ())}
    said = Said(kind, name, fields=fields)
    named[own if "." in own or not space else f"{space}.{own}"] = said
    return said
