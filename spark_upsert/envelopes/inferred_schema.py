"""Inferred columns (`infer_options`): from schemas in payloads, or from a schema registry.

Rows existing before the plan give the columns; otherwise the newest schema of a subject does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from spark_upsert.core.names import find_in_schema
from spark_upsert.core.schema import DELETED_FIELD, ErrorPolicy, TableSchema
from spark_upsert.envelopes.debezium import MONGODB, OPERATION_FIELD, name_by_fields
from spark_upsert.errors import OptionError, SchemaError, setting
from spark_upsert.options.write import EnvelopeKind, EnvelopeOptions, SchemaFrom, WriteOptions
from spark_upsert.payloads.decoder import RefusedField, Unreadable, refused_columns
from spark_upsert.payloads.embedded_schema import (
    ByRegistry,
    CountedFields,
    Inline,
    Schemas,
    WriterSchema,
    WriterSchemaDecoder,
    infer_fields,
    merge_schemas,
)
from spark_upsert.payloads.schema_registry import latest_schema

_KEY, _VALUE = "key", "value"
_IMAGES, _OP = ("before", "after"), "op"


@dataclass(frozen=True)
class InferredSide:
    """Inferred columns for the keys or the values."""

    schemas: Schemas
    fields: pa.Schema
    is_tolerant: bool = False
    """As in `WriterSchemaDecoder`."""
    refused: tuple[RefusedField, ...] = ()
    """Fields in a subject's newest schema not storable in a column."""

    def decoder(self, requested: pa.Schema | None = None) -> WriterSchemaDecoder:
        """Return the decoder for the requested fields, or for all."""
        fields = self.fields if requested is None else requested
        return WriterSchemaDecoder(self.schemas, fields, self.is_tolerant, self.refused)

    def event(self) -> tuple[pa.Schema, pa.Schema]:
        """Return a change event's row columns and its other fields."""
        by_name = {field.name: field for field in self.fields}
        images = [
            pa.schema(list(by_name[name].type))
            for name in _IMAGES
            if name in by_name and pa.types.is_struct(by_name[name].type)
        ]
        if not images or _OP not in by_name:
            message_kind = name_by_fields(by_name)
            if message_kind is not None:
                raise SchemaError(
                    f"the payloads are {message_kind}.",
                    hint="write the topics of tables alone: name them by 'subscribe', or by a "
                    "'subscribePattern' that no other topic matches.",
                )
            description = f"they have {', '.join(by_name) or 'no fields'}"
            if _OP in by_name and any(name in by_name for name in _IMAGES):
                description = f"'after' is {MONGODB}"
            raise SchemaError(
                "the schemas of the payloads are not those of Debezium's change events: "
                f"{description}.",
                hint="events that were flattened are rows: use the envelope 'kafka' for them, and "
                f"{setting('applyAsDeletes', DELETED_FIELD)} where they have that field.",
            )
        image = images[0] if len(images) == 1 else merge_schemas(*images)
        return image, pa.schema([f for f in self.fields if f.name not in _IMAGES])


def infer_options(
    options: WriteOptions, batches: Iterable[pa.RecordBatch], known: TableSchema | None
) -> WriteOptions:
    """Return write options, completed with the columns inferred from payloads.

    Notes
    -----
    A loop over each batch's distinct schemas; payloads are not decoded.
    """
    envelope = options.envelope
    if not envelope.finds:
        return options
    policy = known.on_error if options.on_error is None and known else options.on_error
    is_tolerant = policy not in (None, ErrorPolicy.FAIL)
    left_out, used = _left_out(options, known)
    envelope = replace(envelope, left_out=left_out, used=used, is_tolerant=is_tolerant)
    schema_by_side: dict[str, pa.Schema] = {}
    contradicted: dict[str, pa.Schema] = {}
    whys: dict[str, str] = {}
    count = 0
    schemas = {side: schemas_of(envelope, side) for side in envelope.sources}
    narrowed = {side: _RequiredFields(field_selection(envelope, side)) for side in envelope.sources}
    is_expected = is_tolerant and known is not None
    expected = {
        side: _substitute_fields(envelope, side, None, known, 0)
        for side in envelope.sources
        if is_expected
    }
    for batch in batches:
        count += batch.num_rows
        for side, schema in schemas.items():
            name = find_in_schema(side, batch.schema, role="column of Kafka's records")
            payloads = batch.column(name).cast(pa.binary())
            read = infer_fields(
                schema,
                [payloads],
                narrowed[side],
                expected=expected.get(side),
                is_tolerant=is_tolerant,
            )
            if read.fields is not None:
                schema_by_side[side] = (
                    merge_schemas(schema_by_side[side], read.fields)
                    if side in schema_by_side
                    else read.fields
                )
            if read.contradicted is not None:
                before = contradicted.get(side, read.contradicted)
                contradicted[side] = merge_schemas(before, read.contradicted)
            if read.why is not None:
                whys.setdefault(side, read.why)
    is_described = True
    for side in envelope.sources:
        if side not in schema_by_side:
            fields = _substitute_fields(
                envelope, side, schema_by_side.get(_KEY), known, count, whys.get(side)
            )
            schema_by_side[side] = _with_mark(fields, options.deletes) if side == _VALUE else fields
            is_described = is_described and side != _VALUE
        elif side in contradicted:
            schema_by_side[side] = merge_schemas(schema_by_side[side], contradicted[side])
    not_read = {name for narrowed_side in narrowed.values() for name in narrowed_side.left_out}
    if not is_described:
        # No payload has a field to leave out.
        not_read = {name.lower() for name in options.except_columns}
    return replace(
        options,
        envelope=replace(envelope, found=schema_by_side),
        except_columns=tuple(n for n in options.except_columns if n.lower() not in not_read),
    )


def _left_out(
    options: WriteOptions, known: TableSchema | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the unread field names, and the names read but not stored.

    In lower case. A delete mark read by no option is in neither set, so it is refused.
    """
    of_use = [*options.sequence_by, *(field.name for field in (known.order if known else ()))]
    of_use += [OPERATION_FIELD, options.envelope.list_column or ""]
    for engine in (options.engine, known and known.engine):
        of_use += engine.column_order.values() if engine else ()
    used = frozenset(name.rpartition(".")[2].lower() for name in of_use)
    not_stored = frozenset(name.lower() for name in options.except_columns)
    mark = frozenset({(options.deletes or DELETED_FIELD).lower()})
    not_read = not_stored - used - mark
    return not_read, (not_stored & used) | (mark if options.deletes else frozenset())


class _RequiredFields:
    """Selects a schema's fields, except those left out by name."""

    def __init__(self, counted: CountedFields) -> None:
        self._counted = counted
        self.left_out: set[str] = set()
        """In lower case; fields neither stored nor otherwise used."""

    def __call__(self, own: WriterSchema) -> pa.Schema:
        counted = self._counted
        images = [field.type for field in own.fields if counted.is_image(field)]
        columns = chain.from_iterable(images) if counted.images else own.fields
        names = {field.name.lower() for field in columns}
        names |= {name.lower() for name in refused_columns(own.refused, bool(counted.images))}
        self.left_out |= counted.left_out & names
        return counted.of(own.fields, own.refused)


def _substitute_fields(
    envelope: EnvelopeOptions,
    side: str,
    key: pa.Schema | None,
    known: TableSchema | None,
    count: int,
    why: str | None = None,
) -> pa.Schema:
    """Return substitute fields for keys or values described by no payload."""
    if known is not None:
        columns = [field for field in known.columns if field.name != known.error_column]
        if side == _KEY:
            return pa.schema([field for field in columns if field.name in known.keys])
        row = pa.schema([field for field in columns if field.name not in known.keys])
        row = pa.schema(columns) if envelope.kind is EnvelopeKind.DEBEZIUM else row
    elif side == _KEY and envelope.kind is EnvelopeKind.DEBEZIUM:
        return pa.schema([])  # Keys are in the rows, too.
    elif side == _VALUE and key is not None and len(key):
        row = key if envelope.kind is EnvelopeKind.DEBEZIUM else pa.schema([])
    else:
        raise SchemaError(
            f"none of {count} payloads in '{side}' says its schema, and there is no table yet"
            f"{'' if why is None else f' (the first: {why})'}.",
            hint="see that the format is the one that was written: JSON with schemas "
            "('schemas.enable=true' of Connect's converter), or Confluent's with an id in front. "
            f"JSON without them is read by {setting(f'{side}Schema', 'id BIGINT, name STRING')}, "
            "with the columns that are there.",
            column=side,
        )
    if envelope.kind is not EnvelopeKind.DEBEZIUM:
        return row
    image = pa.struct(list(row))
    return pa.schema({**dict.fromkeys(_IMAGES, image), _OP: pa.string()})


def _with_mark(fields: pa.Schema, deletes: str | None) -> pa.Schema:
    """Add the field marking deletes, absent from payloads and table columns."""
    if deletes is None or deletes.lower() in {name.lower() for name in fields.names}:
        return fields
    return fields.append(pa.field(deletes, pa.bool_()))


def infer_sides(envelope: EnvelopeOptions) -> dict[str, InferredSide]:
    """Return the inferred columns for keys and values without a declared schema."""
    return {
        side: InferredSide(schemas_of(envelope, side), envelope.found[side], envelope.is_tolerant)
        if side in envelope.found
        else _latest_columns(envelope, side)
        for side in envelope.sources
    }


def _latest_columns(envelope: EnvelopeOptions, side: str) -> InferredSide:
    """Return the columns in a subject's newest schema, before any row is read."""
    subject = envelope.subjects.get(side)
    schemas = schemas_of(envelope, side)
    if subject is None or not isinstance(schemas, ByRegistry):
        by = " or, with a registry, name the subject of its newest schema by "
        by = f"{by}'{side}Subject'" if isinstance(schemas, ByRegistry) else ""
        raise OptionError(
            f"the columns of the {side}s are to be found in the rows, and this write is planned "
            "before it has any.",
            hint="write to a path that names columns of the rows, such as '/lake/{topic}': each of "
            f"its tables is planned when its rows are there;{by} or give '{side}Schema'.",
            option=f"{side}Schema",
        )
    try:
        newest = latest_schema(schemas.settings, subject)
        own_schema = schemas.parse_schema(newest.text) if newest.kind == schemas.kind else None
    except Unreadable as error:
        raise SchemaError(
            f"the newest schema of the subject '{subject}' has no columns: {error}.",
            hint=f"correct it in the registry, or give '{side}Schema'.",
        ) from error
    if own_schema is None:
        raise SchemaError(
            f"the newest schema of the subject '{subject}' is one of {newest.kind}, and "
            f"'{side}Format' means {schemas.kind}.",
            hint=f"give {side}Format=avro-confluent or json-confluent, as it is written.",
        )
    refreshed = replace(schemas, newest=newest, counted=None)
    return InferredSide(refreshed, own_schema.fields, refused=own_schema.refused)


def schemas_of(envelope: EnvelopeOptions, side: str) -> Schemas:
    """Return how keys or values name their schemas."""
    counted = field_selection(envelope, side)
    if envelope.sources[side] is SchemaFrom.INLINE:
        return Inline(bare_name=side, counted=counted)
    assert envelope.registry is not None
    written = envelope.payloads[f"{side}Format"] or envelope.payloads["valueFormat"] or ""
    return ByRegistry(
        settings=envelope.registry,
        kind="AVRO" if written.lower().startswith("avro") else "JSON",
        bare_name=side,
        is_connect=envelope.kind is EnvelopeKind.DEBEZIUM,
        counted=counted,
    )


def field_selection(envelope: EnvelopeOptions, side: str) -> CountedFields:
    """Return the field selection for key or value schemas."""
    is_event = envelope.kind is EnvelopeKind.DEBEZIUM and side == _VALUE
    return CountedFields(envelope.left_out, envelope.used, _IMAGES if is_event else ())
