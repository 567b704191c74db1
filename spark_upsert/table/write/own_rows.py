"""The envelope for rows with a table's own columns, without options or payload formats.

`envelopes.write_plan` plans writes with options.
"""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.core.merge_engines import Rule
from spark_upsert.core.names import refuse_repeated
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.write.commands import GONE, Envelope
from spark_upsert.table.write.contributions import as_collected
from spark_upsert.table.write.form import UpsertForm, order_names


def envelope_of_rows(
    schema: TableSchema,
    incoming: pa.Schema,
    *,
    deletes: str | None = None,
    nulls_as_deletes: bool = False,
    may_lack: bool = False,
) -> Envelope:
    """Return the envelope that converts plain-column rows to commands for an existing table.

    Values are cast to the table's types; an unconvertible value raises when it is read.
    Order and delete mark columns that the table lacks are not stored.
    """
    refuse_repeated(incoming.names)
    types = {field.name.lower(): field.type for field in (*schema.order, *schema.columns)}
    for name in schema.columns.names:
        if schema.engine.rule(name) is Rule.COLLECT:
            types[name.lower()] = types[name.lower()].value_type
    cast = pa.schema(
        [field.with_type(types.get(field.name.lower(), field.type)) for field in incoming]
    )
    form = UpsertForm.of(cast, deletes, nulls_as_deletes=nulls_as_deletes)
    order_names(schema, form.orders)  # Checked first: an order that is missing says most.
    columns = as_collected(_stored(schema, form), schema.engine)
    accepted = schema.accept(columns, merge=False, may_lack=may_lack or deletes == GONE)
    assert accepted == schema, "a table is not altered by rows of its own columns"
    return form.envelope(schema, columns)


def _stored(schema: TableSchema, form: UpsertForm) -> pa.Schema:
    """Return the columns that are stored: all but those that only order or mark deletes."""
    column_names = {name.lower() for name in schema.columns.names}
    special_names = {name.lower() for name in schema.engine.column_order.values()}
    special_names |= {field.name.lower() for field in schema.order}
    if form.deletes is not None:
        special_names.add(form.deletes.lower())
    special_names -= column_names
    stored = [field for field in form.others if field.name.lower() not in special_names]
    return pa.schema(stored) if stored else form.columns
