"""Kafka Connect payloads: JSON with or without a schema, Avro with ``connect.name``, JSON Schema.

`parse_connect_json_schema` converts a JSON Schema document to a Connect schema, `natural_type` maps
that to a table type, and the decoders convert values with `logical_types`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.lru import SharedLruMap
from spark_upsert.errors import SchemaError, setting
from spark_upsert.payloads.avro import AvroDecoder, parse_avro, read_avro
from spark_upsert.payloads.decoder import (
    DEPTH_MAX,
    SCHEMA_CACHE_BYTES_MAX,
    Parts,
    Payloads,
    Piece,
    RefusedField,
    Unreadable,
    column_at,
    combine_pieces,
    count_parts,
    estimate_cached_bytes,
    read_json,
    with_faults,
)
from spark_upsert.payloads.json import NUMBER, JsonDecoder, leaf_types, member_pattern
from spark_upsert.payloads.logical_types import (
    DATES,
    DECIMAL,
    NUMBER_MARK,
    TIME_UNITS,
    ZONED,
    ConnectSchema,
    DecimalForm,
    SchemalessDefaults,
    Wire,
    natural_wire,
    object_wire,
    parameter_number,
    wire_of,
)

SCHEMA, PAYLOAD = "schema", "payload"

_WRAPPED = r'^\s*\{\s*"schema"\s*:'
_BEFORE_SCHEMA = re.compile(rf"{_WRAPPED}\s*(?=null\b|\{{)")
_AFTER_SCHEMA = re.compile(rf'\s*,\s*"{PAYLOAD}"\s*:')
_NO_SCHEMA = b"null"

_LOOKED_FOR = 16
"""Schemas to search for in all messages. Each search compares the prefixes of all remaining
messages, at a hundredth of the cost of reading them."""


@dataclass(frozen=True, slots=True)
class SameSchemaMessages:
    """Messages with the same schema."""

    rows: Positions
    schema: bytes | None
    """Schema text; None for bare or absent messages, empty if schema and payload cannot be
    separated."""
    head_bytes: int = 0
    """Bytes before the payload, including the schema."""

    @property
    def is_schemaless(self) -> bool:
        """Whether the messages have no schema: bare messages, or a schema that is ``null``."""
        return self.schema in (None, _NO_SCHEMA)

    def parse_schema(self) -> object:
        """Parse the schema text as JSON; raises `Unreadable`."""
        if not self.schema:
            raise Unreadable("the message's schema is not JSON, or no payload follows it")
        return read_json(self.schema)

    def bodies(self, payloads: pa.Array) -> pa.Array:
        """Return the group's payloads as objects with one member, `PAYLOAD`.

        The schema is cut off, so that it is not parsed with each message. Bare messages, and
        messages with an inseparable schema, are unchanged.
        """
        taken = payloads.take(pa.array(self.rows))
        if not self.schema:
            return taken
        return pc.binary_replace_slice(taken, 0, self.head_bytes, f'{{"{PAYLOAD}":'.encode())


def has_wrapped(payloads: pa.Array) -> bool:
    """Return whether any binary payload begins with its schema."""
    return bool(_is_wrapped(payloads).any())


def by_schema(payloads: pa.Array) -> Iterator[SameSchemaMessages]:
    """Group messages by schema; bare and absent messages come first.

    Notes
    -----
    One writer's messages have few schemas, so each schema's prefix is searched for in all messages.
    After `_LOOKED_FOR` schemas the remaining messages are read one by one, so that a separate schema in
    each message costs no more than its bytes.
    """
    wrapped = _is_wrapped(payloads)
    bare, left = np.flatnonzero(~wrapped), np.flatnonzero(wrapped)
    if len(bare):
        yield SameSchemaMessages(bare, None)
    cut: list[int] = []
    for _ in range(_LOOKED_FOR):
        if not len(left):
            break
        first = payloads[int(left[0])].as_py()
        head = _head(first)
        if head is None:
            cut.append(int(left[0]))
            left = left[1:]
            continue
        schema, head_bytes = head
        begins = pc.starts_with(payloads.take(pa.array(left)), first[:head_bytes])
        is_alike = _mask(begins)
        yield SameSchemaMessages(left[is_alike], schema, head_bytes)
        left = left[~is_alike]
    others: dict[bytes, tuple[bytes, list[int]]] = {}
    for row in left.tolist():
        message = payloads[row].as_py()
        head = _head(message)
        if head is None:
            cut.append(row)
        else:
            others.setdefault(message[: head[1]], (head[0], []))[1].append(row)
    for before, (schema, rows) in others.items():
        yield SameSchemaMessages(np.array(rows, dtype=np.int64), schema, len(before))
    if cut:
        yield SameSchemaMessages(np.array(cut, dtype=np.int64), b"")


def _is_wrapped(payloads: pa.Array) -> Mask:
    return _mask(pc.match_substring_regex(payloads, _WRAPPED).fill_null(False))


def _head(message: bytes) -> tuple[bytes, int] | None:
    """Return a wrapped message's schema and its payload's offset; None if it has none."""
    # Latin-1 gives each byte a place of its own; what is looked for is ASCII.
    text = message.decode("latin-1")
    before = _BEFORE_SCHEMA.match(text)
    if before is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, before.end())
    except (ValueError, RecursionError):
        return None
    rest_match = _AFTER_SCHEMA.match(text, end)
    return None if rest_match is None else (message[before.end() : end], rest_match.end())


def _mask(found: pa.Array) -> Mask:
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)


_READY: SharedLruMap[tuple[pa.DataType, bool], JsonDecoder] = SharedLruMap(
    bytes_max=SCHEMA_CACHE_BYTES_MAX,
    weigh=lambda key, _: estimate_cached_bytes(0, count_parts(key[0])),
)
"""Cached decoders, with the patterns built from their names and types."""


@dataclass(frozen=True)
class ConnectJsonDecoder:
    """Decodes JSON objects into declared fields.

    Parameters
    ----------
    fields : pyarrow.Schema
        The members to keep, in storage types.
    schemaless_defaults : SchemalessDefaults
        Units and decimal forms for messages without a schema.
    images : tuple of str
        The fields that hold a complete row.
    """

    fields: pa.Schema
    schemaless_defaults: SchemalessDefaults
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Raises what a task would, where it is of use. How decimals are written matters not.
        some = replace(self.schemaless_defaults, decimals=DecimalForm.STRING)
        JsonDecoder(pa.schema(object_wire(self.fields, None, some, images=self.images).type.fields))

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return each payload's declared members."""
        pieces = (
            Piece.of(alike.rows, self.fields, self._decode_alike(payloads, alike))
            for alike in by_schema(payloads)
        )
        return combine_pieces(self.fields, pieces)

    def _decode_alike(self, payloads: pa.Array, alike: SameSchemaMessages) -> Payloads:
        bodies = alike.bodies(payloads)
        try:
            connect_schema = (
                None if alike.is_schemaless else ConnectSchema.parse(alike.parse_schema())
            )
            wire = object_wire(
                self.fields, connect_schema, self.schemaless_defaults, images=self.images
            )
        except Unreadable as error:
            return reject_all(self.fields, bodies, str(error))
        if alike.schema is not None:
            return read_body(wire, bodies)
        read = _decode(JsonDecoder(pa.schema(wire.type.fields)), wire, bodies)
        struct = pa.StructArray.from_arrays(list(read.columns), fields=wire.type.fields)
        return converted(wire, struct, read)


@dataclass(frozen=True)
class DeclaredJsonDecoder:
    """Decodes JSON into declared fields, and unwraps messages that begin with their schema.

    Without unwrapping, such a message would be a row of nulls. Messages are not unwrapped for an
    object with a declared ``schema`` or ``payload``.

    Parameters
    ----------
    fields : pyarrow.Schema
        See `JsonDecoder`.
    is_bare : bool
        Whether a payload is the only field's value instead of an object with that field.
    """

    fields: pa.Schema
    is_bare: bool = False

    def __post_init__(self) -> None:
        JsonDecoder(self.fields, self.is_bare)  # Raises what a task would.

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return each payload's declared members."""
        plain = JsonDecoder(self.fields, self.is_bare)
        if not (self._unwraps and has_wrapped(payloads)):
            return plain.decode(payloads)
        pieces = (
            Piece.of(alike.rows, self.fields, self._decode_alike(plain, payloads, alike))
            for alike in by_schema(payloads)
        )
        return combine_pieces(self.fields, pieces)

    @property
    def _unwraps(self) -> bool:
        return self.is_bare or not {SCHEMA, PAYLOAD} & set(self.fields.names)

    def _decode_alike(
        self, plain: JsonDecoder, payloads: pa.Array, alike: SameSchemaMessages
    ) -> Payloads:
        bodies = alike.bodies(payloads)
        if alike.schema is None:
            return plain.decode(bodies)
        if alike.is_schemaless:
            return self._decode_schemaless(bodies)
        try:
            wire = self._wire(ConnectSchema.parse(alike.parse_schema()))
        except Unreadable as error:
            return reject_all(self.fields, bodies, str(error))
        return read_body(wire, bodies, may_be_null=self.is_bare)

    def _wire(self, connect_schema: ConnectSchema) -> Wire:
        if not self.is_bare:
            return object_wire(self.fields, connect_schema, SchemalessDefaults())
        name = self.fields.names[0]
        return wire_of(name, self.fields.types[0], connect_schema, SchemalessDefaults(), where=name)

    def _decode_schemaless(self, bodies: pa.Array) -> Payloads:
        """Decode payloads with a ``null`` schema."""
        type_ = self.fields.types[0] if self.is_bare else pa.struct(list(self.fields))
        read = _body_decoder(type_, self.is_bare).decode(bodies)
        return read if self.is_bare else replace(read, columns=tuple(read.columns[0].flatten()))


def read_body(wire: Wire, bodies: pa.Array, *, may_be_null: bool = True) -> Payloads:
    """Decode wrapped payloads (`SameSchemaMessages.bodies`) with their schema's wire.

    A ``null`` payload is a row of nulls; without ``may_be_null`` it is bad.
    """
    read = _decode(_body_decoder(wire.type, may_be_null), wire, bodies)
    return converted(wire, read.columns[0], read)


def _decode(decoder: JsonDecoder, wire: Wire, bodies: pa.Array) -> Payloads:
    """Decode payloads in which decimals may be numbers (``decimal.format=NUMERIC``).

    A pattern with the member's name turns such a number into text with `NUMBER_MARK`. So array
    items, and decimals that share their name with another member, must be Base64.
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
    """Return the pattern for numbers in decimal members; empty if none can be matched by name."""
    numbers = Counter(name or PAYLOAD for name in wire.numbers)
    leaves = Counter(name for name, _ in leaf_types(pa.struct([pa.field(PAYLOAD, wire.type)])))
    names = [name for name, count in numbers.items() if leaves[name] == count]
    return rf"({member_pattern(names)}\s*:\s*)({NUMBER})" if names else ""


def _body_decoder(type_: pa.DataType, may_be_null: bool) -> JsonDecoder:
    def make() -> JsonDecoder:
        return JsonDecoder(pa.schema([pa.field(PAYLOAD, type_, nullable=may_be_null)]))

    return _READY.get_or_create((type_, may_be_null), make)


def converted(wire: Wire, given: pa.Array, read: Payloads) -> Payloads:
    """Convert wire values to table types; values that do not fit become bad payloads."""
    converted_rows, faults = wire.convert(given)
    columns = (
        converted_rows.flatten() if pa.types.is_struct(converted_rows.type) else [converted_rows]
    )
    return with_faults(columns, read.reasons, faults)


def reject_all(fields: pa.Schema, payloads: pa.Array, reason: str) -> Payloads:
    """Mark all payloads as bad for one reason, except absent payloads."""
    nulls = tuple(pa.nulls(len(payloads), field.type) for field in fields)
    return Payloads(nulls, pc.if_else(payloads.is_valid(), reason, None))


_READY_MAX = 1024
"""Maximum cached Avro decoders per process, one per schema and field selection."""


@dataclass(frozen=True)
class ConnectAvroDecoder:
    """Decodes Avro records into the table types for their ``connect.name``.

    Debezium's times without a zone become TIMESTAMP_NTZ, zoned times TIMESTAMP, days DATE. A
    decimal with a variable scale is a struct.

    Source: ``AvroData`` in Confluent's converter.

    Parameters
    ----------
    inner : AvroDecoder
        Decodes into plain Avro types.
    connect_schema : ConnectSchema
        The record's Connect schema.
    only : collection of str, optional
        Names of the fields to keep, nested names with dots. All fields by default.
    """

    inner: AvroDecoder
    connect_schema: ConnectSchema
    only: Collection[str] | None = None

    @classmethod
    def parse(cls, option: str, text: str, *, bare_name: str) -> ConnectAvroDecoder:
        """Build the decoder for an option's Avro schema (`parse_avro`)."""
        return cls._of(parse_avro(option, text, bare_name=bare_name))

    @classmethod
    def read(cls, text: str, *, bare_name: str) -> ConnectAvroDecoder:
        """Build the decoder for an Avro schema (`read_avro`)."""
        return cls._of(read_avro(text, bare_name=bare_name))

    @classmethod
    def _of(cls, inner: AvroDecoder) -> ConnectAvroDecoder:
        parsed = _parse_avro_schema(json.loads(inner.schema_json), {}, "")
        if parsed.type != "record":
            parsed = ConnectSchema("record", fields={inner.bare_name: parsed})
        return cls(inner, parsed)

    def select_fields(self, only: Collection[str]) -> ConnectAvroDecoder:
        """Return a decoder for some fields (``only``).

        Other fields are read as plain numbers and bytes, so an out-of-range logical value there
        does not make the payload bad.
        """
        return replace(self, inner=_keep_logical_types(self.inner, frozenset(only)), only=only)

    @cached_property
    def fields(self) -> pa.Schema:
        """The fields in table types."""
        return pa.schema(list(self._natural()[0]))

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The fields without a column type."""
        return self.inner.refused

    def _natural(self) -> tuple[pa.DataType, Wire]:
        # Not kept: a way of functions does not travel to the tasks.
        written = pa.struct(list(self.inner.fields))
        return natural_wire(written, self.connect_schema, keep=self.only)

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the fields of each payload."""
        read = self.inner.decode(payloads)
        fields = [field.with_nullable(True) for field in self.inner.fields]
        struct = pa.StructArray.from_arrays(list(read.columns), fields=fields)
        converted_rows, faults = self._natural()[1].convert(struct)
        return with_faults(converted_rows.flatten(), read.reasons, faults)


@lru_cache(maxsize=_READY_MAX)
def _keep_logical_types(inner: AvroDecoder, only: frozenset[str]) -> AvroDecoder:
    schema = json.loads(inner.schema_json)
    if not (isinstance(schema, dict) and "fields" in schema):
        return inner
    return AvroDecoder(json.dumps(_Plain(only).record(schema)), inner.bare_name)


class _Plain:
    """Rewrites a schema so that only selected fields keep their logical types.

    A named type may need its logical types in one use and not in another, so it is written once per
    combination under a separate name.
    """

    def __init__(self, only: Collection[str]) -> None:
        self._only = only
        self._tops = {name.partition(".")[0] for name in only}
        self._leaves = {name.rpartition(".")[2] for name in only}
        self._known: dict[str, tuple[dict[str, Any], str]] = {}
        self._written: set[str] = set()

    def record(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the root record."""
        space, needed = _space_of(schema, ""), self._only
        return {
            **schema,
            "fields": [
                {
                    "name": f["name"],
                    "type": self._of(
                        f["type"], space, f["name"] in self._tops, f["name"] in needed
                    ),
                }
                for f in schema["fields"]
            ],
        }

    def _of(self, schema: Any, space: str, may_mean: bool, means: bool) -> Any:
        """Rewrite a type; ``means`` keeps its logical type, ``may_mean`` those in selected fields."""
        if isinstance(schema, list):
            return [self._of(branch, space, may_mean, means) for branch in schema]
        if isinstance(schema, str):
            full = schema if "." in schema or not space else f"{space}.{schema}"
            resolved = self._known.get(full) or self._known.get(schema)
            return schema if resolved is None else self._named(*resolved, may_mean, means)
        if "name" in schema:
            self._known[_full_name(schema, space)] = schema, space
            return self._named(schema, space, may_mean, means)
        attributes = {name: part for name, part in schema.items() if means or name != "logicalType"}
        for inside in ("type", "items", "values"):
            if inside in attributes:
                attributes[inside] = self._of(attributes[inside], space, may_mean, means)
        return attributes

    def _named(self, schema: dict[str, Any], space: str, may_mean: bool, means: bool) -> Any:
        name = f"{_full_name(schema, space)}_{int(may_mean)}{int(means)}"
        if name in self._written:
            return name
        self._written.add(name)
        attributes = {n: part for n, part in schema.items() if means or n != "logicalType"}
        attributes |= {"name": name}
        attributes.pop("namespace", None)
        inside = _space_of(schema, space)
        if "fields" in attributes:
            attributes["fields"] = [
                {
                    "name": f["name"],
                    "type": self._of(
                        f["type"],
                        inside,
                        may_mean,
                        means or (may_mean and f["name"] in self._leaves),
                    ),
                }
                for f in attributes["fields"]
            ]
        return attributes


def _space_of(schema: dict[str, Any], space: str) -> str:
    """Return the namespace inside a named type."""
    namespace: str = schema["name"].rpartition(".")[0] or schema.get("namespace", space)
    return namespace


def _full_name(schema: dict[str, Any], space: str) -> str:
    name, inside = schema["name"], _space_of(schema, space)
    return name if "." in name or not inside else f"{inside}.{name}"


def _parse_avro_schema(schema: Any, named: dict[str, ConnectSchema], space: str) -> ConnectSchema:
    """Convert a valid Avro schema without recursion to a Connect schema."""
    if isinstance(schema, list):
        branches = [_parse_avro_schema(branch, named, space) for branch in schema]
        return next((branch for branch in branches if branch.type != "null"), branches[0])
    if isinstance(schema, str):
        return named.get(f"{space}.{schema}", named.get(schema, ConnectSchema(schema)))
    kind = schema["type"]
    if not isinstance(kind, str):
        return _parse_avro_schema(kind, named, space)
    name = schema.get("connect.name")
    if kind == "array":
        return ConnectSchema(kind, name, items=_parse_avro_schema(schema["items"], named, space))
    if "name" not in schema:
        return ConnectSchema(kind, name)
    own_name = schema["name"]
    space = own_name.rpartition(".")[0] or schema.get("namespace", space)
    fields = {
        f["name"]: _parse_avro_schema(f["type"], named, space) for f in schema.get("fields", ())
    }
    parsed = ConnectSchema(kind, name, fields=fields)
    named[own_name if "." in own_name or not space else f"{space}.{own_name}"] = parsed
    return parsed


REFERENCED = "x-referenced"
"""The document member with the referenced documents by name (`payloads.schema_registry`)."""

_PLAIN: Mapping[str, str] = {
    "integer": "int64",
    "number": "double",
    "string": "string",
    "boolean": "boolean",
}


_SEVERAL = "one of several"
"""Type name for a choice of several types, which no column can hold."""


def parse_connect_json_schema(document: Any) -> ConnectSchema:
    """Convert a JSON Schema document to a Connect schema; raises `Unreadable`.

    ``integer`` becomes int64, ``number`` double, ``object`` with ``properties`` a struct, ``array``
    with one ``items`` an array, a text ``enum`` a string. ``$ref`` and choices with ``null`` are
    resolved. ``connect.type`` and ``title`` restore a Connect record's types.

    Source: JSON Schema draft 7 and 2020-12; ``JsonSchemaData`` in Confluent's converter.
    """
    try:
        return _Reader(document).read(document, 0)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        raise Unreadable(f"it is no JSON Schema ({type(error).__name__}: {error})") from error


class _Reader:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._parts = Parts()

    def read(self, schema: Any, depth: int) -> ConnectSchema:
        """Convert one part of the document."""
        self._parts.enter(depth)
        schema = self._plain(schema)
        kind = schema.get("type", _infer_type(schema))
        if isinstance(kind, list):
            others = [branch for branch in kind if branch != "null"]
            if len(others) != 1:
                return ConnectSchema(" or ".join(map(str, others or kind)))
            kind = others[0]
        name = schema.get("title")
        if kind == "object" and schema.get("connect.type") != "map":
            return ConnectSchema("struct", name, fields=self._members(schema, depth))
        if kind == "array" and isinstance(schema.get("items"), dict):
            if schema.get("connect.type") == "map":
                return ConnectSchema("map")
            return ConnectSchema("array", name, items=self.read(schema["items"], depth + 1))
        if kind not in _PLAIN:
            return ConnectSchema(str(kind) if kind != "object" else "map")
        connect_type = str(schema.get("connect.type", _PLAIN[kind]))
        if name == DECIMAL and kind == "number":
            connect_type = "double"  # Its digits are those of a number, not bytes in Base64.
        parameters = schema.get("connect.parameters", {})
        return ConnectSchema(
            connect_type, name, parameters={str(k): str(v) for k, v in parameters.items()}
        )

    def _members(self, schema: Any, depth: int) -> dict[str, ConnectSchema]:
        properties = list(schema.get("properties", {}).items())
        # Confluent's converter numbers them: JSON's objects have no order.
        properties.sort(key=lambda item: int(item[1].get("connect.index", 0)))
        return {str(name): self.read(part, depth + 1) for name, part in properties}

    def _plain(self, schema: Any) -> Any:
        """Resolve references, and choices that only add ``null``."""
        for _ in range(DEPTH_MAX):
            choices = schema.get("oneOf") or schema.get("anyOf")
            if "$ref" in schema:
                schema = self._resolve_reference(str(schema["$ref"]))
            elif choices:
                others = [choice for choice in choices if choice.get("type") != "null"]
                if len(others) != 1:
                    return {"type": _SEVERAL}
                schema = others[0]
            elif len(schema.get("allOf", ())) == 1:
                schema = schema["allOf"][0]
            else:
                return schema
        raise Unreadable("it refers to itself")

    def _resolve_reference(self, reference: str) -> Any:
        name, _, pointer = reference.partition("#")
        at = self._document[REFERENCED][name] if name else self._document
        for part in pointer.split("/")[1:]:
            at = at[part.replace("~1", "/").replace("~0", "~")]
        return at


def _infer_type(schema: Any) -> str | None:
    """Infer the type of a schema without ``type``; None if it is unknown."""
    if "properties" in schema:
        return "object"
    texts = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return "string" if texts and all(isinstance(text, str) for text in texts) else None


_PLAIN_TYPES: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

_DIGITS_MAX = 38


def natural_type(
    connect_schema: ConnectSchema, where: str
) -> tuple[pa.DataType, tuple[RefusedField, ...]]:
    """Return the table type for a schema's values, and its members without a column type."""
    if connect_schema.type == "struct":
        return _object(connect_schema, where)
    if connect_schema.type == "array" and connect_schema.items is not None:
        item, refused = natural_type(connect_schema.items, where)
        return pa.list_(pa.field("element", item)), refused
    return _plain(connect_schema, where), ()


def _object(
    connect_schema: ConnectSchema, where: str
) -> tuple[pa.DataType, tuple[RefusedField, ...]]:
    parts: dict[str, pa.DataType] = {}
    refused: list[RefusedField] = []
    for name, part in connect_schema.fields.items():
        try:
            parts[name], inside = natural_type(part, f"{where}.{name}")
        except SchemaError as error:
            refused.append(RefusedField((name,), error))
        else:
            refused += (refusal.within(name) for refusal in inside)
    if refused and not parts:
        raise refused[0].error
    if not parts:
        raise _unsupported(where, "is an object without members")
    return pa.struct(parts), tuple(refused)


def _plain(connect_schema: ConnectSchema, where: str) -> pa.DataType:
    if connect_schema.name == DECIMAL:
        return _decimal(connect_schema, where)
    if connect_schema.type in ("int32", "int64") and connect_schema.name in DATES:
        return pa.date32()
    if connect_schema.type == "int64" and connect_schema.name in TIME_UNITS:
        return pa.timestamp("us")
    if connect_schema.type == "string" and connect_schema.name == ZONED:
        return pa.timestamp("us", tz="UTC")
    if connect_schema.type not in _PLAIN_TYPES:
        raise _unsupported(where, f"is of the type '{connect_schema.type[:40]}'")
    return _PLAIN_TYPES[connect_schema.type]


def _decimal(connect_schema: ConnectSchema, where: str) -> pa.DataType:
    """Return the decimal type for a schema; without a declared precision it has 38 digits.

    A negative scale means whole numbers rounded to a power of ten; their trailing zeros count as
    digits.
    """
    texts = connect_schema.parameters
    scale = parameter_number(texts.get("scale", ""))
    precision = parameter_number(texts.get("connect.decimal.precision", str(_DIGITS_MAX)))
    if scale is None or precision is None or precision < 1:
        raise _unsupported(where, "is a decimal of more than 38 digits, or of no scale")
    if scale < 0 and "connect.decimal.precision" in texts:
        precision -= scale
    if precision > _DIGITS_MAX:
        raise _unsupported(where, "is a decimal of more than 38 digits, or of no scale")
    if scale > precision:
        raise _unsupported(where, f"is a decimal of {precision} digits, {scale} behind the point")
    return pa.decimal128(precision, max(scale, 0))


def _unsupported(where: str, what: str) -> SchemaError:
    side = "key" if where.partition(".")[0] == "key" else "value"
    return SchemaError(
        f"the messages' schema at '{where}' {what}, which no column can hold.",
        hint=f"leave it out of the table by {setting('exceptColumnList', column_at(where))}, or "
        "leave that field out where the messages are written, or declare the columns to be read, "
        f"as by {setting(f'{side}Schema', 'id BIGINT, name STRING')}.",
        column=where,
    )
