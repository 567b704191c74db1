"""Read the history of a table: all rows that it held between two versions, with their validity.

The table as it was at the first version counts as insertions at that version, and the changes from
there on follow. Both are read by piece of the hash, so that memory follows a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from spark_upsert.errors import OptionError, SchemaError, setting
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.parallel import in_order, useful_threads
from spark_upsert.model.schema import Scope, TableSchema
from spark_upsert.store import Store
from spark_upsert.table.changes.modes import VALID_NAMES, HistoryOptions, ValidBy
from spark_upsert.table.changes.read import changes_by_piece
from spark_upsert.table.changes.stretches import Cut, Stretch, cut_into_stretches, read_through
from spark_upsert.table.changes.validity import (
    FROM_VERSION,
    TIME,
    events_of,
    fields_by,
    validity,
)
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.look import Versions


def valid_fields(schema: TableSchema, options: HistoryOptions) -> tuple[pa.Field, ...]:
    """Return the columns that a history has behind those of the table.

    Raises
    ------
    OptionError
        The table has no order that could be the axis, or a column that is said to be tracked, or
        not to be, is not among those read.
    SchemaError
        A column of the table has such a name, or its entries are no rows.
    """
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
    return pa.struct([pa.field(each.name, each.type) for each in schema.order])


def require_axis(stretches: Sequence[Stretch], by: ValidBy) -> None:
    """Refuse an overwrite, which deletes rows without an order, where orders are the axis."""
    overwrites = [max(each.times_ms) for each in stretches if each.cut is Cut.OVERWRITE]
    if by is ValidBy.ORDER and overwrites:
        raise OptionError(
            f"version {overwrites[0]} replaced the contents of the table: what it deleted has no "
            "order, so that validBy=order cannot say when those rows ended.",
            hint="use validBy=time or validBy=version, or begin behind it by 'startingVersion'.",
            option="validBy",
        )


def history_stretches(
    log: Versions, lower: int, upper: int, schema: TableSchema, options: HistoryOptions
) -> list[Stretch]:
    """Return the contents at a version and the changes behind it, up to before another version.

    Raises
    ------
    OptionError
        It ends before it begins, or orders are the axis and an overwrite is among the changes.
    DataLossError
        The version ``lower`` is expired.
    """
    beginning = contents_at(log, lower, schema)
    if upper <= lower:
        raise OptionError(
            f"the history begins at version {lower} and ends at {upper - 1}, before it begins.",
            hint="let 'endingVersion' or 'endingTimestamp' be behind the start, or drop it.",
            option="endingVersion",
        )
    stretches = [beginning, *cut_into_stretches(log, lower + 1, upper, schema)]
    require_axis(stretches, options.by)
    return stretches


def contents_at(log: Versions, version: int, schema: TableSchema) -> Stretch:
    """Return the contents of a version, as insertions at that version."""
    base = log.at(version)
    return Stretch(
        before=replace(base, version=version - 1, slices=()),
        times_ms={version: base.timestamp_ms},
        after=base.slices,
        cut=Cut.BEGINNING,
        schema=schema,
    )


def read_history(
    store: Store,
    stretches: Sequence[Stretch],
    options: HistoryOptions,
    *,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
    shown: pa.Schema | None = None,
    open_rows: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a history with hashes in a range, as `validity` has them.

    Parameters
    ----------
    shown : pyarrow.Schema, optional
        The columns of the rows, where some stretches are of versions without some of them.
    open_rows : callable, optional
        Returns the rows that are open before the stretches for the keys of some events, as events.
    """
    schema = stretches[0].schema
    fields = schema.columns if shown is None else shown

    def rows_in(piece: HashRange) -> pa.RecordBatch | None:
        found = [
            batch
            for stretch in stretches
            for batch in changes_by_piece(
                store,
                stretch,
                partial(events_of, times_ms=stretch.times_ms, options=options, shown=fields),
                net=False,
                hash_range=piece,
            )
            if batch.num_rows
        ]
        if not found:
            return None
        events = pa.concat_batches(found)
        if open_rows is not None:
            events = pa.concat_batches([open_rows(events), events])
        return validity(events, schema, options)

    whole = Snapshot(
        store, replace(stretches[0].before, slices=read_through(stretches), schema=schema)
    )
    useful = useful_threads(sum(each.file.rows for each in whole.manifest.slices), threads)
    for rows in in_order(rows_in, whole.chunks(hash_range, at_least=useful), useful):
        if rows is not None and rows.num_rows:
            yield rows
