"""Avro payloads of one known schema, decoded value by value.

Avro has no form that Arrow reads: each payload depends on the one schema and has no borders
inside. So this is a loop over rows in Python, the only one on the good path of an envelope.
It costs about 5 us for a record of ten fields; more tasks are the remedy.

Logical types are kept where Spark has the type: ``decimal``, ``date``, ``timestamp-millis``,
``timestamp-micros`` and their ``local-`` forms. Others give the type below them. A payload must
end where its value ends.

Rejected: fastavro's reader. It takes index -1 for the last symbol or branch, 7 for true, and a
count of empty items for as many items, and it is no faster. Its parser checks the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_upsert.conversions.reasons import Undecodable
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.model.schema import storage_type
from spark_upsert.payloads import avro_binary as binary
from spark_upsert.payloads.decoder import (
    Bad,
    Payloads,
    built_type,
    decode_blocks,
    row_type,
)

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_UTC, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")

_TIMES: Mapping[tuple[str, str], tuple[pa.DataType, int]] = {
    ("long", "timestamp-millis"): (_UTC, 1000),
    ("long", "timestamp-micros"): (_UTC, 1),
    ("long", "local-timestamp-millis"): (_LOCAL, 1000),
    ("long", "local-timestamp-micros"): (_LOCAL, 1),
}
"""The type, and microseconds per unit."""

_Shape = tuple[binary.Reader, pa.DataType]


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes Avro values of one known schema, without a container file around them.

    Parameters
    ----------
    schema_json : str
        The writer's schema.
    bare_name : str
        The name of the column if the schema is not a record.
    """

    schema_json: str
    bare_name: str

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[str, str]]:
        return AvroDecoder, (self.schema_json, self.bare_name)

    @cached_property
    def _shape(self) -> _Shape:
        """The reader of rows and their type."""
        reader, type_ = _walk(json.loads(self.schema_json), {}, "", "value")
        if pa.types.is_struct(type_):
            return reader, type_
        row = binary.record({self.bare_name: reader})
        return row, pa.struct([pa.field(self.bare_name, type_)])

    @cached_property
    def fields(self) -> pa.Schema:
        """The fields of the record, or one column for a value of another type."""
        return pa.schema([pa.field(f.name, storage_type(f.type)) for f in self._shape[1].fields])

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the fields of each payload."""
        return decode_blocks(self.fields, payloads, self._decode_block)

    def _decode_block(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        reader, type_ = self._shape[0], row_type(self.fields)
        values: list[Any] = []
        bad: Bad = {}
        for place, payload in enumerate(payloads.to_pylist()):
            try:
                values.append(binary.read_whole(reader, payload))
            except Undecodable as error:
                values.append(None)
                bad[place] = f"not Avro of the schema: {error}"
        return pa.array(values, built_type(type_)).cast(type_), bad


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise OptionError(
            "the format 'avro' needs the package 'fastavro', which is not installed here.",
            hint="run `pip install 'upsertflow[payloads]'` for the interpreter of the workers.",
        ) from error
    return fastavro


def parse_avro(option: str, text: str, *, bare_name: str) -> AvroDecoder:
    """Return the decoder of the Avro schema that an option gives.

    Raises
    ------
    OptionError
        The text is no Avro schema.
    SchemaError
        The schema has a part that no column can hold.
    """
    fastavro = _fastavro()
    decoder = AvroDecoder(text, bare_name)
    try:
        fastavro.parse_schema(json.loads(text))
        fields = decoder.fields
    except SchemaError:
        raise
    except (
        *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
        fastavro.schema.SchemaParseException,
    ) as error:
        raise OptionError.invalid(
            option,
            text if len(text) <= 100 else f"{text[:100]}...",
            f"an Avro schema in JSON ({type(error).__name__}: {error})",
            hint="give the writer's schema, as the schema registry shows it.",
        ) from error
    if not len(fields):
        raise SchemaError(
            "the Avro schema has no fields, so that there is nothing to store.",
            hint="give the schema of a record with fields, or of a plain value.",
        )
    return decoder


def _walk(schema: Any, named: dict[str, _Shape | None], space: str, where: str) -> _Shape:
    """Return the reader of a schema, and the type of its values."""
    if isinstance(schema, list):
        return _union(schema, named, space, where)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return binary.PRIMITIVES[schema], _PRIMITIVES[schema]
        full = schema if "." in schema or not space else f"{space}.{schema}"
        known = named.get(full, named.get(schema))
        if known is None:
            raise _unsupported(where, f"refers to '{schema}' from inside itself")
        return known
    kind = schema["type"]
    if not isinstance(kind, str):
        return _walk(kind, named, space, where)
    if kind == "array":
        item, type_ = _walk(schema["items"], named, space, where)
        if not item.bytes_min:
            raise _unsupported(where, "is an array of items that take no bytes")
        return binary.array(item), pa.list_(pa.field("element", type_))
    if kind == "map":
        value, type_ = _walk(schema["values"], named, space, where)
        return binary.mapping(value), pa.map_(pa.string(), type_)
    if kind in ("record", "error", "enum", "fixed"):
        return _walk_named(schema, named, space, where)
    if kind not in _PRIMITIVES:
        return _walk(kind, named, space, where)
    return _logical(schema, binary.PRIMITIVES[kind], _PRIMITIVES[kind])


def _logical(schema: Any, plain: binary.Reader, type_: pa.DataType) -> _Shape:
    """Return what a schema means, given what it is without its logical type."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and pa.types.is_binary(type_):
        decimal = pa.decimal128(schema["precision"], schema.get("scale", 0))
        return binary.decimal(plain, decimal), decimal
    if (schema["type"], logical) == ("int", "date"):
        return binary.days(plain), pa.date32()
    time = _TIMES.get((schema["type"], logical))
    return (plain, type_) if time is None else (binary.micros(plain, time[1]), time[0])


def _walk_named(schema: Any, named: dict[str, _Shape | None], space: str, where: str) -> _Shape:
    name = schema["name"]
    space = name.rpartition(".")[0] or schema.get("namespace", space)
    full = name if "." in name or not space else f"{space}.{name}"
    found: _Shape
    if schema["type"] == "enum":
        found = binary.enum(schema["symbols"]), pa.string()
    elif schema["type"] == "fixed":
        found = _logical(schema, binary.fixed(schema["size"]), pa.binary())
    else:
        named[full] = None  # Known by name, not yet by shape: a use inside is a recursion.
        readers, columns = {}, []
        for field in schema["fields"]:
            inside = f"{where}.{field['name']}"
            readers[field["name"]], type_ = _walk(field["type"], named, space, inside)
            columns.append(pa.field(field["name"], type_))
        found = binary.record(readers), pa.struct(columns)
    named[full] = found
    return found


def _union(branches: list[Any], named: dict[str, _Shape | None], space: str, where: str) -> _Shape:
    walked = [_walk(branch, named, space, where) for branch in branches]
    types = [type_ for _, type_ in walked if not pa.types.is_null(type_)]
    if len(types) > 1:
        raise _unsupported(where, "is a union of several types")
    return binary.union([reader for reader, _ in walked]), types[0] if types else pa.null()


def _unsupported(where: str, what: str) -> SchemaError:
    return SchemaError(
        f"the Avro schema at '{where}' {what}, which no column can hold.",
        hint="leave that field out of the schema's writer, or decode the topic with Spark's "
        "from_avro and write the columns with the envelope 'upsert'.",
        column=where,
    )
