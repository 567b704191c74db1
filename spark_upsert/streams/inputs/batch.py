"""The batch read of one table: rows of a version, quarantine, changes, or history (`BatchRead`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.options.read import Metadata, ReadOptions, is_open
from spark_upsert.plan.expressions import Pins
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.table import (
    TableSteps,
    open_table,
    snapshot_ranges,
    table_identity,
)
from spark_upsert.streams.reads.columns import (
    history_options,
    require_columns,
    table_columns,
)
from spark_upsert.streams.reads.explain import explain, log_read
from spark_upsert.streams.reads.ordered import CountedStep
from spark_upsert.streams.reads.read_split import read_split
from spark_upsert.streams.reads.splits import (
    Split,
    changes_splits,
    filtered_splits,
    history_splits,
    quarantine_splits,
    row_filter,
    rows_splits,
    split_bytes,
)
from spark_upsert.table.log.snapshot import (
    EARLIEST,
    LogSnapshot,
    manifest_at,
    readable_from,
    require_ordered,
    resolve_ending_version,
    resolve_starting_version,
)
from spark_upsert.table.state.snapshot import Snapshot


class BatchRead:
    """One table's batch read; pickled into the tasks.

    Parameters
    ----------
    options : ReadOptions
        Batch options.
    columns : pyarrow.Schema
        The planned columns (`columns.read_columns`).
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._pushed: Pins = {}

    def push(self, pins: Pins) -> None:
        """Skip rows whose values differ from the pins, where that saves reading.

        The caller must filter the rows itself: the skipped rows depend on the table's layout.
        """
        self._pushed = pins

    def splits(self) -> Sequence[Split]:
        """Return the tasks' splits."""
        splits = self._planned()
        log_read(splits, self._options, table_columns(self._columns, self._options))
        return splits

    def steps(self) -> list[CountedStep]:
        """Return the same rows in an order independent of the split count."""
        table, options = open_table(self._options), self._options
        if options.filter is not None:
            raise OptionError(
                "option 'filter' has no meaning in an exact order, which numbers all rows.",
                hint="filter behind the read, with where(...); or leave out 'merge' and "
                "'interleaveSeed'.",
                option="filter",
            )
        if options.history:
            raise OptionError(
                "option 'readHistory' has no meaning in an exact order: a row of a history is of "
                "no one epoch.",
                hint="leave out 'merge' and 'interleaveSeed'.",
                option="readHistory",
            )
        steps = TableSteps(table, options, self._columns)
        with table.log.refresh() as look:
            if options.change_feed:
                lower, upper = self._versions(look)
                require_columns(look.head(), self._columns, options)
                if lower < upper:
                    look.require_changes(lower)
                return [steps.of_changes(version, look) for version in range(lower, upper)]
            version, time_ms = options.version_as_of, options.timestamp_as_of_ms
            manifest = manifest_at(look, version=version, time_ms=time_ms)
            require_columns(manifest, self._columns, options)
            return [steps.of_snapshot(manifest, due) for due in snapshot_ranges(manifest)]

    def identity(self) -> str:
        """Return the table's identity."""
        return table_identity(open_table(self._options))

    def split_bytes(self, split: Split) -> int:
        """Estimate the bytes read by a split."""
        return split_bytes(split)

    def explain(self, splits: Sequence[Split]) -> str:
        """Describe the read of these splits as text."""
        return explain(splits, self._options, table_columns(self._columns, self._options))

    def _planned(self) -> Sequence[Split]:
        table, options = open_table(self._options), self._options
        with table.log.refresh() as look:  # One schema for the complete plan.
            if options.change_feed:
                lower, upper = self._versions(look)
                require_columns(look.head(), self._columns, options)
                return changes_splits(look, options, lower, upper)
            if options.history:
                require_columns(look.head(), self._columns, options)
                history_columns = history_options(options, table_columns(self._columns, options))
                return history_splits(look, options, history_columns, *self._span(look))
            version, time_ms = options.version_as_of, options.timestamp_as_of_ms
            manifest = manifest_at(look, version=version, time_ms=time_ms)
        if options.metadata is Metadata.QUARANTINE:
            return quarantine_splits(manifest, options)
        require_columns(manifest, self._columns, options)
        where = row_filter(manifest, options, self._pushed)
        if where is None:
            return rows_splits(manifest, options)
        return filtered_splits(Snapshot(table.store, manifest), options, where, table.index_of)

    def _versions(self, look: LogSnapshot) -> tuple[int, int]:
        """Return the bounds ``lower <= v < upper`` for the versions whose changes are read."""
        options = self._options
        lower = resolve_starting_version(
            look,
            version=options.starting_version,
            time_ms=options.starting_timestamp_ms,
            is_inclusive=options.starting_inclusive,
        )
        fail = options.fail_on_data_loss
        newest = look.head()
        upper = self._upper(look)
        if options.ending_version is not None or options.ending_timestamp_ms is not None:
            require_ordered((lower or 0) - int(is_open(options)), upper)
        lower = readable_from(newest, lower or 0, path=options.path, fail_on_data_loss=fail)
        return lower, upper

    def _span(self, look: LogSnapshot) -> tuple[int, int]:
        """Return a history's first version and its exclusive upper version."""
        options, since = self._options, look.head().since
        begins = resolve_starting_version(look, version=options.starting_version)
        if options.starting_timestamp_ms is not None:  # Rows valid at that time are wanted, too.
            look.require_past(options.starting_timestamp_ms)
            begins = max(0, look.version_at(options.starting_timestamp_ms))
        if begins is None or options.starting_version == EARLIEST:
            begins = since
        if not options.fail_on_data_loss:
            begins = max(begins, since)
        return min(begins, look.head().version), self._upper(look)

    def _upper(self, look: LogSnapshot) -> int:
        """Return the exclusive upper version for changes."""
        options = self._options
        return resolve_ending_version(
            look,
            version=options.ending_version,
            time_ms=options.ending_timestamp_ms,
            is_inclusive=options.ending_inclusive,
        )

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows; called in a task."""
        store = open_store(self._options.path, self._options.storage)
        yield from read_split(
            store, split, self._options, table_columns(self._columns, self._options)
        )
