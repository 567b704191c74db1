"""Avro as Kafka Connect writes it: what a value means stands beside its type, as ``connect.name``.

The writer's schema is declared, so that the types of a table follow from it: Debezium's times of no
zone are TIMESTAMP_NTZ, its zoned ones TIMESTAMP, its days DATE. All else is as Avro has it; a
decimal of variable scale is a struct.

Source: ``AvroData`` of Confluent's converter.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from spark_upsert.payloads.avro import AvroDecoder, parse_avro, read_avro
from spark_upsert.payloads.connect.logical import Said, Wire, natural_wire
from spark_upsert.payloads.decoder import Payloads, RefusedField, with_faults

_READY_MAX = 1024
"""Schemas that a process keeps ready to decode with, by the fields that are asked for."""


@dataclass(frozen=True)
class ConnectAvroDecoder:
    """Decodes Avro records into the types that Connect means.

    Parameters
    ----------
    inner : AvroDecoder
        Decodes into Avro's own types.
    said : Said
        What the schema says of the record.
    only : collection of str, optional
        The names of fields to keep, nested ones with dots. Without it, all.
    """

    inner: AvroDecoder
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

    def keeping(self, only: Collection[str]) -> ConnectAvroDecoder:
        """Return the decoder of some fields (``only``).

        It reads fields that are left out as plain numbers and bytes. So a payload stays good even
        if such a value is beyond what its logical type can mean.
        """
        return replace(self, inner=_kept(self.inner, frozenset(only)), only=only)

    @cached_property
    def fields(self) -> pa.Schema:
        """The fields in the types of a table."""
        return pa.schema(list(self._natural()[0]))

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The fields that no column can hold."""
        return self.inner.refused

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


@lru_cache(maxsize=_READY_MAX)
def _kept(inner: AvroDecoder, only: frozenset[str]) -> AvroDecoder:
    schema = json.loads(inner.schema_json)
    if not (isinstance(schema, dict) and "fields" in schema):
        return inner
    return AvroDecoder(json.dumps(_Plain(only).record(schema)), inner.bare_name)


class _Plain:
    """Writes a schema anew, in which only fields that are kept have logical types.

    A type that is used by name in several places may have a meaning in one and none in another: it
    is written once for each, under a name of its own.
    """

    def __init__(self, only: Collection[str]) -> None:
        self._only = only
        self._tops = {name.partition(".")[0] for name in only}
        self._leaves = {name.rpartition(".")[2] for name in only}
        self._known: dict[str, tuple[dict[str, Any], str]] = {}
        self._written: set[str] = set()

    def record(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of the whole record."""
        space, only = _space_of(schema, ""), self._only
        return {
            **schema,
            "fields": [
                {
                    "name": f["name"],
                    "type": self._of(f["type"], space, f["name"] in self._tops, f["name"] in only),
                }
                for f in schema["fields"]
            ],
        }

    def _of(self, schema: Any, space: str, may_mean: bool, means: bool) -> Any:
        """Return a type, given if fields below it may have a meaning, and if it has itself."""
        if isinstance(schema, list):
            return [self._of(branch, space, may_mean, means) for branch in schema]
        if isinstance(schema, str):
            full = schema if "." in schema or not space else f"{space}.{schema}"
            known = self._known.get(full) or self._known.get(schema)
            return schema if known is None else self._named(*known, may_mean, means)
        if "name" in schema:
            self._known[_full_name(schema, space)] = schema, space
            return self._named(schema, space, may_mean, means)
        own = {name: part for name, part in schema.items() if means or name != "logicalType"}
        for inside in ("type", "items", "values"):
            if inside in own:
                own[inside] = self._of(own[inside], space, may_mean, means)
        return own

    def _named(self, schema: dict[str, Any], space: str, may_mean: bool, means: bool) -> Any:
        name = f"{_full_name(schema, space)}_{int(may_mean)}{int(means)}"
        if name in self._written:
            return name
        self._written.add(name)
        own = {n: part for n, part in schema.items() if means or n != "logicalType"}
        own |= {"name": name}
        own.pop("namespace", None)
        inside = _space_of(schema, space)
        if "fields" in own:
            own["fields"] = [
                {
                    "name": f["name"],
                    "type": self._of(
                        f["type"],
                        inside,
                        may_mean,
                        means or (may_mean and f["name"] in self._leaves),
                    ),
                }
                for f in own["fields"]
            ]
        return own


def _space_of(schema: dict[str, Any], space: str) -> str:
    """Return the namespace inside of a named type."""
    own: str = schema["name"].rpartition(".")[0] or schema.get("namespace", space)
    return own


def _full_name(schema: dict[str, Any], space: str) -> str:
    name, inside = schema["name"], _space_of(schema, space)
    return name if "." in name or not inside else f"{inside}.{name}"


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
