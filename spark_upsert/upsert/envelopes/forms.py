"""The form that options mean."""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from spark_upsert.options import EnvelopeKind, EnvelopeOptions
from spark_upsert.upsert.envelopes.debezium import DebeziumForm
from spark_upsert.upsert.envelopes.form import Form, UpsertForm
from spark_upsert.upsert.envelopes.kafka import KafkaForm, decoder_of


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
            return UpsertForm(
                others=rows, deletes=deletes, nulls_as_deletes=options.nulls_as_deletes
            )
        case EnvelopeKind.DEBEZIUM:
            return DebeziumForm(rows)
        case EnvelopeKind.KAFKA:
            key, value = (
                decoder_of(side, options.payloads, options.schema_ids[side])
                for side in ("key", "value")
            )
            return KafkaForm(rows, key, value)
        case _:
            assert_never(options.kind)
