"""Row histories: rows with their validity intervals (SCD type 2; docs/adr/0120).

An *event* is a change's new row, or a row's delete. `validity` is pure; `read_history` reads by
hash range, with the first version's rows as insertions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, identical_rows
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import CHANGELOG_FIELDS, COMMIT_TIMESTAMP, Scope, TableSchema
from spark_upsert.core.threads import map_in_order, useful_threads
from spark_upsert.errors import OptionError, SchemaError, setting
from spark_upsert.plan.join_keys import codes
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import (
    Changes,
    EpochRange,
    RangeBoundary,
    cut_into_ranges,
    fully_scanned_slices,
)
from spark_upsert.table.changelog.read import VALID_NAMES, HistoryOptions, ValidBy, changes_by_piece
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot

FROM_VERSION = "from_version"
"""A row's opening version: with the key, it identifies a row in a history."""

AT, VERSION, IS_PUT = "__at", "__version", "__is_put"
"""Event columns: position on the validity axis, version, and whether the event is a row."""

TIME = pa.schema(CHANGELOG_FIELDS).field(COMMIT_TIMESTAMP).type
"""Column type for validity by time."""


def fields_by(type_: pa.DataType) -> tuple[pa.Field, ...]:
    """Return the columns in `VALID_NAMES`, with a given axis type."""
    begins, ends, is_current = VALID_NAMES
    return (
        pa.field(begins, type_, nullable=False),
        pa.field(ends, type_),
        pa.field(is_current, pa.bool_(), nullable=False),
    )


def events_of(
    changes: Changes, times_ms: Mapping[int, int], options: HistoryOptions, shown: pa.Schema
) -> pa.RecordBatch:
    """Return the changes as events: table columns, then `AT`, `VERSION`, `IS_PUT`.

    Columns in ``shown`` missing from the table then are null.
    """
    schema, rows, epochs = changes.rows.schema, changes.rows, changes.epochs
    is_put = changes.new != ABSENT
    names = event_columns(schema, options)
    stored = [name for name in names if has_column(schema.columns, name)]
    taken = rows.take(stored, np.where(is_put, changes.new, changes.old))
    column_by_name = dict(zip(stored, taken, strict=True))
    columns = [
        column_by_name[name]
        if name in column_by_name
        else pa.nulls(len(epochs), shown.field(name).type)
        for name in names
    ]
    if options.by is ValidBy.ORDER:
        # For a delete, the tombstone's order key: the deleted row has another one.
        parts = rows.take(schema.order_columns[-len(schema.order) :], changes.made_by)
        names_of_order = [field.name for field in schema.order]
        at = parts[0] if len(parts) == 1 else pa.StructArray.from_arrays(parts, names_of_order)
    elif options.by is ValidBy.TIME:
        versions = np.array(list(times_ms), dtype=np.int64)
        micros = 1000 * np.array(list(times_ms.values()), dtype=np.int64)
        at = pa.array(micros[np.searchsorted(versions, epochs)]).view(TIME)
    else:
        at = pa.array(epochs)
    return pa.RecordBatch.from_arrays(
        [*columns, at, pa.array(epochs), pa.array(is_put)], names=event_names(names)
    )


def event_columns(schema: TableSchema, options: HistoryOptions) -> list[str]:
    """Return an event's table columns: the key and the selected columns."""
    return list(dict.fromkeys((*schema.keys, *options.columns)))


def event_names(columns: Sequence[str]) -> list[str]:
    """Return an event's column names, given its table columns."""
    return [*columns, AT, VERSION, IS_PUT]


def validity(
    events: pa.RecordBatch, schema: TableSchema, options: HistoryOptions
) -> pa.RecordBatch:
    """Return the rows opened by events, each with its validity interval.

    A row holds until its key's next event. An event with equal tracked columns replaces the row's
    values and opens no row. The division into batches does not affect the result.

    Source: ``create_auto_cdc_flow(stored_as_scd_type=2)`` in Spark 4.3, whose ``__START_AT`` and
    ``__END_AT`` are `ValidBy.ORDER`. Losing late events split no row here.
    """
    [key] = codes([events.column(name) for name in schema.keys])
    order = np.lexsort((events.column(VERSION).to_numpy(), key))
    events, key = events.take(pa.array(order)), key[order]
    is_put = events.column(IS_PUT).to_numpy(zero_copy_only=False)
    is_new_key = np.diff(key, prepend=-1) != 0
    opens = is_put & (is_new_key | _differs(events, is_put, schema, options))
    # A row ends at the next opening row, at a delete, and with its key.
    edges = np.append(np.flatnonzero(opens | ~is_put | is_new_key), len(key))
    at_edge = np.flatnonzero(opens[edges[:-1]])
    first, following = edges[at_edge], edges[at_edge + 1]
    is_ended = np.append(~is_new_key, False)[following]
    ends = pa.array(following, mask=~is_ended)
    shown = events.select(options.columns).take(pa.array(following - 1))
    begins = events.take(pa.array(first))
    return pa.RecordBatch.from_arrays(
        [
            *shown.columns,
            begins.column(AT),
            events.column(AT).take(ends),
            pa.array(~is_ended),
            begins.column(VERSION),
        ],
        schema=pa.schema(
            [
                *shown.schema,
                *fields_by(events.schema.field(AT).type),
                pa.field(FROM_VERSION, pa.int64(), nullable=False),
            ]
        ),
    )


def _differs(
    events: pa.RecordBatch, is_put: Mask, schema: TableSchema, options: HistoryOptions
) -> Mask:
    """Return which events follow a delete or differ from the previous row in tracked columns."""
    differs = np.ones(events.num_rows, dtype=np.bool_)
    next_rows = np.flatnonzero(is_put[1:] & is_put[:-1]) + 1
    untracked = {*schema.keys, *options.untracked}
    names = options.tracked or [name for name in options.columns if name not in untracked]
    before, now = (
        [events.column(name).take(pa.array(at)) for name in names]
        for at in (next_rows - 1, next_rows)
    )
    differs[next_rows] = ~identical_rows(before, now) if names else False
    return differs


def valid_fields(schema: TableSchema, options: HistoryOptions) -> tuple[pa.Field, ...]:
    """Check the options; return a history's additional columns, which follow the table's."""
    if schema.engine.multiplicity is not None:
        raise SchemaError(
            "the table keeps the sums of a view's groups, and an entry of it is no row with a "
            "history.",
            hint=f"read its changes by {setting('readChangeFeed', 'true')}.",
        )
    taken = [name for name in options.columns if name.lower() in (*VALID_NAMES, FROM_VERSION)]
    if taken:
        raise SchemaError(
            f"the table has a column '{taken[0]}' of its own, which a history adds.",
            hint=f"choose other columns by {setting('columns')}.",
            column=taken[0],
        )
    for option, names in (
        ("trackHistoryColumnList", options.tracked),
        ("trackHistoryExceptColumnList", options.untracked),
    ):
        read = set(options.columns)
        for name in names:
            if name not in read:
                expected = f"columns that are read, {list(options.columns)}"
                raise OptionError.invalid(option, name, expected)
    if options.tracked and options.untracked:
        raise OptionError.conflict("trackHistoryColumnList", "trackHistoryExceptColumnList")
    return fields_by(_axis_type(schema, options.by))


def _axis_type(schema: TableSchema, by: ValidBy) -> pa.DataType:
    if by is not ValidBy.ORDER:
        return TIME if by is ValidBy.TIME else pa.int64()
    if schema.scope is not Scope.TABLE:
        raise OptionError.invalid(
            "validBy",
            by.value,
            "'time' or 'version', as the table has no order that reaches across epochs",
        )
    if len(schema.order) == 1:
        return schema.order[0].type
    return pa.struct([pa.field(order_field.name, order_field.type) for order_field in schema.order])


def require_axis(epoch_ranges: Sequence[EpochRange], by: ValidBy) -> None:
    """Refuse overwrites with `ValidBy.ORDER`: they delete rows without an order key."""
    overwrites = [
        max(epoch_range.times_ms)
        for epoch_range in epoch_ranges
        if epoch_range.cut is RangeBoundary.OVERWRITE
    ]
    if by is ValidBy.ORDER and overwrites:
        raise OptionError(
            f"version {overwrites[0]} replaced the contents of the table: what it deleted has no "
            "order, so that validBy=order cannot say when those rows ended.",
            hint="use validBy=time or validBy=version, or begin behind it by 'startingVersion'.",
            option="validBy",
        )


def history_ranges(
    log: Versions, lower: int, upper: int, schema: TableSchema, options: HistoryOptions
) -> list[EpochRange]:
    """Return the contents at version ``lower`` and the changes from there to before ``upper``."""
    beginning = contents_at(log, lower, schema)
    if upper <= lower:
        raise OptionError(
            f"the history begins at version {lower} and ends at {upper - 1}, before it begins.",
            hint="let 'endingVersion' or 'endingTimestamp' be behind the start, or drop it.",
            option="endingVersion",
        )
    epoch_ranges = [beginning, *cut_into_ranges(log, lower + 1, upper, schema)]
    require_axis(epoch_ranges, options.by)
    return epoch_ranges


def contents_at(log: Versions, version: int, schema: TableSchema) -> EpochRange:
    """Return a version's contents as insertions at that version."""
    base = log.at(version)
    return EpochRange(
        before=replace(base, version=version - 1, slices=()),
        times_ms={version: base.timestamp_ms},
        after=base.slices,
        cut=RangeBoundary.BEGINNING,
        schema=schema,
    )


def read_history(
    store: Store,
    epoch_ranges: Sequence[EpochRange],
    options: HistoryOptions,
    *,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
    shown: pa.Schema | None = None,
    open_rows: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the history rows in a hash range, as `validity` returns them.

    ``open_rows`` adds the events of rows already open; it receives a piece's events.
    """
    schema = epoch_ranges[0].schema
    fields = schema.columns if shown is None else shown

    def rows_in(piece: HashRange) -> pa.RecordBatch | None:
        batches = [
            batch
            for epoch_range in epoch_ranges
            for batch in changes_by_piece(
                store,
                epoch_range,
                partial(events_of, times_ms=epoch_range.times_ms, options=options, shown=fields),
                net=False,
                hash_range=piece,
            )
            if batch.num_rows
        ]
        if not batches:
            return None
        events = pa.concat_batches(batches)
        if open_rows is not None:
            events = pa.concat_batches([open_rows(events), events])
        return validity(events, schema, options)

    snapshot = Snapshot(
        store,
        replace(epoch_ranges[0].before, slices=fully_scanned_slices(epoch_ranges), schema=schema),
    )
    useful = useful_threads(sum(slice_.file.rows for slice_ in snapshot.manifest.slices), threads)
    for rows in map_in_order(rows_in, snapshot.chunks(hash_range, at_least=useful), useful):
        if rows is not None and rows.num_rows:
            yield rows
