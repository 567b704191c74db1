"""Avro payloads, decoded by fastavro, one by one.

Avro has no form that Arrow reads: each payload depends on the one schema and has no borders
inside. So this is a loop over rows in Python, the only one on the good path of an envelope.
It costs about 10 us for a record of ten fields; more tasks are the remedy.

Logical types are kept where Spark has the type: ``decimal``, ``date``, ``timestamp-millis``,
``timestamp-micros`` and their ``local-`` forms. Others give the type below them. A payload must
end where its value ends.

Rejected: a decoder of our own. It would be faster for flat records and wrong for the rest.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.schema import storage_type
from spark_upsert.upsert.payloads.decoder import Bad, Payloads, Undecodable, decode_blocks, row_type

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

_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}

_UNREADABLE = (EOFError, IndexError, ValueError, OverflowError, KeyError, TypeError)
"""What fastavro raises for bytes that are not of the schema."""


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

    @cached_property
    def _shape(self) -> tuple[Any, pa.DataType]:
        return _shape_of(self.schema_json)

    @cached_property
    def _is_record(self) -> bool:
        return pa.types.is_struct(self._shape[1])

    @cached_property
    def _built(self) -> pa.DataType:
        """The struct that is built from Python values: times are still in their own unit."""
        built = self._shape[1]
        return built if self._is_record else pa.struct([pa.field(self.bare_name, built)])

    @cached_property
    def fields(self) -> pa.Schema:
        """The fields of the record, or one column for a value of another type."""
        return pa.schema([pa.field(f.name, storage_type(f.type)) for f in self._built.fields])

    @cached_property
    def _parsed(self) -> Any:
        return _fastavro().parse_schema(self._shape[0])

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the fields of each payload."""
        return decode_blocks(self.fields, payloads, self._decode_block)

    def _decode_block(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        built, type_ = self._built, row_type(self.fields)
        pieces: list[pa.Array] = []
        bad: Bad = {}
        for place, payload in enumerate(payloads.to_pylist()):
            try:
                pieces.append(pa.array([self._read(payload)], built).cast(type_))
            except Undecodable as error:
                bad[place] = str(error)
                pieces.append(pa.nulls(1, type_))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                bad[place] = f"a value out of range: {error}"
                pieces.append(pa.nulls(1, type_))
        return pa.concat_arrays(pieces), bad

    def _read(self, payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            value = _fastavro().schemaless_reader(stream, self._parsed, None)
        except _UNREADABLE as error:
            raise Undecodable(f"not Avro of the schema: {_described(error)}") from error
        rest = len(payload) - stream.tell()
        if rest:
            raise Undecodable(f"not Avro of the schema: {rest} bytes too many")
        return value if self._is_record else {self.bare_name: value}


def _described(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    return f"{type(error).__name__}: {error}"


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
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
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


def _shape_of(text: str) -> tuple[Any, pa.DataType]:
    """Return the schema without the logical types that Arrow makes, and the Arrow type."""
    return _walk(json.loads(text), {}, "", "value")


def _walk(
    schema: Any, named: dict[str, tuple[Any, pa.DataType] | None], space: str, where: str
) -> tuple[Any, pa.DataType]:
    """Return a schema without logical types but ``decimal``, and the type of its values.

    fastavro would make a Python object of each time, with the limits of Python's calendar.
    """
    if isinstance(schema, list):
        return _union(schema, named, space, where)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema, _PRIMITIVES[schema]
        full = schema if "." in schema or not space else f"{space}.{schema}"
        known = named.get(full, named.get(schema))
        if known is None:
            raise _unsupported(where, f"refers to '{schema}' from inside itself")
        return full if full in named else schema, known[1]
    kind = schema["type"]
    if not isinstance(kind, str):
        return _walk(kind, named, space, where)
    if kind == "array":
        items, type_ = _walk(schema["items"], named, space, where)
        return {"type": "array", "items": items}, pa.list_(pa.field("element", type_))
    if kind == "map":
        values, type_ = _walk(schema["values"], named, space, where)
        return {"type": "map", "values": values}, pa.map_(pa.string(), type_)
    if kind in ("record", "error", "enum", "fixed"):
        return _walk_named(schema, named, space, where)
    if schema.get("logicalType") == "decimal":
        return schema, pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind not in _PRIMITIVES:
        return _walk(kind, named, space, where)
    return kind, _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVES[kind])


def _walk_named(
    schema: Any, named: dict[str, tuple[Any, pa.DataType] | None], space: str, where: str
) -> tuple[Any, pa.DataType]:
    name = schema["name"]
    space = name.rpartition(".")[0] or schema.get("namespace", space)
    full = name if "." in name or not space else f"{space}.{name}"
    kind = schema["type"]
    plain: dict[str, Any] = {"type": kind, "name": full}
    if kind == "enum":
        found = {**plain, "symbols": schema["symbols"]}, pa.string()
    elif kind == "fixed" and schema.get("logicalType") == "decimal":
        found = {**schema, "name": full}, pa.decimal128(schema["precision"], schema.get("scale", 0))
    elif kind == "fixed":
        found = {**plain, "size": schema["size"]}, pa.binary()
    else:
        named[full] = None  # Known by name, not yet by shape: a use inside is a recursion.
        fields, columns = [], []
        for field in schema["fields"]:
            inner, type_ = _walk(field["type"], named, space, f"{where}.{field['name']}")
            fields.append({"name": field["name"], "type": inner})
            columns.append(pa.field(field["name"], type_))
        found = {**plain, "type": "record", "fields": fields}, pa.struct(columns)
    named[full] = found
    return found


def _union(
    branches: list[Any], named: dict[str, tuple[Any, pa.DataType] | None], space: str, where: str
) -> tuple[Any, pa.DataType]:
    walked = [_walk(branch, named, space, where) for branch in branches]
    types = [type_ for _, type_ in walked if not pa.types.is_null(type_)]
    if len(types) > 1:
        raise _unsupported(where, "is a union of several types")
    return [branch for branch, _ in walked], types[0] if types else pa.null()


def _unsupported(where: str, what: str) -> SchemaError:
    return SchemaError(
        f"the Avro schema at '{where}' {what}, which no column can hold.",
        hint="leave that field out of the schema's writer, or decode the topic with Spark's "
        "from_avro and write the columns with the envelope 'upsert'.",
        column=where,
    )
