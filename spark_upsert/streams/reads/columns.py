"""Read columns: the table's, the changelog's, and those about the merge; and casts to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.core.casts import convert
from spark_upsert.core.names import find_columns, has_column
from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import SchemaError, setting
from spark_upsert.options.read import INPUT, MERGE_SEQ, Metadata, ReadOptions
from spark_upsert.plan.expressions import bind_condition
from spark_upsert.table.changelog import history
from spark_upsert.table.changelog.read import VALID_NAMES, HistoryOptions
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.snapshot import manifest_at
from spark_upsert.table.state.snapshot import quarantine_schema
from spark_upsert.views.group_rows import grouping_of
from spark_upsert.views.grouping import Grouping

_CHANGE_COLUMNS = tuple(field.name for field in CHANGELOG_FIELDS)


def read_columns(log: Log, options: ReadOptions) -> pa.Schema:
    """Return a table read's columns, batch or stream, from its options."""
    if options.change_feed:
        columns = shown_columns(log.head(), options)
        return pa.schema([*_chosen_fields(columns, options), *CHANGELOG_FIELDS])
    if options.history:
        schema = log.head().schema
        names = [field.name for field in _chosen_fields(schema.columns, options)]
        fields = [schema.columns.field(name) for name in names]
        return pa.schema([*fields, *history.valid_fields(schema, history_options(options, names))])
    version, time_ms = options.version_as_of, options.timestamp_as_of_ms
    manifest = manifest_at(log, version=version, time_ms=time_ms)
    if options.metadata is Metadata.QUARANTINE:
        return quarantine_schema(manifest.schema)
    columns = shown_columns(manifest, options)
    if options.filter is not None:
        bind_condition(options.filter, columns)  # Said when the read is loaded, not when it runs.
    return pa.schema(_chosen_fields(columns, options))


def history_options(options: ReadOptions, columns: Sequence[str]) -> HistoryOptions:
    """Return a history read's options, for the table's shown columns."""
    tracked, untracked = (
        find_columns(names, columns, role="tracked column")
        for names in (options.tracked, options.untracked)
    )
    return HistoryOptions(
        columns=tuple(columns), by=options.valid_by, tracked=tracked, untracked=untracked
    )


def shown_grouping(manifest: Manifest, options: ReadOptions) -> Grouping | None:
    """Return the grouping for a materialized view's entries; None if a read shows raw entries."""
    return None if options.raw else grouping_of(manifest.properties)


def shown_columns(manifest: Manifest, options: ReadOptions) -> pa.Schema:
    """Return the columns in a read: the table's own, or the materialized view's."""
    grouping = shown_grouping(manifest, options)
    return manifest.schema.columns if grouping is None else grouping.result_schema


def _chosen_fields(own: pa.Schema, options: ReadOptions) -> list[pa.Field]:
    names = own.names
    if options.columns:
        extra = _extra_columns(options)
        data_columns = (name for name in options.columns if name not in extra)
        names = list(find_columns(data_columns, own.names, role="column"))
    return [own.field(name) for name in names]


def select_fields(own: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the named columns, in that order; all columns if ``names`` is empty."""
    for name in names:
        if not has_column(own, name):
            raise SchemaError.missing_column(name, own.names, role="column")
    return pa.schema([own.field(name) for name in names]) if names else own


def table_columns(planned: pa.Schema, options: ReadOptions) -> tuple[str, ...]:
    """Return the table's columns in a read, without changelog and history columns."""
    extra = _extra_columns(options)
    return tuple(name for name in planned.names if name not in extra)


def require_columns(manifest: Manifest, planned: pa.Schema, options: ReadOptions) -> None:
    """Check a read's columns and types against the table, then the changelog columns."""
    wanted_columns, shown = table_columns(planned, options), shown_columns(manifest, options)
    for name in wanted_columns:
        if not has_column(shown, name):
            raise SchemaError.missing_column(name, shown.names, role="column")
        if shown.field(name).type != planned.field(name).type:
            raise SchemaError(
                f"column '{name}' is {planned.field(name).type} in the read, "
                f"and {shown.field(name).type} in the table.",
                hint="drop .schema(...) if you gave one; else the table has changed since: load "
                "it again, or restart the query.",
                column=name,
            )
    expected, actual = list(_extra_columns(options)), planned.names[len(wanted_columns) :]
    if actual != expected:
        raise SchemaError(
            f"behind the table's columns expected {expected}, found {actual}.",
            hint=f"drop .schema(...), and choose by {setting('columns')}.",
        )


def _extra_columns(options: ReadOptions) -> tuple[str, ...]:
    """Return the columns after the table's columns."""
    if options.history:
        return VALID_NAMES
    return _CHANGE_COLUMNS if options.change_feed else ()


def conform_batches(
    batches: Iterator[pa.RecordBatch], columns: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield batches with exactly these columns; None: unchanged.

    Other columns are dropped, missing ones are null.
    """
    if columns is None:
        yield from batches
        return
    for batch in batches:
        arrays = [_column(batch, field) for field in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if not has_column(batch.schema, field.name):
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else convert(column, field.type)


_FIELDS = {
    INPUT: pa.field(INPUT, pa.string(), nullable=False),
    MERGE_SEQ: pa.field(MERGE_SEQ, pa.int64(), nullable=False),
}


def merge_fields(columns: Sequence[str]) -> list[pa.Field]:
    """Return the requested merge columns' fields."""
    return [_FIELDS[name] for name in columns]


def without_merge_columns(planned: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return a read's columns without the merge columns."""
    return pa.schema([field for field in planned if field.name not in columns])


def require_unused_names(own: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse input columns whose names are requested merge columns."""
    for name in columns:
        if has_column(own, name):
            raise SchemaError(
                f"the inputs have a column '{name}' of their own, and 'mergeColumns' asks for it.",
                hint="drop it from 'mergeColumns', or leave theirs out by 'columns'.",
                column=name,
            )


def with_input(
    batches: Iterator[pa.RecordBatch], name: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield an input's batches, with its name as a column if requested."""
    for batch in batches:
        if INPUT in columns:
            batch = batch.append_column(_FIELDS[INPUT], pa.repeat(name, batch.num_rows))
        yield batch


def with_numbers(
    batches: Iterator[pa.RecordBatch], first: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with row numbers, counted from ``first``, if requested."""
    for batch in batches:
        if MERGE_SEQ in columns:
            numbers = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
            batch = batch.append_column(_FIELDS[MERGE_SEQ], numbers)
        first += batch.num_rows
        yield batch
