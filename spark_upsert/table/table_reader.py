"""Table reads: rows, changes and history, by version.

`TableReader` is the read half of `table.table.Table`; it writes nothing but local caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import is_hashable
from spark_upsert.core.python_values import optional, version_argument, whole_argument
from spark_upsert.core.schema import CHANGELOG_FIELDS, TableSchema
from spark_upsert.errors import CorruptionError, OptionError, SchemaError
from spark_upsert.store import Store
from spark_upsert.table.arguments import GivenRows, as_keys, as_table, as_values
from spark_upsert.table.changelog import history
from spark_upsert.table.changelog.changes import cut_into_ranges
from spark_upsert.table.changelog.read import (
    ChangeOptions,
    Deduplication,
    HistoryOptions,
    ValidBy,
    read_changes,
)
from spark_upsert.table.index.build import Indexes
from spark_upsert.table.index.index import Index, rows_at
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.snapshot import manifest_at, require_bound, require_ordered
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.scan import RowFilter, ScanPiece
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot, read_quarantine
from spark_upsert.table.watch import Watcher, Watchers

if TYPE_CHECKING:
    import polars as pl

_NO_ROWS = pa.RecordBatch.from_pylist([], schema=pa.schema([]))


class TableReader:
    """Reads of one table; `Table` adds writes and maintenance.

    Parameters
    ----------
    store : Store
        The table's folder.
    clock : callable, optional
        Returns seconds since 1970, for the times of index commits.
    threads : int
        Maximum threads of one read.
    sleep : callable, optional
        Sleeps for the given seconds.
    compact_index : callable
        Runs at most one due compaction in an index, given its store.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = time.time,
        threads: int = 1,
        sleep: Callable[[float], None] = time.sleep,
        compact_index: Callable[[Store], object],
    ) -> None:
        self.store = store
        self.threads = whole_argument("threads", threads, least=1)
        self.log = Log(store, clock=clock, sleep=sleep)
        self._watchers = Watchers(self.log, self.changes)
        self._indexes = Indexes(self.log, store, clock=clock, compact=compact_index)

    def indexes(self) -> list[Index]:
        """Return the table's indexes (property ``indexBy``), built or not."""
        return self._indexes.of(self.log.head())

    @property
    def index_failures(self) -> int:
        """Number of this object's failed index updates; the table proceeded without them."""
        return self._indexes.failures

    def index_of(self, column: str) -> Index | None:
        """Return the index on a column, or None if no usable one exists at present."""
        return self._indexes.usable(self.log.head(), column)

    def at(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, by default the newest."""
        version = optional(version_argument, "version", version)
        return Snapshot(self.store, manifest_at(self.log, version=version))

    @property
    def schema(self) -> TableSchema:
        """The newest version's columns, keys and rules."""
        return self.log.head().schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: str | None = None,
        version: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader for a version's rows, in no particular order.

        Rows are read as the reader is pulled, some `CHUNK_ROWS` at a time, so memory is bounded for
        any table size.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns in output order; by default all. If empty, batches have rows without columns.
        filter : str, optional
            An SQL condition on the table's columns: ``"id IN (1, 2)"``. If it pins the key, the
            hash prefix or an indexed column to some values, only possible matches are read
            (`table.scan`).

        Raises
        ------
        SchemaError
            A column does not exist.
        PlanError
            The filter is invalid SQL, or names a missing column.
        DataLossError
            The version is expired or does not exist.
        """
        snapshot = self.at(version)
        schema = snapshot.manifest.schema
        names = schema.columns.names if columns is None else schema.select(columns)
        fields = pa.schema([schema.columns.field(name) for name in names])
        if filter is None:
            batches = snapshot.read(names)
        else:
            batches = self._where(snapshot, filter).read(snapshot, names, index_of=self.index_of)
        return pa.RecordBatchReader.from_batches(fields, batches)

    def _where(self, snapshot: Snapshot, condition: str) -> RowFilter:
        row_filter = RowFilter.of(condition, snapshot.manifest.schema.columns)
        return row_filter.by_index(snapshot, self.index_of)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows in the newest version as an Arrow stream (`scan`)."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def pieces(
        self,
        at_least: int = 1,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        version: int | None = None,
    ) -> list[ScanPiece]:
        """Return a scan in disjoint pieces, for other threads or processes.

        Parameters
        ----------
        at_least : int
            Minimum number of pieces. There are more if a piece would greatly exceed
            `CHUNK_ROWS` entries, and only one if an index determines the rows to read.
        columns, filter, version
            As in `scan`.
        """
        at_least = whole_argument("at_least", at_least, least=1)
        snapshot = self.at(version)
        schema = snapshot.manifest.schema
        names = schema.columns.names if columns is None else schema.select(columns)
        row_filter = None if filter is None else self._where(snapshot, filter)
        if row_filter is not None and row_filter.indexed is not None:
            return [ScanPiece(snapshot, tuple(names), ALL_HASHES, row_filter)]
        ranges = snapshot.chunks(at_least=at_least)
        return [ScanPiece(snapshot, tuple(names), hash_range, row_filter) for hash_range in ranges]

    def to_polars(self, *, version: int | None = None) -> pl.LazyFrame:
        """Return a version's rows as a Polars lazy frame.

        It reads only the selected columns, and only matching keys if the query pins the key.

        Raises
        ------
        ImportError
            Polars is not installed: ``pip install upsertflow[polars]``.
        """
        from spark_upsert.table.polars_frame import lazy_frame

        return lazy_frame(self.at(version), self.index_of)

    def get(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Return the rows for some keys, in key order; a key without a row is skipped.

        Only the blocks with these keys are read: the cost follows the keys, not the table size.

        Parameters
        ----------
        keys : object
            One key or many: ``7``, ``[7, 8]``, ``("eu", 7)``, ``[("eu", 7), ("us", 8)]``, a mapping
            or a frame with the key columns, or an array (`arguments.as_keys`). A repeated key
            returns its row repeatedly.

        Raises
        ------
        SchemaError
            A column does not exist, or a value does not have its key column's type.
        DataLossError
            The version is expired or does not exist.
        """
        snapshot = self.at(version)
        schema = snapshot.manifest.schema
        names = schema.columns.names if columns is None else schema.select(columns)
        matches = snapshot.look_up(as_keys(schema, keys).columns, names)
        rows = matches.rows.take(pa.array(matches.at[matches.at != ABSENT]))
        return pa.Table.from_batches([rows])

    def snapshot(
        self,
        version: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> pa.Table:
        """Return a version's rows, in no particular order (`scan`)."""
        reader = self.scan(columns, filter=filter, version=version)
        if not reader.schema.names:  # Only the row count is requested.
            return pa.Table.from_batches(list(reader) or [_NO_ROWS]).select([])
        return reader.read_all()

    def having_prefix(
        self,
        values: GivenRows | Mapping[str, Any],
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Return the rows with the given key prefixes, in no particular order.

        The cost follows the number of matching rows (`Snapshot.having_prefix`).

        Parameters
        ----------
        values : pyarrow.Table, frame or mapping
            The leading key columns, with one row per prefix.

        Raises
        ------
        OptionError
            The table has no `hash_prefix`, or the values have other columns.
        """
        snapshot = self.at(version)
        schema = snapshot.manifest.schema
        if isinstance(values, Mapping):
            prefixes = pa.table(as_keys(schema, values, names=schema.select(list(values))))
        else:
            prefixes = as_table(values)
        prefix_columns = schema.select(prefixes.column_names)
        leading = schema.keys[: len(prefix_columns)]
        if sorted(prefix_columns) != sorted(leading):
            raise OptionError.invalid(
                "values",
                ",".join(prefix_columns),
                f"the leading key columns, {','.join(schema.keys)}",
            )
        key_columns = [
            prefixes.column(prefix_columns.index(name)).combine_chunks() for name in leading
        ]
        names = schema.columns.names if columns is None else schema.select(columns)
        fields = pa.schema([schema.columns.field(name) for name in names])
        return pa.Table.from_batches(snapshot.having_prefix(key_columns, names), schema=fields)

    def rows_having(
        self,
        column: str,
        values: Any,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
    ) -> pa.Table:
        """Return the rows with one of the given values in a column, in no particular order.

        With an index on the column (property ``indexBy``) the cost follows the number of matching
        rows; without a usable one, all rows are read. The result is the same.

        Parameters
        ----------
        column : str
        values : object
            One value or several: a sequence, a set, an array or a column. A null matches nothing,
            NaN matches NaN.

        Raises
        ------
        SchemaError
            The column does not exist, its values cannot be compared, or a value has another type.
        """
        snapshot, newest = self.at(version), self.schema
        schema = snapshot.manifest.schema
        [column_field] = schema.select([column])
        names = schema.columns.names if columns is None else schema.select(columns)
        field = schema.widened_to(newest).columns.field(column_field)
        if not is_hashable(field.type):
            raise SchemaError(
                f"column '{column_field}' has type {field.type}, whose values are not compared.",
                hint="give a column of another type, or read with a filter, such as "
                f"snapshot(filter='{column_field} IS NOT NULL').",
                column=column_field,
            )
        lookup_values = as_values(values, field, role="column")
        fields = pa.schema([schema.columns.field(name) for name in names])

        def by(index: Index | None) -> pa.Table:
            matches = rows_at(index, snapshot, newest, column_field, lookup_values, names)
            return pa.Table.from_batches(matches, schema=fields)

        try:
            return by(self.index_of(column_field))
        except CorruptionError:
            return by(None)  # If the table is damaged, this raises, too.

    def quarantine(self, version: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the quarantined rows: those that could not be applied and are not cleared yet.

        Columns as `table.state.snapshot.quarantine_schema`: the keys, ``_reason``, ``_epoch``,
        ``_raw_key`` and ``_raw_value``. Empty unless the table has ``onError=quarantine``.
        """
        yield from read_quarantine(self.at(version))

    def changes(
        self, lower: int = 0, upper: int | None = None, *, emit_unchanged: bool = False
    ) -> pa.Table:
        """Return the changes for epochs ``lower <= e < upper`` (`scan_changes`)."""
        return self.scan_changes(lower, upper, emit_unchanged=emit_unchanged).read_all()

    def scan_changes(
        self,
        lower: int = 0,
        upper: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        emit_unchanged: bool = False,
    ) -> pa.RecordBatchReader:
        """Return a reader for the changes in epochs ``lower <= e < upper``, epoch by epoch.

        Changes are read as the reader is pulled, so memory depends on the batch, not the epochs.

        Parameters
        ----------
        lower, upper : int
            By default all available epochs.
        columns : sequence of str, optional
            Table columns in output order, followed by the changelog columns; by default all.
        emit_unchanged : bool
            Whether to return updates without a changed value.

        Raises
        ------
        OptionError
            The epochs end before they begin.
        VersionNotFoundError
            The epochs do not exist yet.
        SchemaError
            A column does not exist.
        DataLossError
            Some of the changes are expired.
        """
        lower = version_argument("lower", lower)
        upper = optional(version_argument, "upper", upper)
        head = self.log.head()
        upper = head.upper if upper is None else upper
        require_bound(lower, head, name="'lower'")
        require_bound(upper, head, name="'upper'")
        require_ordered(lower, upper, name="upper")
        head_schema = head.schema
        names = head_schema.columns.names if columns is None else head_schema.select(columns)
        dedup = Deduplication.NONE if emit_unchanged else Deduplication.DROP_CARRYOVERS
        options = ChangeOptions(columns=tuple(names), deduplication=dedup)
        batches = self._changes(head_schema, lower, upper, options)
        shown = pa.schema([*(head_schema.columns.field(name) for name in names), *CHANGELOG_FIELDS])
        return pa.RecordBatchReader.from_batches(shown, batches)

    def history(
        self,
        lower: int | None = None,
        upper: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        by: ValidBy = ValidBy.TIME,
        tracked: Sequence[str] = (),
        untracked: Sequence[str] = (),
    ) -> pa.RecordBatchReader:
        """Return a reader for all rows ever in the table, each with its validity period.

        Parameters
        ----------
        lower, upper : int, optional
            The version at which the history begins, by default the first readable one, whose
            rows are valid from it; and the version before which it ends, by default the end.
        columns : sequence of str, optional
            By default all, followed by ``valid_from``, ``valid_to`` and ``is_current``.
        by : ValidBy
            The measure for validity.
        tracked : sequence of str
            Columns opening a row when they change; by default all read columns.
        untracked : sequence of str
            Columns opening none, where all others do.

        Raises
        ------
        OptionError
            The history is not available (`changelog.history.valid_fields`).
        SchemaError
            A column does not exist.
        DataLossError
            The version ``lower`` is expired.
        """
        lower = optional(version_argument, "lower", lower)
        upper = optional(version_argument, "upper", upper)
        head = self.log.head()
        head_schema = head.schema
        names = head_schema.columns.names if columns is None else head_schema.select(columns)
        history_options = HistoryOptions(
            columns=tuple(names),
            by=by,
            tracked=head_schema.select(tracked, "tracked"),
            untracked=head_schema.select(untracked, "untracked"),
        )
        begins, ends = (
            head.since if lower is None else lower,
            head.upper if upper is None else upper,
        )
        epoch_ranges = history.history_ranges(self.log, begins, ends, head_schema, history_options)
        fields = [head_schema.columns.field(name) for name in names]
        shown = pa.schema([*fields, *history.valid_fields(head_schema, history_options)])
        rows = history.read_history(self.store, epoch_ranges, history_options, threads=self.threads)
        return pa.RecordBatchReader.from_batches(shown, (row.select(shown.names) for row in rows))

    def watch(self, start: int | None = None, *, fail_on_data_loss: bool = True) -> Watcher:
        """Return an iterator over this table's epochs as they are committed.

        Commits through this object arrive immediately, other commits within a second (`watch`). A
        slow watcher delays no writer and no other watcher: it reads missed versions from the log.
        It retains no version either: use a lease by `hold` if it must not miss any.

        Parameters
        ----------
        start : int, optional
            The first version to return; by default the one after the newest.
        fail_on_data_loss : bool
            Whether to raise if unseen epochs were expired; otherwise a `Gap` is returned
            in their position.

        Raises
        ------
        VersionNotFoundError
            ``start`` is after the next version.
        """
        start = optional(version_argument, "start", start)
        head = self._watchers.poll()
        position = head.upper if start is None else start
        require_bound(position, head, name="'start'")
        return Watcher(self._watchers, position, fail_on_data_loss=fail_on_data_loss)

    def iter_changes(
        self,
        lower: int,
        upper: int,
        options: ChangeOptions,
        *,
        hash_range: HashRange = ALL_HASHES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the epochs' changes for a hash range, with the newest version's columns."""
        lower, upper = version_argument("lower", lower), version_argument("upper", upper)
        schema = self.log.head().schema
        schema.select(options.columns)  # Another process may have dropped one of them.
        return self._changes(schema, lower, upper, options, hash_range=hash_range)

    def _changes(
        self,
        schema: TableSchema,
        lower: int,
        upper: int,
        options: ChangeOptions,
        *,
        hash_range: HashRange = ALL_HASHES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield changes in a schema fixed by the caller.

        Another process may alter the table before the first batch is read.
        """
        net = options.deduplication is Deduplication.NET_CHANGES
        for epoch_range in cut_into_ranges(self.log, lower, upper, schema, net=net):
            yield from read_changes(
                self.store,
                epoch_range,
                options,
                hash_range=hash_range,
                threads=self.threads,
            )
