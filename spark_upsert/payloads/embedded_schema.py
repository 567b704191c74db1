"""Payloads with a reference to their writer schema (`WriterSchemaDecoder`; docs/adr/0046).

Each payload is decoded with its schema, then widened, so a value does not depend on other rows in
the batch. The schema is in the message (`Inline`) or in a registry (`ByRegistry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import require_storable, storage_type, to_storage_types, widens
from spark_upsert.core.casts import convert
from spark_upsert.core.keys import Positions
from spark_upsert.core.lru import SharedLruMap
from spark_upsert.core.schema import refuse_reserved
from spark_upsert.errors import SchemaError, UpsertFlowError, setting
from spark_upsert.payloads.avro import read_avro
from spark_upsert.payloads.connect import (
    ConnectAvroDecoder,
    by_schema,
    converted,
    natural_type,
    parse_connect_json_schema,
    read_body,
)
from spark_upsert.payloads.decoder import (
    PARTS_MAX,
    SCHEMA_CACHE_BYTES_MAX,
    Decoder,
    Payloads,
    Piece,
    RefusedField,
    Unreadable,
    combine_pieces,
    count_parts,
    decode_safely,
    describe_exception,
    estimate_cached_bytes,
    read_json,
    refused_columns,
    shorten_reason,
)
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.logical_types import (
    ConnectSchema,
    SchemalessDefaults,
    Wire,
    object_wire,
    wire_of,
)
from spark_upsert.payloads.schema_registry import (
    HEADER_BYTES,
    MISSING_MAX,
    LookupThrottle,
    RegisteredSchema,
    RegistrySettings,
    UnknownSchema,
    header_ids,
    schema_of_id,
)


@dataclass(frozen=True)
class WriterSchema:
    """A writer schema: its fields and a decoder factory."""

    fields: pa.Schema
    """Payload fields in table types."""
    decoder: Callable[[pa.Schema], Decoder]
    """Builds a decoder from bodies to some of the fields."""
    refused: tuple[RefusedField, ...] = ()
    """Fields without a column type, not included in `fields`."""


_Text = tuple[str, str | bytes, str]
"""Schema format, schema text, and column name for a payload that is not an object."""

_READY: SharedLruMap[_Text, WriterSchema] = SharedLruMap(
    bytes_max=SCHEMA_CACHE_BYTES_MAX,
    weigh=lambda key, own: estimate_cached_bytes(
        len(key[1]), sum(count_parts(type_) for type_ in own.fields.types)
    ),
)
"""Cached schemas."""


@dataclass(frozen=True, slots=True)
class SchemaGroup:
    """Payloads with the same schema, or without one."""

    rows: Positions
    writer_schema: WriterSchema | str
    """The schema, or the reason for its absence."""
    bodies: pa.Array
    """Payload bytes for the schema's decoder, without header or schema."""
    error: SchemaError | None = None
    """The write's error if no table can store the schema's fields."""


class Schemas(Protocol):
    """Finds each payload's schema. Pickled to the tasks."""

    def parts(self, payloads: pa.Array) -> Iterator[SchemaGroup]:
        """Group payloads by schema; absent payloads have no schema."""
        ...


@dataclass(frozen=True)
class CountedFields:
    """Selects a schema's columns, without columns excluded by name."""

    left_out: frozenset[str] = frozenset()
    """Excluded names in lower case."""
    used: frozenset[str] = frozenset()
    """Lower-case names of fields that are read but not stored; reserved names are allowed."""
    images: tuple[str, ...] = ()
    """Fields with the columns as members, such as `before` and `after`; empty if the fields are
    columns."""

    def of(self, fields: pa.Schema, refused: Iterable[RefusedField] = ()) -> pa.Schema:
        """Return the selected fields; raises `SchemaError` if no table can store one of them."""
        for name, error in refused_columns(refused, bool(self.images)).items():
            if name.lower() not in self.left_out:
                raise error
        if not self.images:
            return pa.schema(self._columns(fields))
        return pa.schema(
            [
                field.with_type(pa.struct(self._columns(field.type)))
                if self.is_image(field)
                else field
                for field in fields
            ]
        )

    def is_image(self, field: pa.Field) -> bool:
        """Return whether a field's members are columns."""
        return field.name in self.images and pa.types.is_struct(field.type)

    def _columns(self, fields: Iterable[pa.Field]) -> list[pa.Field]:
        remaining = [field for field in fields if field.name.lower() not in self.left_out]
        refuse_reserved(field.name for field in remaining if field.name.lower() not in self.used)
        require_storable(to_storage_types(pa.schema(remaining)))
        if len({field.name.lower() for field in remaining}) < len(remaining):
            _merge_fields([remaining], "")  # Which says of two names that they differ in case only.
        return remaining


@dataclass(frozen=True)
class Inline:
    """Connect messages that begin with their schema (`payloads.connect`)."""

    bare_name: str
    """Column name for a payload that is not an object."""
    counted: CountedFields | None = None
    """Column check; None skips it, because a subject already declares the columns."""

    def parts(self, payloads: pa.Array) -> Iterator[SchemaGroup]:
        """Group messages by schema text."""
        for alike in by_schema(payloads):
            schema: WriterSchema | str
            error = None
            if alike.is_schemaless:
                schema = "it does not hold its schema, which 'inline' expects"
            elif not alike.schema:
                schema = "the message's schema is not JSON, or no payload follows it"
            else:
                read = partial(_inline, alike.schema, self.bare_name)
                schema, error = _read(read, "its schema", self.counted)
            yield SchemaGroup(alike.rows, schema, alike.bodies(payloads), error)


@dataclass(frozen=True)
class ByRegistry:
    """Payloads with Confluent's header and a schema in a registry."""

    settings: RegistrySettings
    kind: str
    """Required schema type: ``AVRO`` or ``JSON``."""
    bare_name: str
    is_connect: bool
    """Whether ``connect.name`` decides the types in Avro schemas."""
    newest: RegisteredSchema | None = None
    """The schema from which the columns were planned, if they come from a subject."""
    counted: CountedFields | None = None
    """Column check; None skips it, because a subject already declares the columns."""

    def parts(self, payloads: pa.Array) -> Iterator[SchemaGroup]:
        """Group payloads by schema id."""
        ids = header_ids(payloads)
        has_none = np.asarray(ids.is_null().to_numpy(zero_copy_only=False))
        if has_none.any():
            rows = np.flatnonzero(has_none)
            why = "it lacks the header of Confluent's wire format"
            yield SchemaGroup(rows, why, payloads.take(pa.array(rows)))
        bodies = pc.binary_replace_slice(payloads, 0, HEADER_BYTES, b"")
        present = np.flatnonzero(~has_none)
        numbers = ids.fill_null(-1).to_numpy(zero_copy_only=False)[present]
        order = np.argsort(numbers, kind="stable")
        schema_numbers, starts, counts = np.unique(
            numbers[order], return_index=True, return_counts=True
        )
        # Those of many payloads first: where too many are missing, it is not they that are left.
        owns = {
            number: self._find_schema(number)
            for number in schema_numbers[np.argsort(-counts)].tolist()
        }
        for number, row_indices in zip(
            schema_numbers.tolist(), np.split(order, starts[1:]), strict=False
        ):
            rows = present[row_indices]
            writer_schema, error = owns[number]
            yield SchemaGroup(rows, writer_schema, bodies.take(pa.array(rows)), error)

    def _find_schema(self, number: int) -> tuple[WriterSchema | str, SchemaError | None]:
        read = partial(self._registered, number)
        writer_schema, error = _read(read, f"schema id {number}", self.counted)
        if isinstance(writer_schema, WriterSchema):
            self._require_no_newer(number, writer_schema)
        return writer_schema, error

    def _registered(self, number: int) -> WriterSchema | str:
        try:
            registered = schema_of_id(self.settings, number)
        except UnknownSchema:
            return "is not in the registry"
        except LookupThrottle:
            return f"is not known, and {MISSING_MAX} others were not in the registry just now"
        if registered.kind != self.kind:
            return f"is one of {registered.kind}, expected {self.kind}"
        return self.parse_schema(registered.text)

    def _require_no_newer(self, number: int, own: WriterSchema) -> None:
        """Raise `SchemaError` for fields added after the write was planned; they would be lost."""
        if self.newest is None or number <= (self.newest.id or number):
            return
        planned = self.parse_schema(self.newest.text).fields
        gained = {f.name for f in flatten_fields(own.fields)} - {
            f.name for f in flatten_fields(planned)
        }
        if gained:
            raise SchemaError(
                f"the payloads have schema id {number} with {', '.join(sorted(gained)[:5])}, which "
                f"schema id {self.newest.id} did not have when the write was planned.",
                hint="run the write again; where one topic has records of several kinds, write to "
                "a path that names columns of the rows, which finds the columns in the payloads.",
            )

    def parse_schema(self, text: str) -> WriterSchema:
        """Parse a registry schema; raises `Unreadable` and `SchemaError`."""
        if self.kind == "AVRO":
            return _avro(text, self.bare_name, is_connect=self.is_connect)
        return _json(text, self.bare_name)


# -- the schemas of each kind --------------------------------------------------------------


def _read(
    read: Callable[[], WriterSchema | str], name: str, counted: CountedFields | None
) -> tuple[WriterSchema | str, SchemaError | None]:
    """Return a schema, or for the error policy a reason and the error for the write."""
    try:
        writer_schema = read()
        if isinstance(writer_schema, str):
            return f"{name} {writer_schema}", None
        if counted is not None:
            counted.of(writer_schema.fields, writer_schema.refused)
    except Unreadable as error:
        return f"{name} cannot be read: {error}", None
    except SchemaError as error:
        return f"{name} cannot be held: {error.message.rstrip('.')}", error
    except UpsertFlowError:
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the reason of the payloads
        return f"{name} cannot be read: {describe_exception(error)}", None
    return writer_schema, None


def _inline(text: bytes, bare_name: str) -> WriterSchema:
    def make() -> WriterSchema:
        return _connect(ConnectSchema.parse(read_json(text)), bare_name, is_wrapped=True)

    return _READY.get_or_create(("inline", text, bare_name), make)


def _json(text: str, bare_name: str) -> WriterSchema:
    def make() -> WriterSchema:
        return _connect(parse_connect_json_schema(read_json(text)), bare_name, is_wrapped=False)

    return _READY.get_or_create(("json", text, bare_name), make)


def _connect(connect_schema: ConnectSchema, bare_name: str, *, is_wrapped: bool) -> WriterSchema:
    is_object = connect_schema.type == "struct"
    type_, refused = natural_type(connect_schema, bare_name)
    fields = pa.schema(list(type_)) if is_object else pa.schema([pa.field(bare_name, type_)])
    decoder = _WrappedDecoder if is_wrapped else _PlainDecoder
    return WriterSchema(fields, lambda requested: decoder(requested, connect_schema), refused)


@dataclass(frozen=True)
class _WrappedDecoder:
    """Decodes payloads wrapped with a Connect schema."""

    fields: pa.Schema
    connect_schema: ConnectSchema

    def decode(self, payloads: pa.Array) -> Payloads:
        if self.connect_schema.type == "struct":
            wire = object_wire(self.fields, self.connect_schema, SchemalessDefaults())
            return read_body(wire, payloads, may_be_null=False)
        return read_body(_plain_wire(self.fields, self.connect_schema), payloads)


@dataclass(frozen=True)
class _PlainDecoder:
    """Decodes plain JSON with a known Connect schema."""

    fields: pa.Schema
    connect_schema: ConnectSchema

    def decode(self, payloads: pa.Array) -> Payloads:
        if self.connect_schema.type == "struct":
            wire = object_wire(self.fields, self.connect_schema, SchemalessDefaults())
            read = JsonDecoder(pa.schema(list(wire.type))).decode(payloads)
            struct = pa.StructArray.from_arrays(list(read.columns), fields=list(wire.type))
            return converted(wire, struct, read)
        wire = _plain_wire(self.fields, self.connect_schema)
        written = pa.schema([pa.field(self.fields.names[0], wire.type)])
        read = JsonDecoder(written, is_bare=True).decode(payloads)
        return converted(wire, read.columns[0], read)


def _plain_wire(fields: pa.Schema, connect_schema: ConnectSchema) -> Wire:
    name, type_ = fields.names[0], fields.types[0]
    return wire_of(name, type_, connect_schema, SchemalessDefaults(), where=name)


def _avro(text: str, bare_name: str, *, is_connect: bool) -> WriterSchema:
    def make() -> WriterSchema:
        if not is_connect:
            decoder = read_avro(text, bare_name=bare_name)
            chosen = lambda requested: _SelectedFields(decoder, requested)  # noqa: E731
            return WriterSchema(decoder.fields, chosen, decoder.refused)
        meant = ConnectAvroDecoder.read(text, bare_name=bare_name)
        return WriterSchema(
            meant.fields,
            lambda requested: meant.select_fields(
                frozenset(f.name for f in flatten_fields(requested))
            ),
            meant.refused,
        )

    return _READY.get_or_create(("connect" if is_connect else "avro", text, bare_name), make)


@dataclass(frozen=True)
class _SelectedFields:
    """Selects fields from another decoder's output."""

    inner: Decoder
    fields: pa.Schema

    def decode(self, payloads: pa.Array) -> Payloads:
        decoded_rows = self.inner.decode(payloads)
        by_name = dict(zip(self.inner.fields.names, decoded_rows.columns, strict=True))
        return Payloads(tuple(by_name[name] for name in self.fields.names), decoded_rows.reasons)


# -- several schemas -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InferredFields:
    """The merged fields from several payload schemas."""

    fields: pa.Schema | None
    """None if no payload has a usable schema."""
    contradicted: pa.Schema | None = None
    """Expected fields that some schemas contradict; payloads with those schemas are bad."""
    why: str | None = None
    """The reason for the first payload without a usable schema."""


def infer_fields(
    schemas: Schemas,
    batches: Iterable[pa.Array],
    narrowed: Callable[[WriterSchema], pa.Schema] = lambda own: own.fields,
    *,
    expected: pa.Schema | None = None,
    is_tolerant: bool = False,
) -> InferredFields:
    """Merge the fields from all payload schemas.

    Without ``is_tolerant``, a schema that no table can store raises its error.
    """
    # Each once, and kept until all are seen: an identity is free again once its owner is gone.
    schema_by_id: dict[int, WriterSchema] = {}
    why = None
    for part in chain.from_iterable(map(schemas.parts, batches)):
        if part.error is not None and not is_tolerant:
            raise part.error
        if isinstance(part.writer_schema, WriterSchema):
            schema_by_id[id(part.writer_schema)] = part.writer_schema
        elif why is None and part.bodies.null_count < len(part.bodies):
            why = shorten_reason(part.writer_schema)
    narrowed_fields = [narrowed(writer_schema) for writer_schema in schema_by_id.values()]
    is_odd = [expected is not None and _contradicts(expected, fields) for fields in narrowed_fields]
    odd = list(compress(narrowed_fields, is_odd))
    good = [fields for fields, differs in zip(narrowed_fields, is_odd, strict=True) if not differs]
    return InferredFields(
        merge_schemas(*good) if good else None,
        _shared(expected, odd) if expected is not None and odd else None,
        why,
    )


def _contradicts(expected: pa.Schema, fields: pa.Schema) -> bool:
    try:
        merge_schemas(expected, fields)
    except SchemaError:
        return True
    return False


def _shared(expected: pa.Schema, odd: Iterable[pa.Schema]) -> pa.Schema:
    """Return the expected fields that some schemas contain, ignoring case."""
    names = {name.lower() for fields in odd for name in fields.names}
    return pa.schema([field for field in expected if field.name.lower() in names])


def merge_schemas(*schemas: pa.Schema) -> pa.Schema:
    """Merge schemas: every field, with a type that holds the values from all schemas."""
    fields = pa.schema(_merge_fields(schemas, ""))
    if sum(map(count_parts, fields.types)) > PARTS_MAX:
        raise SchemaError(
            f"the schemas of the payloads have more than {PARTS_MAX} fields between them.",
            hint="write the payloads of several kinds to several tables, as by a path that names "
            "the column that tells them apart ('/lake/{topic}').",
        )
    return fields


def _merge_fields(parts: Iterable[Iterable[pa.Field]], above: str) -> list[pa.Field]:
    field_by_name: dict[str, pa.Field] = {}
    spelt: dict[str, str] = {}
    for field in chain.from_iterable(parts):
        where = f"{above}{field.name}"
        spelling = spelt.setdefault(field.name.lower(), field.name)
        if spelling != field.name:
            raise _contradiction(
                f"'{above}{spelling}' and '{where}', which differ in case only", spelling
            )
        if spelling in field_by_name:
            type_ = _wider(field_by_name[spelling].type, field.type, where)
            field_by_name[spelling] = pa.field(spelling, type_)
        else:
            field_by_name[spelling] = pa.field(spelling, field.type)
    return list(field_by_name.values())


def _wider(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    if widens(other, one):
        return one
    if widens(one, other):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(_merge_fields((one, other), f"{where}."))
    raise _contradiction(f"'{where}' as {one} and as {other}", where)


def _contradiction(what: str, column: str) -> SchemaError:
    return SchemaError(
        f"the schemas of the payloads have {what}, which no column can hold together.",
        hint="correct what writes the later one; where both are to be read as JSON, declare the "
        f"columns, as by {setting('valueSchema', 'id BIGINT, name STRING')}.",
        left_out=column,
    )


@dataclass(frozen=True)
class WriterSchemaDecoder:
    """Decodes each payload with its writer schema, then widens it to the requested fields.

    Parameters
    ----------
    schemas : Schemas
    fields : pyarrow.Schema
        The requested fields. A field missing in a schema is null.
    is_tolerant : bool
        Whether an unsupported schema, or a field with another type or spelling, makes the payloads
        bad instead of raising.
    refused : tuple of RefusedField
        Payload fields without a column, known when the write is planned.
    """

    schemas: Schemas
    fields: pa.Schema
    is_tolerant: bool = False
    refused: tuple[RefusedField, ...] = ()

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return each payload's fields."""
        return combine_pieces(self.fields, map(self._decode_part, self.schemas.parts(payloads)))

    def _decode_part(self, part: SchemaGroup) -> Piece:
        if part.error is not None and not self.is_tolerant:
            raise part.error
        if isinstance(part.writer_schema, str):
            return _bad(part, part.writer_schema)
        refused = self._find_refusal(part.writer_schema)
        if refused is not None and not self.is_tolerant:
            raise refused
        if refused is not None:
            return _bad(part, refused.message.rstrip("."))
        spelt = (
            _find_other_spelling(part.writer_schema.fields, self.fields)
            if self.is_tolerant
            else None
        )
        if spelt is not None:
            return _bad(part, spelt)
        common_schema = pa.schema(_common(part.writer_schema.fields, self.fields))
        decoder = part.writer_schema.decoder(
            common_schema if len(common_schema) else part.writer_schema.fields
        )
        decoded_rows = decode_safely(decoder, part.bodies)
        columns_by_name = zip(decoder.fields.names, decoded_rows.columns, strict=True)
        try:
            # By name: a decoder may give them in the order of the schema, and more than is asked.
            columns = {
                name: _conformed(column, self.fields.field(name), len(part.rows), name)
                for name, column in columns_by_name
                if self.fields.get_field_index(name) >= 0
            }
        except SchemaError as error:
            if not self.is_tolerant:
                raise
            return _bad(part, error.message.rstrip("."))
        return Piece(part.rows, columns, decoded_rows.reasons)

    def _find_refusal(self, own: WriterSchema) -> SchemaError | None:
        """Return the error if no column can hold a requested field in a schema, else None."""
        requested = {field.name: field.type for field in self.fields}
        for refusal in own.refused:
            type_ = requested.get(refusal.path[0])
            for name in refusal.path[1:]:
                if type_ is None or not pa.types.is_struct(type_):
                    type_ = None
                    break
                index = type_.get_field_index(name)
                type_ = type_.field(index).type if index >= 0 else None
            if type_ is not None:
                return refusal.error
        return None


def _bad(part: SchemaGroup, why: str) -> Piece:
    return Piece(part.rows, {}, pc.if_else(part.bodies.is_valid(), shorten_reason(why), None))


def _find_other_spelling(
    own: pa.Schema | pa.StructType, requested: pa.Schema | pa.StructType, above: str = ""
) -> str | None:
    """Return the reason if a name differs from the requested name in case only, else None."""
    wanted_types = {field.name: field.type for field in requested}
    spelt = {name.lower(): name for name in wanted_types}
    for field in own:
        where, type_ = f"{above}{field.name}", wanted_types.get(field.name)
        if type_ is None and field.name.lower() in spelt:
            spelling = spelt[field.name.lower()]
            return f"a schema of the payloads has '{where}', and the table '{above}{spelling}'"
        if type_ is not None and pa.types.is_struct(type_) and pa.types.is_struct(field.type):
            difference = _find_other_spelling(field.type, type_, f"{where}.")
            if difference is not None:
                return difference
    return None


def _common(own: pa.Schema | pa.StructType, requested: pa.Schema | pa.StructType) -> list[pa.Field]:
    """Return the requested fields in a schema, with the schema's types, in requested order."""
    field_by_index: dict[int, pa.Field] = {}
    for field in own:
        index = requested.get_field_index(field.name)
        if index < 0:
            continue
        type_, wanted_type = field.type, requested.field(index).type
        if pa.types.is_struct(type_) and pa.types.is_struct(wanted_type):
            inside = _common(type_, wanted_type)
            if not inside:
                continue
            type_ = pa.struct(inside)
        field_by_index[index] = pa.field(field.name, type_)
    return [field_by_index[field_index] for field_index in sorted(field_by_index)]


def _conformed(column: pa.Array | None, field: pa.Field, count: int, where: str) -> pa.Array:
    """Convert a column to the requested type; a missing column is null."""
    if column is None:
        return pa.nulls(count, field.type)
    stored_type = storage_type(column.type)
    if stored_type == field.type:
        return convert(column, field.type)
    if pa.types.is_struct(stored_type) and pa.types.is_struct(field.type):
        inside = dict(zip((f.name for f in stored_type), column.flatten(), strict=True))
        parts = [_conformed(inside.get(f.name), f, count, f"{where}.{f.name}") for f in field.type]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=mask)
    if not (widens(stored_type, field.type) or pa.types.is_null(stored_type)):
        raise SchemaError(
            f"a schema of the payloads has '{where}' as {stored_type}, and the table as "
            f"{field.type}.",
            hint="correct what writes it; a wider type of the same kind is taken with "
            f"{setting('mergeSchema', 'true')}.",
            column=where,
        )
    return convert(column, field.type)


def flatten_fields(fields: Iterable[pa.Field], above: str = "") -> list[pa.Field]:
    """Return the fields that are not structs, named by their dotted paths."""
    dotted_fields = []
    for field in fields:
        if pa.types.is_struct(field.type):
            dotted_fields += flatten_fields(field.type, f"{above}{field.name}.")
        else:
            dotted_fields.append(field.with_name(f"{above}{field.name}"))
    return dotted_fields
