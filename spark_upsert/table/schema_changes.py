"""Schema changes: new and wider columns, properties, dropped columns (docs/adr/0106).

No change rewrites a run. A dropped name stays reserved in the property `DROPPED`, because older
runs still hold its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_upsert.core.names import find_columns
from spark_upsert.core.schema import TableSchema
from spark_upsert.core.source_positions import BINLOG_NAMES, require_extended
from spark_upsert.errors import SchemaError
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest
from spark_upsert.table.log.properties import DROPPED, ROW_TTL, indexed_columns
from spark_upsert.table.log.view_position import KEPT_PROPERTIES
from spark_upsert.table.published import require_mirrored
from spark_upsert.table.row_ttl import RowTtl


def require_consistent(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise for properties that a table with this schema cannot have."""
    indexed_columns(schema, properties)
    require_mirrored(schema, properties)
    if ROW_TTL in properties:
        RowTtl.of(schema, properties)


def alter(
    log: Log, schema: TableSchema, properties: Mapping[str, str], upon: TableSchema | None
) -> Manifest:
    """Change the schema and some checked properties of a table (`Table.alter`)."""

    def propose(head: Manifest) -> Draft | None:
        changed = {**head.properties, **properties}
        require_extended(head.properties.get(BINLOG_NAMES), properties.get(BINLOG_NAMES))
        changes = schema if upon is None else schema.rebased(upon, head.schema)
        if DROPPED in changed:
            require_not_dropped(head, changes.columns)
        accepted = head.schema.accept(changes.columns, merge=True, orders=changes.order)
        on_error = head.schema.on_error if head.schema.has_quarantine else schema.on_error
        result = replace(
            changes,
            columns=accepted.columns,
            order=accepted.order,
            has_wide_order=accepted.has_wide_order,
            on_error=on_error,
            hash_seed=head.schema.hash_seed,
            hash_prefix=head.schema.hash_prefix,
        )
        require_consistent(result, changed)
        if head.schema == result and changed == head.properties:
            return None
        return Draft(kind=Kind.ALTER, schema=result, properties=changed, live_rows=head.live_rows)

    log.append(propose)
    return log.head()


def drop_columns(log: Log, names: Sequence[str]) -> Manifest:
    """Drop columns of a table (`Table.drop_columns`)."""

    def propose(head: Manifest) -> Draft:
        schema = head.schema
        gone = list(find_columns(names, schema.columns.names, role="column to drop"))
        for name in gone:
            _require_droppable(head, name)
        left = pa.schema([field for field in schema.columns if field.name not in gone])
        new_schema = replace(schema, columns=left)
        require_consistent(new_schema, head.properties)
        return Draft(
            kind=Kind.ALTER,
            schema=new_schema,
            properties=with_dropped_names(head.properties, gone),
            live_rows=head.live_rows,
        )

    if names:
        log.append(propose)
    return log.head()


def dropped_names(properties: Mapping[str, str]) -> frozenset[str]:
    """Return the names, in lower case, of columns that a table has given up."""
    return frozenset(json.loads(properties.get(DROPPED, "[]")))


def with_dropped_names(properties: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the properties of a table that gives up columns."""
    dropped = {*dropped_names(properties), *(name.lower() for name in names)}
    return {**properties, DROPPED: json.dumps(sorted(dropped))}


def require_not_dropped(head: Manifest, columns: pa.Schema) -> None:
    """Refuse columns that a table is to gain under a name that it has given up."""
    remaining_names = {name.lower() for name in head.schema.columns.names}
    dropped = dropped_names(head.properties) - remaining_names
    for name in columns.names:
        if name.lower() in dropped:
            raise SchemaError(
                f"a column '{name}' was dropped from the table, and older files still hold its "
                "values, which a column of the same name would show.",
                hint="leave it out of the rows, or write it under another name.",
                column=name,
                left_out=name,
            )


def _require_droppable(head: Manifest, name: str) -> None:
    reason = _use_of(head, name)
    if reason is not None:
        raise SchemaError(
            f"the column '{name}' cannot be dropped: {reason}.",
            hint="keep it, or write what is wanted of the table into a new one "
            "(read, leave the column out, write).",
            column=name,
        )


def _use_of(head: Manifest, name: str) -> str | None:
    """Return what a table needs a column for; None if it can do without."""
    schema: TableSchema = head.schema
    if any(property_name in head.properties for property_name in KEPT_PROPERTIES):
        return "the table keeps a view or a history, which says which columns it has"
    if name in schema.keys:
        return "it is a part of the key"
    if name in (field.name for field in schema.order):
        return "it orders the rows (sequenceBy)"
    if name == schema.error_column:
        return "it tells the errors of rows (errorColumn)"
    if schema.engine.folds or schema.engine.multiplicity is not None:
        return f"rows are folded column by column (mergeEngine={schema.engine.kind.value})"
    if len(schema.columns) == 1:
        return "the table has no other"
    return None
