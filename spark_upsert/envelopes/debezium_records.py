"""Change events in rows: Kafka records as bytes (`RecordForm`), or parsed structs (`ParsedForm`).

Only the bytes distinguish a record without a value, which is a delete, from an undecodable one.
Only requested fields are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import widens
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.names import find_column, find_columns, has_column
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.envelopes.debezium import (
    AFTER,
    BEFORE,
    MONGODB,
    OP,
    DebeziumEnvelope,
    EventBatch,
    EventDecoder,
    EventKeys,
    Events,
    PartialDecoder,
)
from spark_upsert.envelopes.inferred_schema import InferredSide
from spark_upsert.envelopes.kafka import AVRO, JSON, PayloadFormat
from spark_upsert.envelopes.moved_keys import MovedKeys, has_headers
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.write import EnvelopeOptions, MissingFields, Truncates
from spark_upsert.payloads.connect import ConnectAvroDecoder, ConnectJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Decoder, RefusedField, decode_safely, refused_columns
from spark_upsert.payloads.logical_types import SchemalessDefaults
from spark_upsert.payloads.missing_members import combine_masks, find_missing
from spark_upsert.payloads.placeholders import (
    DEFAULT_PLACEHOLDER,
    Placeholder,
    decode_again,
    decode_without,
)
from spark_upsert.table.write.commands import rows_as_json
from spark_upsert.table.write.form import Path, at_path, dotted, leaves, order_names
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule

KEY, VALUE = "key", "value"
_ORDER = ("partition", "offset")

_TIMES = {"ts_ms": pa.int64(), "ts_us": pa.int64(), "ts_ns": pa.int64()}

EVENT_FIELDS = pa.schema(
    {
        OP: pa.string(),
        **_TIMES,
        "source": pa.struct(
            {
                **dict.fromkeys(("connector", "name", "version", "db", "schema"), pa.string()),
                **dict.fromkeys(("table", "snapshot", "sequence"), pa.string()),
                **_TIMES,
                # PostgreSQL.
                **dict.fromkeys(("lsn", "txId", "xmin"), pa.int64()),
                # MySQL and MariaDB.
                **dict.fromkeys(("server_id", "pos", "row", "thread"), pa.int64()),
                **dict.fromkeys(("file", "gtid", "query"), pa.string()),
                # SQL Server.
                **dict.fromkeys(("change_lsn", "commit_lsn"), pa.string()),
                "event_serial_no": pa.int64(),
            }
        ),
        "transaction": pa.struct(
            {
                "id": pa.string(),
                "total_order": pa.int64(),
                "data_collection_order": pa.int64(),
            }
        ),
    }
)
"""Event fields outside the row images. Oracle's change numbers are texts, which do not compare as
numbers; its topics are ordered by offset."""

_FORMATS = (JSON, AVRO, "json-confluent", "avro-confluent")

MakeDecoder = Callable[[pa.Schema], Decoder]
"""Returns the decoder for some fields."""


def record_form(
    rows: pa.Schema, options: EnvelopeOptions, found: Mapping[str, InferredSide]
) -> RecordForm:
    """Return the form for records, from options and inferred columns."""
    payload_format, schemaless_defaults = options.payloads, options.schemaless_defaults
    value = PayloadFormat.parse(VALUE, payload_format, options.schema_ids, formats=_FORMATS)
    key = PayloadFormat.parse(KEY, payload_format, options.schema_ids, default=value.name)
    refused: tuple[RefusedField, ...] = ()
    if VALUE in found:
        image, event, make_values = _inferred_parts(found[VALUE])
        refused = found[VALUE].refused
    elif value.format == AVRO:
        image, event, make_values, refused = _avro(value, schemaless_defaults)
    else:
        image, event, make_values = _json(value, schemaless_defaults)

    def make_keys(columns: pa.Schema) -> Decoder | None:
        if KEY not in found:
            return _keys(key, columns, schemaless_defaults)
        return found[KEY].decoder(found[KEY].fields if len(found[KEY].fields) else columns)

    names = {name.lower() for name in image.names}
    keys = tuple(found[KEY].fields.names) if KEY in found else ()
    return RecordForm(
        rows,
        image,
        event,
        make_keys,
        make_values,
        options.truncates,
        options.placeholder or DEFAULT_PLACEHOLDER,
        refused_columns(refused, images=True),
        schemaless_defaults,
        is_declared_json=VALUE not in found and value.format == JSON,
        finds_missing=options.missing_fields is MissingFields.UNCHANGED,
        # A plain-value key has no name, and a key with other names is not the rows' key.
        keys=keys if all(name.lower() in names for name in keys) else (),
    )


def _inferred_parts(value: InferredSide) -> tuple[pa.Schema, pa.Schema, MakeDecoder]:
    """Return the row's columns, the event's other fields, and a decoder factory."""
    image, envelope_fields = value.event()
    return image, add_event_fields(envelope_fields), value.decoder


def add_event_fields(row_schema: pa.Schema) -> pa.Schema:
    """Return the event's other fields, with types from `EVENT_FIELDS` where these are wide enough.

    So an order's type does not depend on a batch's schema.
    """
    return pa.schema(_merge_fields(EVENT_FIELDS, row_schema))


def _merge_fields(fixed: Iterable[pa.Field], found: Iterable[pa.Field]) -> list[pa.Field]:
    fixed_by_name = {field.name: field for field in fixed}
    for field in found:
        if field.name not in fixed_by_name:
            fixed_by_name[field.name] = field
        elif pa.types.is_struct(field.type) and pa.types.is_struct(fixed_by_name[field.name].type):
            parts = _merge_fields(fixed_by_name[field.name].type, field.type)
            fixed_by_name[field.name] = field.with_type(pa.struct(parts))
        elif not widens(field.type, fixed_by_name[field.name].type):
            fixed_by_name[field.name] = field
    return list(fixed_by_name.values())


def _json(
    value: PayloadFormat, schemaless_defaults: SchemalessDefaults
) -> tuple[pa.Schema, pa.Schema, MakeDecoder]:
    """Return the row's columns, the event's other fields, and a decoder factory."""
    image, is_plain = parse_schema(value.option, value.require_text(), bare_name=VALUE)
    if is_plain:
        raise OptionError.invalid(
            value.option, str(value.text), "the columns of a row, such as 'id BIGINT, name STRING'"
        )

    for name in find_columns(schemaless_defaults.units, image.names, role="column of 'timeUnit'"):
        field = image.field(name)
        if not pa.types.is_timestamp(field.type):
            raise SchemaError(
                f"'timeUnit.{field.name}' is the unit of a column that is {field.type}.",
                hint=f"declare '{field.name}' as TIMESTAMP_NTZ or TIMESTAMP, or drop the option.",
                column=field.name,
            )

    def make(event: pa.Schema) -> Decoder:
        return value.after_header(ConnectJsonDecoder(event, schemaless_defaults, (BEFORE, AFTER)))

    return image, EVENT_FIELDS, make


def _avro(
    value: PayloadFormat, schemaless_defaults: SchemalessDefaults
) -> tuple[pa.Schema, pa.Schema, MakeDecoder, tuple[RefusedField, ...]]:
    if schemaless_defaults != SchemalessDefaults():
        raise OptionError(
            f"options 'timeUnit' and 'decimalHandling' have no meaning with "
            f"{value.side}Format={value.name}, whose schema says what values mean.",
            hint="drop them.",
        )
    decoder = ConnectAvroDecoder.parse(value.option, value.require_text(), bare_name=VALUE)
    fields = {field.name: field for field in decoder.fields}
    for name in (BEFORE, AFTER, OP):
        find_column(name, list(fields), role="field of a Debezium event")
        if name != OP and not pa.types.is_struct(fields[name].type):
            raise SchemaError(
                f"'{name}' of the Avro schema must be a record, found {fields[name].type}.",
                hint="give the writer's schema of the whole event, as the registry shows it.",
                column=name,
            )

    def make(event: pa.Schema) -> Decoder:
        needed = frozenset(".".join(path) for path, _ in leaves(event))
        return value.after_header(decoder.select_fields(needed))

    image = pa.schema(list(fields[AFTER].type))
    envelope_fields = [field for name, field in fields.items() if name not in (BEFORE, AFTER)]
    return image, pa.schema(envelope_fields), make, decoder.refused


def _keys(
    key: PayloadFormat, columns: pa.Schema, schemaless_defaults: SchemalessDefaults
) -> Decoder | None:
    """Return the decoder for keys with these columns; None if no option declares their schema."""
    if key.format == AVRO:
        if key.text is None:
            return None
        return key.after_header(ConnectAvroDecoder.parse(key.option, key.text, bare_name=KEY))
    if key.format != JSON:
        return key.decoder()
    if key.text is not None:
        columns, is_bare = parse_schema(key.option, key.text, bare_name=KEY)
        if is_bare:
            return key.decoder()
    return key.after_header(ConnectJsonDecoder(columns, schemaless_defaults))


@dataclass(frozen=True)
class RecordForm:
    """Kafka records with change events as values.

    Parameters
    ----------
    rows : pyarrow.Schema
        The records' columns.
    image : pyarrow.Schema
        The columns in ``before`` and ``after``.
    event : pyarrow.Schema
        The event's other columns.
    make_keys : callable
        Takes the key columns; returns None if the key schema is unknown.
    make_values : callable
        Takes the requested event fields.
    truncates : Truncates
    placeholder : Placeholder
    refused : mapping of str to SchemaError
        Row columns not storable in a table.
    schemaless_defaults : SchemalessDefaults
        Conversions for keys in headers.
    is_declared_json : bool
        Whether values are JSON with declared fields, which may be unable to store a placeholder.
    """

    rows: pa.Schema
    image: pa.Schema
    event: pa.Schema
    make_keys: Callable[[pa.Schema], Decoder | None]
    make_values: MakeDecoder
    truncates: Truncates
    placeholder: Placeholder
    refused: Mapping[str, SchemaError]
    schemaless_defaults: SchemalessDefaults
    is_declared_json: bool = False
    finds_missing: bool = False
    """Whether a field missing from ``after`` leaves its column unchanged (``missingFields``)."""
    keys: tuple[str, ...] = ()
    scope: Scope = Scope.EPOCH

    def __post_init__(self) -> None:
        for name in (KEY, VALUE):
            type_ = self.rows.field(self._name(name)).type
            if type_ not in (pa.binary(), pa.string()):
                raise SchemaError(
                    f"the column '{name}' of Kafka's records must be binary, found {type_}.",
                    hint="write the rows of spark.readStream.format('kafka') as they come; for "
                    "events that are parsed already, drop 'valueFormat'.",
                    column=name,
                )

    def _name(self, name: str) -> str:
        return find_column(name, self.rows.names, role="column of Kafka's records")

    @cached_property
    def columns(self) -> pa.Schema:
        """A row image's columns."""
        return pa.schema([field.with_nullable(True) for field in self.image])

    @property
    def others(self) -> pa.Schema:
        """Event fields outside the row images, and record columns."""
        return self.orders

    @cached_property
    def orders(self) -> pa.Schema:
        """The same columns as `others`."""
        event = dotted(self.event)
        taken = {field.name for field in event} | {self._name(VALUE)}
        return pa.schema([*event, *(field for field in self.rows if field.name not in taken)])

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the named columns; by default partition and offset, if the rows have them."""
        names = {name.lower() for name in self.rows.names}
        return tuple(named) or (_ORDER if names.issuperset(_ORDER) else ())

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `SchemaError` if a key is not a row column: deletes would lack it."""
        find_columns(keys, self.columns.names, role="key column")

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> DebeziumEnvelope:
        """Return the envelope for a table."""
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        value = self._name(VALUE)
        of_event = {field.name for field in dotted(self.event)}

        def path(name: str) -> Path:
            return (value, *name.split(".")) if name in of_event else (name,)

        order = tuple(path(name) for name in order_names(schema, self.orders))
        own_order = {c: path(source) for c, source in schema.engine.column_order.items()}
        lists = rule.list_column
        used_names = [*columns.names, *([] if lists is None else [lists])]
        images = {name for name in used_names if has_column(self.image, name)}
        paths = {n: (value, AFTER, n) if n in images else path(n) for n in used_names}
        stored = {
            column: paths[name] for column, name in zip(own_names, columns.names, strict=True)
        }
        used = (*order, *own_order.values(), *paths.values())
        needed_paths = {p for p in used if p[0] == value}
        key_fields = [self.columns.field(stored[key][-1]) for key in schema.keys]
        key_names = dict(zip(schema.keys, (f.name for f in key_fields), strict=True))
        moved_keys = None
        if has_headers(self.rows):
            decoder = ConnectJsonDecoder(pa.schema(key_fields), self.schemaless_defaults)
            moved_keys = MovedKeys(decoder, tuple(key_names.values()))
        return DebeziumEnvelope(
            schema=schema,
            reader=_RecordReader(
                key_name=self._name(KEY),
                value_name=value,
                events=self._decoder(
                    {field.name for field in key_fields},
                    images,
                    order={p[1:] for p in order if p[0] == value},
                    asked={p[1:] for p in needed_paths},
                ),
                before=self.make_values(self._event_fields(images, set(), set())),
                key=self.make_keys(pa.schema(key_fields)),
                key_fields=key_names,
                placeholder=self.placeholder if self.is_declared_json else None,
                finds_missing=self.finds_missing,
            ),
            event=(value,),
            before=BEFORE,
            after=AFTER,
            op=OP,
            columns=stored,
            order=order,
            own_order=own_order,
            truncates=self.truncates,
            placeholder=self.placeholder,
            rule=rule,
            lists=None if lists is None else paths[lists],
            moved_keys=moved_keys,
        )

    def _decoder(
        self, keys: set[str], images: set[str], *, order: set[Path], asked: set[Path]
    ) -> EventDecoder:
        """Return the decoder for events with these row columns and other fields."""

        def fields(before: set[str], after: set[str], event_paths: set[Path]) -> Decoder:
            return self.make_values(self._event_fields(before, after, event_paths))

        return EventDecoder(
            whole=fields(keys, images, asked),
            fewer=(
                PartialDecoder(decoder=fields(set(), images, asked), has_values=True),
                PartialDecoder(decoder=fields(keys, keys, order)),
                PartialDecoder(decoder=fields(set(), keys, order)),
                PartialDecoder(decoder=fields(set(), set(), order), has_after=False),
            ),
            required=tuple(f.name for f in self.image if f.name in images and not f.nullable),
        )

    def _event_fields(self, before: set[str], after: set[str], event_paths: set[Path]) -> pa.Schema:
        """Return the schema of events with these row columns and other fields."""
        rows = [
            pa.field(name, pa.struct([f for f in self.columns if f.name in columns]))
            for name, columns in ((BEFORE, before), (AFTER, after))
            if columns
        ]
        return pa.schema([*rows, *_pruned(self.event, {*event_paths, (OP,)}, ())])


def _pruned(fields: pa.Schema | pa.StructType, asked: set[Path], above: Path) -> list[pa.Field]:
    """Return the fields containing the requested paths."""
    remaining = []
    for field in fields:
        path = (*above, field.name)
        if path in asked:
            remaining.append(field)
        elif pa.types.is_struct(field.type):
            inside = _pruned(field.type, asked, path)
            if inside:
                remaining.append(field.with_type(pa.struct(inside)))
    return remaining


@dataclass(frozen=True, kw_only=True)
class _RecordReader:
    """Decodes record values, and record keys where events lack a key."""

    key_name: str
    value_name: str
    events: EventDecoder
    before: Decoder
    """Decodes all requested columns in ``before``."""
    key: Decoder | None
    key_fields: dict[str, str]
    """Field name in a row for each key column in the table."""
    placeholder: Placeholder | None = None
    """Placeholder to remove from JSON whose columns cannot store it."""
    finds_missing: bool = False

    def read(self, batch: pa.RecordBatch) -> EventBatch:
        """Return a batch's events."""
        raw_keys, raw_values = (
            batch.column(name).cast(pa.binary()) for name in (self.key_name, self.value_name)
        )
        (events, reasons, is_cut), unsent = self._decode(raw_values)
        arrays = [events if n == self.value_name else batch.column(n) for n in batch.schema.names]
        return EventBatch(
            batch=pa.RecordBatch.from_arrays(arrays, names=batch.schema.names),
            raw_values=lambda rows: raw_values.take(pa.array(rows)),
            before=lambda rows: self._decode_before(raw_values.take(pa.array(rows))),
            keys=lambda where: self._keys(pc.if_else(pa.array(where), raw_keys, None), raw_keys),
            tombstones=np.asarray(raw_values.is_null().to_numpy(zero_copy_only=False)),
            is_cut=is_cut,
            unsent=unsent,
            reasons=None
            if reasons is None
            else pc.binary_join_element_wise("the value is undecodable: ", reasons, ""),
        )

    def _decode(self, payloads: pa.Array) -> tuple[Events, dict[str, Mask]]:
        """Return the events, and the rows with unsent values by member in ``after``."""
        if self.placeholder is None:
            return self.events.decode(payloads), {}
        if not self.finds_missing:
            return self._decode_without(self.placeholder, self.events, payloads)
        decoder = self.events.without(self.events.required)
        decoded_rows, unsent = self._decode_without(self.placeholder, decoder, payloads)
        after = at_path(decoded_rows.events, (AFTER,))
        columns = {field.name: at_path(after, (field.name,)) for field in after.type}
        missing = find_missing(payloads, (AFTER,), columns, np.asarray(after.is_valid()))
        unsent = combine_masks(unsent, missing)
        return self.events.with_null_reasons(decoded_rows, unsent), unsent

    @staticmethod
    def _decode_without(
        placeholder: Placeholder, decoder: EventDecoder, payloads: pa.Array
    ) -> tuple[Events, dict[str, Mask]]:
        """Decode events with null for each placeholder that a column cannot hold."""
        decoded_rows = decoder.decode(payloads)
        types = (field.type for field in decoded_rows.events.type.field(AFTER).type)
        rows = placeholder.rows_in_doubt(payloads, decoded_rows.reasons, types)
        pieces: list[tuple[Positions, Events]] = []

        def decode(chosen: Positions, texts: pa.Array, names: frozenset[str]) -> None:
            pieces.append((chosen, decoder.without(names).decode(texts)))

        unsent = decode_again(placeholder, payloads, rows, (AFTER,), decode)
        return decoded_rows.replaced(pieces), unsent

    def _decode_before(self, payloads: pa.Array) -> pa.Array:
        """Return ``before``; null if it cannot be decoded."""
        if self.placeholder is None:
            decoded = decode_safely(self.before, payloads)
        else:
            types = [field.type for field in self.before.fields.field(BEFORE).type]
            decoded, _ = decode_without(self.placeholder, self.before, payloads, (BEFORE,), types)
        return decoded.columns[self.before.fields.get_field_index(BEFORE)]

    def _keys(self, wanted: pa.Array, raw: pa.Array) -> EventKeys:
        if self.key is None:
            reason = "the record's key is not declared ('keySchema')"
            return EventKeys(
                columns={}, reasons=pc.if_else(wanted.is_valid(), reason, None), raw=raw
            )
        decoded_keys = decode_safely(self.key, wanted)
        by_name = dict(zip(self.key.fields.names, decoded_keys.columns, strict=True))
        if len(by_name) == 1 == len(self.key_fields):
            # A plain-value key has no relevant name.
            by_name = dict(zip(self.key_fields.values(), by_name.values(), strict=True))
        columns = {
            own_name: by_name[name] for own_name, name in self.key_fields.items() if name in by_name
        }
        holds = [column.is_valid() for column in columns.values()]
        is_empty = wanted.is_valid()
        for valid in holds:
            is_empty = pc.and_not(is_empty, valid)
        reasons = pc.if_else(is_empty, f"it lacks {', '.join(self.key_fields.values())}", None)
        if decoded_keys.reasons is not None:
            reasons = pc.coalesce(decoded_keys.reasons, reasons)
        return EventKeys(
            columns=columns,
            reasons=pc.binary_join_element_wise("the key is undecodable: ", reasons, ""),
            raw=raw,
        )


_PAYLOAD, _KEY = "payload", "key"


@dataclass(frozen=True)
class ParsedForm:
    """Rows with ``before``, ``after`` and ``op``.

    Parameters
    ----------
    rows : pyarrow.Schema
        The rows' columns.
    truncates : Truncates
    placeholder : Placeholder
    """

    rows: pa.Schema
    truncates: Truncates = Truncates.ERROR
    placeholder: Placeholder = DEFAULT_PLACEHOLDER
    keys: tuple[str, ...] = ()
    scope: Scope = Scope.TABLE

    def __post_init__(self) -> None:
        for name in (AFTER, OP):
            self._name(name)
        after = self._event.field(self._name(AFTER)).type
        if not pa.types.is_struct(after):
            why = f" ({MONGODB})" if pa.types.is_string(after) else ""
            raise SchemaError(
                f"'{AFTER}' of a Debezium event must be a struct of the row, found {after}{why}.",
                hint="write the rows of spark.readStream.format('kafka') as they come, with "
                "'valueFormat' and 'valueSchema'; or parse them with a schema that has the "
                "fields of the row below 'before' and 'after'.",
                column=AFTER,
            )

    @cached_property
    def _root(self) -> Path:
        """Path to the event in a row."""
        names = {name.lower(): name for name in self.rows.names}
        if AFTER not in names and _PAYLOAD in names:
            payload = names[_PAYLOAD]
            if pa.types.is_struct(self.rows.field(payload).type):
                return (payload,)
        return ()

    @cached_property
    def _event(self) -> pa.Schema:
        return pa.schema(list(self.rows.field(self._root[0]).type)) if self._root else self.rows

    def _name(self, name: str) -> str:
        return find_column(name, self._event.names, role="field of a Debezium event")

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """Always empty, as for plain rows."""
        return {}

    @cached_property
    def columns(self) -> pa.Schema:
        """The fields in ``after``."""
        return pa.schema(list(self._event.field(self._name(AFTER)).type))

    @cached_property
    def others(self) -> pa.Schema:
        """Possible order columns for the changes, without the row images."""
        images = (f"{BEFORE}.", f"{AFTER}.")
        return pa.schema([f for f in self.orders if not f.name.lower().startswith(images)])

    @cached_property
    def orders(self) -> pa.Schema:
        """The event's leaves by dotted names, then the rows' other columns."""
        field_by_name = {field.name: field for field in dotted(self._event)}
        for field in dotted(self.rows) if self._root else ():
            field_by_name.setdefault(field.name, field)
        return pa.schema(list(field_by_name.values()))

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the named columns; by default none, which means arrival order."""
        return tuple(named)

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `SchemaError` if a key is not a field in ``after``: deletes would lack it."""
        find_columns(keys, self.columns.names, role="key column")

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> DebeziumEnvelope:
        """Return the envelope for a table."""
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        before = [name for name in self._event.names if name.lower() == BEFORE]
        after = self._name(AFTER)
        of_event = {field.name for field in dotted(self._event)}

        def path(name: str) -> Path:
            return (*(self._root if name in of_event else ()), *name.split("."))

        def column_path(name: str) -> Path:
            return (*self._root, after, name) if has_column(self.columns, name) else path(name)

        return DebeziumEnvelope(
            schema=schema,
            reader=_ParsedReader(
                {key: where for key in schema.keys if (where := self._separate_key_path(key))},
                before=(*self._root, *before),
            ),
            event=self._root,
            before=before[0] if before and self._is_row(before[0]) else None,
            after=after,
            op=self._name(OP),
            columns={
                column: column_path(name)
                for column, name in zip(own_names, columns.names, strict=True)
            },
            order=tuple(path(name) for name in order_names(schema, self.orders)),
            own_order={c: path(source) for c, source in schema.engine.column_order.items()},
            truncates=self.truncates,
            placeholder=self.placeholder,
            rule=rule,
            lists=None if rule.list_column is None else column_path(rule.list_column),
        )

    def _is_row(self, name: str) -> bool:
        return bool(pa.types.is_struct(self._event.field(name).type))

    def _separate_key_path(self, key: str) -> Path | None:
        """Return the path to a key outside the event; None if there is none."""
        columns = {name.lower(): name for name in self.rows.names}
        if key.lower() in columns:
            return (columns[key.lower()],)
        struct = columns.get(_KEY)
        if struct is None or not pa.types.is_struct(self.rows.field(struct).type):
            return None
        inside = {f.name.lower(): f.name for f in self.rows.field(struct).type}
        return (struct, inside[key.lower()]) if key.lower() in inside else None


@dataclass(frozen=True)
class _ParsedReader:
    """Returns rows with their events unchanged."""

    keys: dict[str, Path]
    """Paths to keys outside the event."""
    before: Path
    """Path to ``before``; not used if the rows have none."""

    def read(self, batch: pa.RecordBatch) -> EventBatch:
        """Return a batch's events."""

        def keys(where: Mask) -> EventKeys:
            key_columns = {
                n: at_path(batch.column(path[0]), path[1:]) for n, path in self.keys.items()
            }
            return EventKeys(columns=key_columns)

        return EventBatch(
            batch=batch,
            raw_values=lambda rows: rows_as_json(batch, rows),
            before=lambda rows: at_path(batch.take(pa.array(rows)).to_struct_array(), self.before),
            keys=keys,
            tombstones=np.zeros(batch.num_rows, dtype=np.bool_),
        )
