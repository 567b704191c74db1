"""The ``kafka`` envelope: records from Spark's Kafka source, and key and value formats.

The order is (partition, offset) within one epoch (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask
from spark_upsert.core.names import find_column, find_columns
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.envelopes.debezium import FlattenedReader
from spark_upsert.envelopes.moved_keys import MovedKeys, has_headers
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.declare import one_of
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.connect import ConnectJsonDecoder, DeclaredJsonDecoder
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import (
    Decoder,
    Payloads,
    RawDecoder,
    decode_safely,
    refused_columns,
    refused_fields,
    with_faults,
)
from spark_upsert.payloads.logical_types import SchemalessDefaults
from spark_upsert.payloads.missing_members import combine_masks, find_missing, null_faults
from spark_upsert.payloads.placeholders import DEFAULT_PLACEHOLDER, Placeholder, decode_without
from spark_upsert.payloads.schema_registry import ConfluentDecoder
from spark_upsert.table.write.commands import DecodedRows, apply_rule, to_commands
from spark_upsert.table.write.form import Path, at_path, dotted, find_delete_mark, order_names
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule

_KEY, _VALUE = "key", "value"
_SOURCE_FIELD = "__source_"
"""Start of the names of ``source``'s fields in flattened events."""
_ORDER = ("partition", "offset")


@dataclass(frozen=True)
class KafkaForm:
    """Rows from Spark's Kafka source.

    Parameters
    ----------
    rows : pyarrow.Schema
        The rows' columns.
    key, value : Decoder
    deletes : str or None
        The value field marking deletes.
    placeholder : Placeholder
    is_declared_json : bool
        Whether values are JSON with declared fields, which may be unable to store a placeholder.
    """

    rows: pa.Schema
    key: Decoder
    value: Decoder
    deletes: str | None = None
    placeholder: Placeholder = DEFAULT_PLACEHOLDER
    is_declared_json: bool = False
    finds_missing: bool = False
    """Whether a field missing from JSON leaves its column unchanged (``missingFields``)."""
    required: tuple[str, ...] = ()
    """With ``finds_missing``, the fields declared NOT NULL; the decoder allows nulls."""
    scope: Scope = Scope.EPOCH

    def __post_init__(self) -> None:
        for name in (_KEY, _VALUE):
            type_ = self.rows.field(self._name(name)).type
            if type_ not in (pa.binary(), pa.string()):
                raise SchemaError(
                    f"the column '{name}' of Kafka's records must be binary, found {type_}.",
                    hint="write the rows of spark.readStream.format('kafka') as they come; use "
                    "the envelope 'upsert' for rows that are decoded already.",
                    column=name,
                )

    def _name(self, name: str) -> str:
        return find_column(name, self.rows.names, role="column of Kafka's records")

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """Key and value fields not storable in a table."""
        fields = (*refused_fields(self.key), *refused_fields(self.value))
        return refused_columns(fields, images=False)

    @cached_property
    def _mark(self) -> str | None:
        """The value field marking deletes."""
        if self.deletes is None:
            return None
        return find_delete_mark(self.deletes, self.value.fields, may_be_text=True)

    @cached_property
    def columns(self) -> pa.Schema:
        """The key's fields, then the value's other fields.

        The field marking deletes is left out.
        """
        names = {name.lower() for name in self.key.fields.names}
        if self._mark is not None:
            names.add(self._mark.lower())
        values = [field for field in self.value.fields if field.name.lower() not in names]
        return pa.schema([field.with_nullable(True) for field in (*self.key.fields, *values)])

    @cached_property
    def others(self) -> pa.Schema:
        """The field marking deletes, and the record's own columns."""
        names = {name.lower() for name in self.columns.names}
        marks = [] if self._mark is None else [self.value.fields.field(self._mark)]
        others = [field for field in self.rows if field.name.lower() not in names]
        return pa.schema([*marks, *(field for field in others if field.name != self._mark)])

    @cached_property
    def orders(self) -> pa.Schema:
        """The record's columns, then ``key.<field>`` and ``value.<field>``."""
        sides = ((_KEY, self.key), (_VALUE, self.value))
        return pa.schema(
            [
                *(f for f in self.rows if not pa.types.is_nested(f.type)),
                *(f for side, decoder in sides for f in dotted(decoder.fields, (side,))),
            ]
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """All key fields."""
        return tuple(self.key.fields.names)

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the named columns; by default partition and offset, if the rows have them."""
        names = {name.lower() for name in self.rows.names}
        return tuple(named) or (_ORDER if names.issuperset(_ORDER) else ())

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `SchemaError` if a key is not a field in the record key."""
        find_columns(keys, self.key.fields.names, role="key column")

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> KafkaEnvelope:
        """Return the envelope for a table."""
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        paths: dict[str, Path] = {}
        for field in self.rows:
            paths[field.name] = (field.name,)
        for side, decoder in ((_VALUE, self.value), (_KEY, self.key)):
            for field in decoder.fields:
                paths[field.name] = (side, field.name)
        row_names = set(self.rows.names)
        orders = order_names(schema, self.orders)

        def order_path(name: str) -> Path:
            return (name,) if name in row_names else tuple(name.split("."))

        stored = {
            column: paths[name] for column, name in zip(own_names, columns.names, strict=True)
        }
        order = tuple(order_path(name) for name in orders)
        is_from_source = all(path[1:] and path[1].startswith(_SOURCE_FIELD) for path in order)
        moved_keys = None
        if order and is_from_source and has_headers(self.rows):
            decoder = ConnectJsonDecoder(self.key.fields, SchemalessDefaults())
            moved_keys = MovedKeys(decoder, tuple(stored[key][-1] for key in schema.keys))
        return KafkaEnvelope(
            schema=schema,
            key=self.key,
            value=self.value,
            key_name=self._name(_KEY),
            value_name=self._name(_VALUE),
            columns=stored,
            order=order,
            own_order={
                column: order_path(source) for column, source in schema.engine.column_order.items()
            },
            mark=self._mark,
            placeholder=self.placeholder,
            is_declared_json=self.is_declared_json,
            finds_missing=self.finds_missing,
            required=self.required,
            rule=rule,
            lists=None if rule.list_column is None else paths[rule.list_column],
            moved_keys=moved_keys,
        )


@dataclass(frozen=True, kw_only=True)
class KafkaEnvelope:
    """Converts Kafka records into commands, one each.

    ====================  ====================  ================================================
    key                   value                 command
    ====================  ====================  ================================================
    null                  null                  delete for the null key: harmless, clears an error
    null                  present               error: the key is null
    undecodable           null                  delete for these bytes: clears an error
    undecodable           present               error: the key is undecodable
    good                  null                  delete
    good                  undecodable           error: the value is undecodable
    good                  good, even if empty   put
    ====================  ====================  ================================================

    Source: Materialize, ``upsert_commands`` in ``render/sources.rs``.
    """

    schema: TableSchema
    key: Decoder
    value: Decoder
    key_name: str
    value_name: str
    columns: dict[str, Path]
    """Path for each table column in records: ``key`` or ``value`` and the field's name, or a row
    column's name."""
    order: tuple[Path, ...]
    own_order: dict[str, Path]
    mark: str | None = None
    """The value field marking deletes."""
    placeholder: Placeholder = DEFAULT_PLACEHOLDER
    is_declared_json: bool = False
    finds_missing: bool = False
    required: tuple[str, ...] = ()
    rule: UpdateRule = WHOLE_ROWS
    lists: Path | None = None
    """Path to the rule's column in records."""
    moved_keys: MovedKeys | None = None
    """None if a row's delete at its old key and its create at the new one may differ in order."""

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands, one per row (`Envelope.commands`)."""
        raw_keys, raw_values = (
            batch.column(name).cast(pa.binary()) for name in (self.key_name, self.value_name)
        )
        keys, (values, unsent) = decode_safely(self.key, raw_keys), self._decode_values(raw_values)
        sides = {
            _KEY: _as_struct(self.key.fields, keys),
            _VALUE: _as_struct(self.value.fields, values),
        }

        def column(path: Path) -> pa.Array:
            first, *inside = path
            return at_path(sides[first], tuple(inside)) if inside else batch.column(first)

        columns = {own_name: column(path) for own_name, path in self.columns.items()}
        fields = {own_name: path[1] for own_name, path in self.columns.items() if path[0] == _VALUE}
        reader = FlattenedReader.of_fields(self.value.fields, self.mark, self.placeholder)
        marks, operations = (
            None if name is None else column((_VALUE, name))
            for name in (self.mark, reader.operations)
        )
        rows = reader.read(
            self.schema,
            {own_name: columns[own_name] for own_name in fields},
            marks,
            operations,
            {own_name: unsent[name] for own_name, name in fields.items() if name in unsent},
        )
        columns |= rows.columns
        reasons = _because("the value is undecodable: ", values.reasons)
        tombstones = np.asarray(raw_values.is_null().to_numpy(zero_copy_only=False))
        moved_to = None
        if self.moved_keys is not None and rows.tombstones is not None:
            moved_to = self.moved_keys.read(batch, rows.tombstones)
        decoded_rows = DecodedRows(
            columns=columns,
            order=[column(path) for path in self.order],
            own_order={own_name: column(path) for own_name, path in self.own_order.items()},
            tombstones=tombstones if rows.tombstones is None else tombstones | rows.tombstones,
            bad_values=_first(rows.bad_values, reasons),
            unchanged=rows.unchanged,
            sets_nulls=self.finds_missing,
            moved_to=moved_to,
            resets=rows.resets,
            bad_keys=self._bad_keys(raw_keys, keys, columns),
            raw_keys=raw_keys,
            raw_values=lambda rows: raw_values.take(pa.array(rows)),
            ignores_null_deletes=True,
            hint=reader.hint,
        )
        lists = None if self.lists is None else column(self.lists)
        return to_commands(self.schema, apply_rule(self.schema, decoded_rows, self.rule, lists))

    def _decode_values(self, payloads: pa.Array) -> tuple[Payloads, dict[str, Mask]]:
        """Return the values, and the rows with unsent values by field."""
        if not self.is_declared_json:
            return decode_safely(self.value, payloads), {}
        types = self.value.fields.types
        values, unsent = decode_without(self.placeholder, self.value, payloads, (), types)
        if not self.finds_missing:
            return values, unsent
        columns = dict(zip(self.value.fields.names, values.columns, strict=True))
        has_object = payloads.is_valid()
        if values.reasons is not None:
            has_object = pc.and_(has_object, values.reasons.is_null())
        missing = find_missing(payloads, (), columns, np.asarray(has_object))
        unsent = combine_masks(unsent, missing)
        faults = null_faults(columns, self.required, np.asarray(has_object), unsent)
        return with_faults(values.columns, values.reasons, faults), unsent

    def _bad_keys(
        self, raw_keys: pa.Array, keys: Payloads, columns: Mapping[str, pa.Array]
    ) -> pa.Array | None:
        """Return why keys are invalid; a present key with only nulls is undecodable."""
        reasons = _because("the key is undecodable: ", keys.reasons)
        is_empty = raw_keys.is_valid()
        for name in self.schema.keys:
            is_empty = pc.and_(is_empty, columns[name].is_null())
        if not pc.any(is_empty, min_count=0).as_py():
            return reasons
        empty = pc.if_else(is_empty, "the key is undecodable: it holds only nulls", None)
        return empty if reasons is None else pc.coalesce(reasons, empty)


def _as_struct(fields: pa.Schema, payloads: Payloads) -> pa.Array:
    nullable = [field.with_nullable(True) for field in fields]
    return pa.StructArray.from_arrays(list(payloads.columns), fields=nullable)


def _first(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    return (one if other is None else other) if None in (one, other) else pc.coalesce(one, other)


def _because(prefix: str, reasons: pa.Array | None) -> pa.Array | None:
    return None if reasons is None else pc.binary_join_element_wise(prefix, reasons, "")


JSON, AVRO, RAW = "json", "avro", "raw"

FORMATS = (JSON, AVRO, RAW, "json-confluent", "avro-confluent")
"""Payload formats; the last two have Confluent's header."""


def is_json(name: str | None) -> bool:
    """Return whether a format (`FORMATS`) is JSON."""
    return name is not None and name.lower().partition("-")[0] == JSON


@dataclass(frozen=True)
class PayloadFormat:
    """Format and schema for keys or values.

    Parameters
    ----------
    side : {"key", "value"}
    name : str
        The format as named by the user.
    text : str or None
        The option ``<side>Schema``.
    schema_id : int or None
        The option ``<side>SchemaId``.
    """

    side: str
    name: str
    text: str | None
    schema_id: int | None

    @classmethod
    def parse(
        cls,
        side: str,
        given: Mapping[str, str | None],
        schema_ids: Mapping[str, int | None],
        *,
        formats: Sequence[str] = FORMATS,
        default: str | None = None,
    ) -> PayloadFormat:
        """Check the options for keys or values."""
        option = f"{side}Format"
        name = given[option] or default
        if name is None:
            raise OptionError.missing(option, f"one of {', '.join(formats)}")
        name = one_of(option, name, formats)
        written = cls(side, name, given[f"{side}Schema"], schema_ids[side])
        if written.schema_id is not None and not written.has_header:
            raise OptionError(
                f"option '{side}SchemaId' has no meaning with {option}={name}.",
                hint=f"use {option}={name}-confluent, or drop the option.",
                option=f"{side}SchemaId",
            )
        return written

    @property
    def format(self) -> str:
        """``json``, ``avro`` or ``raw``."""
        return self.name.lower().partition("-")[0]

    @property
    def has_header(self) -> bool:
        """Whether each payload begins with Confluent's header."""
        return "-" in self.name

    @property
    def option(self) -> str:
        """Name of the option for the declared schema."""
        return f"{self.side}Schema"

    def require_text(self) -> str:
        """Return the declared schema text; raises `OptionError` without one."""
        if self.text is None:
            raise OptionError.missing(
                self.option, f"what the {self.side}s hold, for {self.side}Format={self.name}"
            )
        return self.text

    def after_header(self, decoder: Decoder) -> Decoder:
        """Return a decoder for complete payloads, from one for the bytes after the header."""
        return ConfluentDecoder(decoder, self.schema_id) if self.has_header else decoder

    def decoder(self, *, is_nullable: bool = False) -> Decoder:
        """Return the decoder for payloads with the declared schema.

        With ``is_nullable``, JSON fields declared NOT NULL may be null.
        """
        if self.format == AVRO:
            decoder: Decoder = parse_avro(self.option, self.require_text(), bare_name=self.side)
        elif self.format == RAW:
            fields, _ = parse_schema(self.option, self.text or "BINARY", bare_name=self.side)
            decoder = RawDecoder(fields)
        else:
            fields, is_bare = parse_schema(self.option, self.require_text(), bare_name=self.side)
            if is_nullable:
                fields = pa.schema([field.with_nullable(True) for field in fields])
            decoder = DeclaredJsonDecoder(fields, is_bare)
        return self.after_header(decoder)
