"""Avro payloads with one known schema (`AvroDecoder`), decoded in a Python loop over rows.

Arrow has no Avro reader; a record with ten fields costs about 5 us. A logical type without a Spark
type is read as its base type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.threads import Undecodable
from spark_upsert.errors import OptionError, SchemaError, setting
from spark_upsert.payloads import avro_binary as binary
from spark_upsert.payloads.decoder import (
    Bad,
    Payloads,
    RefusedField,
    Unreadable,
    built_type,
    column_at,
    decode_blocks,
    describe_exception,
    read_json,
    require_limits,
    row_type,
    shorten_reason,
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


class _Shape(NamedTuple):
    """A compiled schema: value reader and column type."""

    reader: binary.ValueReader
    type: pa.DataType
    parts: int = 1
    error: SchemaError | None = None
    """The error if no column type can hold the values; the reader then returns None for each value."""
    refused: tuple[RefusedField, ...] = ()
    """Nested fields without a column type, left out of `type`."""


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes Avro values with one known schema and no container file.

    fastavro only parses the schema, because its reader accepts invalid indices, booleans and
    counts.

    Parameters
    ----------
    schema_json : str
        The writer's schema.
    bare_name : str
        The column name if the schema is not a record.
    """

    schema_json: str
    bare_name: str

    def __reduce__(self) -> tuple[type[AvroDecoder], tuple[str, str]]:
        return AvroDecoder, (self.schema_json, self.bare_name)

    @cached_property
    def _shape(self) -> _Shape:
        """The row reader and the row type."""
        walk = _Walk()
        shape = walk.shape(read_json(self.schema_json), "", "value", 0)
        if shape.error is not None:
            raise shape.error
        if walk.is_sparse:
            shape = shape._replace(reader=binary.metered(shape.reader))
        if pa.types.is_struct(shape.type):
            return shape
        row = binary.record({self.bare_name: shape.reader})
        return _Shape(row, pa.struct([pa.field(self.bare_name, shape.type)]), 1 + shape.parts)

    @cached_property
    def fields(self) -> pa.Schema:
        """The record's fields, or one column for any other schema."""
        return pa.schema([pa.field(f.name, storage_type(f.type)) for f in self._shape.type.fields])

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The schema's fields without a column type; the decoder skips them."""
        return self._shape.refused

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return each payload's fields."""
        return decode_blocks(self.fields, payloads, self._decode_block)

    def _decode_block(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        reader, type_ = self._shape.reader, row_type(self.fields)
        values: list[Any] = []
        bad: Bad = {}
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                values.append(binary.read_whole(reader, payload))
            except Undecodable as error:
                values.append(None)
                bad[row] = f"not Avro of the schema: {error}"
        return pa.array(values, built_type(type_)).cast(type_), bad


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise OptionError(
            "the format 'avro' needs the package 'fastavro', which is not installed here.",
            hint="run `pip install 'upsertflow[kafka]'` for the interpreter of the workers.",
        ) from error
    return fastavro


def parse_avro(option: str, text: str, *, bare_name: str) -> AvroDecoder:
    """Build the decoder for an option's Avro schema; raises `OptionError` if it is unreadable."""
    try:
        return read_avro(text, bare_name=bare_name)
    except Unreadable as error:
        raise OptionError.invalid(
            option,
            text if len(text) <= 100 else f"{text[:100]}...",
            f"an Avro schema in JSON ({error})",
            hint="give the writer's schema, as the schema registry shows it.",
        ) from error


def read_avro(text: str, *, bare_name: str) -> AvroDecoder:
    """Build the decoder for an Avro schema; raises `Unreadable` or `SchemaError`."""
    fastavro = _fastavro()
    decoder = AvroDecoder(text, bare_name)
    try:
        schema = read_json(text)
        # Ours first: it is bounded, whatever the schema is.
        fields = decoder.fields
        fastavro.parse_schema(schema)
    except (SchemaError, Unreadable):
        raise
    except Exception as error:
        raise Unreadable(describe_exception(error)) from error
    if not len(fields):
        raise SchemaError(
            "the Avro schema has no fields, so that there is nothing to store.",
            hint="give the schema of a record with fields, or of a plain value.",
        )
    return decoder


class _Walk:
    """Compiles one schema to value readers.

    A named type is compiled once, but its parts count at each use, because later steps walk them at
    each use.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Shape | None] = {}
        self.is_sparse = False
        """Whether some array may decode to more values than its bytes allow."""

    def shape(self, schema: Any, space: str, where: str, depth: int) -> _Shape:
        """Compile a schema; ``where`` is its path for errors, ``space`` the current namespace."""
        require_limits(depth=depth)
        if isinstance(schema, list):
            return self._union(schema, space, where, depth)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return _Shape(binary.PRIMITIVES[schema], _PRIMITIVES[schema])
            full = schema if "." in schema or not space else f"{space}.{schema}"
            name = full if full in self._named else schema
            if name not in self._named:
                raise ValueError(f"there is no type '{shorten_reason(schema)}'")
            return self._named[name] or self._inside(name, where)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.shape(kind, space, where, depth + 1)
        if kind == "array":
            item = self.shape(schema["items"], space, where, depth + 1)
            if not item.reader.bytes_min:
                # Not even passed over: there may be as many as the payload likes to say.
                raise _unsupported(where, "is an array of items that take no bytes")
            type_ = pa.list_(pa.field("element", item.type))
            result = _Shape(self._repeated(binary.array, item), type_, 1 + item.parts)
            return _with_faults(result, item)
        if kind == "map":
            value = self.shape(schema["values"], space, where, depth + 1)
            type_ = pa.map_(pa.string(), value.type)
            result = _Shape(self._repeated(binary.mapping, value), type_, 2 + value.parts)
            return _with_faults(result, value)
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_name(schema, space, where, depth)
        if kind not in _PRIMITIVES:
            return self.shape(kind, space, where, depth + 1)
        return _logical(schema, binary.PRIMITIVES[kind], _PRIMITIVES[kind], where)

    def _inside(self, name: str, where: str) -> _Shape:
        """Return the shape for a recursive use; its reader is looked up when a value is read."""
        error = _unsupported(where, f"refers to '{shorten_reason(name)}' from inside itself")

        def read(data: bytes, at: int) -> tuple[Any, int]:
            reader = self._named[name]
            assert reader is not None, "the type was read before its values"
            return reader.reader.read(data, at)

        # It is in an array or a union, which takes a byte.
        return _refused(binary.ValueReader(read, 1), error)

    def _repeated(
        self, make: Callable[[binary.ValueReader, int], binary.ValueReader], item: _Shape
    ) -> binary.ValueReader:
        self.is_sparse |= binary.is_sparse(item.reader, item.parts)
        return make(item.reader, item.parts)

    def _of_name(self, schema: Any, space: str, where: str, depth: int) -> _Shape:
        name = schema["name"]
        space = name.rpartition(".")[0] or schema.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        result: _Shape
        if schema["type"] == "enum":
            result = _Shape(binary.enum(_texts(schema["symbols"])), pa.string())
        elif schema["type"] == "fixed":
            plain = binary.fixed(_whole(schema["size"], "size", _FIXED_BYTES_MAX))
            result = _logical(schema, plain, pa.binary(), where)
        else:
            self._named[full] = None  # By name, not yet by shape: a use inside is a recursion.
            result = self._record(schema["fields"], space, where, depth)
        self._named[full] = result
        return result

    def _record(self, fields: Any, space: str, where: str, depth: int) -> _Shape:
        readers, columns, parts = {}, [], 1
        refused: list[RefusedField] = []
        for field in fields:
            name = field["name"]
            if name in readers:
                raise ValueError(f"the field '{name}' is there twice")
            inner = self.shape(field["type"], space, f"{where}.{name}", depth + 1)
            readers[name] = inner.reader
            refused += (refusal.within(name) for refusal in inner.refused)
            if inner.error is None:
                columns.append(pa.field(name, inner.type))
            else:
                refused.append(RefusedField((name,), inner.error))
            parts += inner.parts
            require_limits(parts=parts)
        reader = binary.record(readers)
        if refused and not columns:
            return _refused(reader, refused[0].error)
        return _Shape(reader, pa.struct(columns), parts, refused=tuple(refused))

    def _union(self, branches: list[Any], space: str, where: str, depth: int) -> _Shape:
        require_limits(parts=len(branches))
        walked = [self.shape(branch, space, where, depth + 1) for branch in branches]
        reader = binary.union([branch.reader for branch in walked])
        others = [branch for branch in walked if branch.error or not pa.types.is_null(branch.type)]
        if len(others) > 1:
            return _refused(reader, _unsupported(where, "is a union of several types"))
        result = others[0] if others else _Shape(binary.PRIMITIVES["null"], pa.null())
        return _with_faults(_Shape(reader, result.type, 1 + result.parts), result)


def _refused(reader: binary.ValueReader, error: SchemaError) -> _Shape:
    """Return a shape for values without a column type: each value is read and dropped."""
    return _Shape(binary.converted(reader, lambda _: None), pa.null(), error=error)


def _with_faults(shape: _Shape, inner: _Shape) -> _Shape:
    """Copy the inner shape's error or refused fields to the outer shape."""
    if inner.error is not None:
        return _refused(shape.reader, inner.error)
    return shape._replace(refused=inner.refused)


_FIXED_BYTES_MAX = 2**31 - 1
"""Maximum value size in Avro's own libraries."""

_DIGITS_MAX = 38


def _logical(schema: Any, plain: binary.ValueReader, type_: pa.DataType, where: str) -> _Shape:
    """Apply a schema's logical type to its plain reader and type."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and pa.types.is_binary(type_):
        precision = _whole(schema["precision"], "precision", None)
        scale = _whole(schema.get("scale", 0), "scale", precision)
        if not 1 <= precision <= _DIGITS_MAX:
            problem = f"is a decimal of {shorten_reason(str(precision))} digits"
            return _refused(plain, _unsupported(where, problem))
        decimal = pa.decimal128(precision, scale)
        return _Shape(binary.decimal(plain, decimal), decimal)
    if (schema["type"], logical) == ("int", "date"):
        return _Shape(binary.days(plain), pa.date32())
    time = _TIMES.get((schema["type"], logical))
    return _Shape(plain, type_) if time is None else _Shape(binary.micros(plain, time[1]), time[0])


def _whole(found: Any, name: str, most: int | None) -> int:
    if type(found) is not int or found < 0 or (most is not None and found > most):
        raise ValueError(f"a {name} of {shorten_reason(repr(found))}")
    return found


def _texts(symbols: Any) -> list[str]:
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise ValueError("an enum whose symbols are no names")
    return symbols


def _unsupported(where: str, what: str) -> SchemaError:
    return SchemaError(
        f"the Avro schema at '{where}' {what}, which no column can hold.",
        hint=f"leave it out of the table by {setting('exceptColumnList', column_at(where))}, or "
        "leave that field out of the schema's writer, or decode the topic with Spark's from_avro "
        "and write the columns with the envelope 'upsert'.",
        column=where,
    )
