"""The columns of a read: the wanted columns of the table, then those of the changelog."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_upsert.errors import SchemaError, setting
from spark_upsert.model.names import find_columns, has_column
from spark_upsert.model.schema import CHANGELOG_FIELDS
from spark_upsert.options.read import Metadata, ReadOptions
from spark_upsert.plan.expressions import bind_condition
from spark_upsert.table.changes import history
from spark_upsert.table.changes.modes import VALID_NAMES, HistoryOptions
from spark_upsert.table.entries.quarantine import quarantine_schema
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.versions import manifest_at
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.shown import grouping_of

_CHANGE_COLUMNS = tuple(field.name for field in CHANGELOG_FIELDS)


def read_columns(log: Log, options: ReadOptions) -> pa.Schema:
    """Return the columns of a read of a table, batch or stream, by its options alone.

    Raises
    ------
    SchemaError
        A column is asked for that the table does not have.
    """
    if options.change_feed:
        own = shown_columns(log.head(), options)
        return pa.schema([*_chosen(own, options), *CHANGELOG_FIELDS])
    if options.history:
        schema = log.head().schema
        names = [field.name for field in _chosen(schema.columns, options)]
        fields = [schema.columns.field(name) for name in names]
        return pa.schema([*fields, *history.valid_fields(schema, history_options(options, names))])
    version, time_ms = options.version_as_of, options.timestamp_as_of_ms
    manifest = manifest_at(log, version=version, time_ms=time_ms)
    if options.metadata is Metadata.QUARANTINE:
        return quarantine_schema(manifest.schema)
    own = shown_columns(manifest, options)
    if options.filter is not None:
        bind_condition(options.filter, own)  # Said when the read is loaded, not when it runs.
    return pa.schema(_chosen(own, options))


def history_options(options: ReadOptions, columns: Sequence[str]) -> HistoryOptions:
    """Return what a read of a history wants, with the table's columns that it shows."""
    tracked, untracked = (
        find_columns(names, columns, role="tracked column")
        for names in (options.tracked, options.untracked)
    )
    return HistoryOptions(
        columns=tuple(columns), by=options.valid_by, tracked=tracked, untracked=untracked
    )


def shown_grouping(manifest: Manifest, options: ReadOptions) -> Grouping | None:
    """Return what the entries of a table mean to a read; None if it shows them as they are."""
    return None if options.raw else grouping_of(manifest.properties)


def shown_columns(manifest: Manifest, options: ReadOptions) -> pa.Schema:
    """Return the columns that a read finds in a table: its own, or those of the view it keeps."""
    grouping = shown_grouping(manifest, options)
    return manifest.schema.columns if grouping is None else grouping.result


def _chosen(own: pa.Schema, options: ReadOptions) -> list[pa.Field]:
    names = own.names
    if options.columns:
        extra = _columns_behind(options)
        wanted = (name for name in options.columns if name not in extra)
        names = list(find_columns(wanted, own.names, role="column"))
    return [own.field(name) for name in names]


def chosen(own: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the columns of some names, in that order; all if there are no names.

    Raises
    ------
    SchemaError
        There is no such column.
    """
    for name in names:
        if not has_column(own, name):
            raise SchemaError.missing_column(name, own.names, role="column")
    return pa.schema([own.field(name) for name in names]) if names else own


def table_columns(planned: pa.Schema, options: ReadOptions) -> tuple[str, ...]:
    """Return the table's columns among those of a read."""
    extra = _columns_behind(options)
    return tuple(name for name in planned.names if name not in extra)


def require_columns(manifest: Manifest, planned: pa.Schema, options: ReadOptions) -> None:
    """Check that a table can give the columns of a read, then those of the changelog.

    Raises
    ------
    SchemaError
        The schema was given by hand, or the table has changed since the query was planned.
    """
    wanted, own = table_columns(planned, options), shown_columns(manifest, options)
    for name in wanted:
        if not has_column(own, name):
            raise SchemaError.missing_column(name, own.names, role="column")
        if own.field(name).type != planned.field(name).type:
            raise SchemaError(
                f"column '{name}' is {planned.field(name).type} in the read, "
                f"and {own.field(name).type} in the table.",
                hint="drop .schema(...) if you gave one; else the table has changed since: load "
                "it again, or restart the query.",
                column=name,
            )
    expected, found = list(_columns_behind(options)), planned.names[len(wanted) :]
    if found != expected:
        raise SchemaError(
            f"behind the table's columns expected {expected}, found {found}.",
            hint=f"drop .schema(...), and choose by {setting('columns')}.",
        )


def _columns_behind(options: ReadOptions) -> tuple[str, ...]:
    """Return what stands behind the table's columns."""
    if options.history:
        return VALID_NAMES
    return _CHANGE_COLUMNS if options.change_feed else ()
