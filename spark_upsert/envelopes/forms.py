"""Choose the form of a write's rows from its options."""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from spark_upsert.envelopes.changelog import ChangelogForm
from spark_upsert.envelopes.debezium.parsed import ParsedForm
from spark_upsert.envelopes.debezium.records import record_form
from spark_upsert.envelopes.flattened import FlattenedReader, require_delete_mark
from spark_upsert.envelopes.formats import Written, is_json
from spark_upsert.envelopes.found import found_sides
from spark_upsert.envelopes.kafka import KafkaForm
from spark_upsert.options.write import EnvelopeKind, EnvelopeOptions
from spark_upsert.payloads.placeholders import DEFAULT_PLACEHOLDER
from spark_upsert.table.write.form import Form, UpsertForm


def form_of(options: EnvelopeOptions, rows: pa.Schema, *, deletes: str | None) -> Form:
    """Return the form of rows of some columns.

    Parameters
    ----------
    options : EnvelopeOptions
    rows : pyarrow.Schema
        The columns of the rows.
    deletes : str or None
        The column ``applyAsDeletes``.

    Raises
    ------
    OptionError, SchemaError
        The options do not fit the envelope, or the rows do not.
    """
    match options.kind:
        case EnvelopeKind.UPSERT:
            require_delete_mark(rows.names, deletes)
            reader = FlattenedReader.of_rows(rows, deletes, options.placeholder)
            return UpsertForm.of(
                rows, deletes, nulls_as_deletes=options.nulls_as_deletes, reader=reader
            )
        case EnvelopeKind.DEBEZIUM if options.payloads["valueFormat"] is None:
            return ParsedForm(rows, options.truncates, options.placeholder or DEFAULT_PLACEHOLDER)
        case EnvelopeKind.DEBEZIUM:
            return record_form(rows, options, found_sides(options))
        case EnvelopeKind.KAFKA:
            found = found_sides(options)
            key, value = (
                found[side].decoder()
                if side in found
                else Written.parse(side, options.payloads, options.schema_ids).decoder()
                for side in ("key", "value")
            )
            require_delete_mark(value.fields.names, deletes)
            return KafkaForm(
                rows,
                key,
                value,
                deletes=deletes,
                placeholder=options.placeholder or DEFAULT_PLACEHOLDER,
                is_declared_json="value" not in found and is_json(options.payloads["valueFormat"]),
            )
        case EnvelopeKind.CHANGELOG:
            return ChangelogForm(rows)
        case _:
            assert_never(options.kind)
