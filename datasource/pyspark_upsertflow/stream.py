"""The stream of changes: snapshot first if no start is given, then epoch after epoch.

The planner's reader lives as long as the query; another copy is pickled into the tasks and
only reads. `latestOffset` decides how far a micro-batch goes, within the limits, and never
cuts an epoch; `partitions` is a pure function of its two offsets and of the log.

Without ``readChangeFeed`` what is delivered are the new values alone (`new_values`); where a
stream stands, and what its limits count, is the same.

With ``consumerId`` the stream holds a lease on what it has yet to read: from its start on
before the first batch is planned, and then from the end of each batch that Spark reports
committed. Spark reports late, and never the last one, so that the lease is always at or
before the place where a restart begins.

With ``failOnDataLoss=false`` a stream that finds its place expired goes on at
`Manifest.first_changes` or, within its first snapshot, with that of ``since`` for the hashes
that it has not delivered (`readers.readable_from` says what that costs). A batch that is
replayed after a further expiry may then hold fewer changes than at first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_upsertflow.offsets import StreamOffset
from pyspark_upsertflow.readers import (
    SnapshotSplit,
    changelog_columns,
    open_table,
    plan_changes,
    read_change_split,
    read_rows,
    readable_from,
    snapshot_splits,
    starting_version,
    table_schema,
    to_spark,
)
from spark_upsert.changelog.render import as_inserts
from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.options.read import ReadOptions
from spark_upsert.state.counters import Counters
from spark_upsert.state.retention import Lease
from spark_upsert.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NO_BOUND = 2**62

_RENEWALS = 4
"""An idle stream renews its lease this many times before it would lapse."""

SNAPSHOT_STEPS = 1 << 16
"""A limited snapshot is cut at multiples of 1/65536 of the hashes."""


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changelog of one table as a stream, whole or its new values.

    The constructor never raises: Spark would stop the reader that it has not got, and what the user
    sees first would be its `UnboundLocalError`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = given
        self._schema = schema
        self._table: Table | None = None
        self._lease: Lease | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read: the log and what it has cached stay on the driver. A relative path is the
        # driver's, so that the options travel as they were understood there.
        return {**self.__dict__, "_table": None, "_options": self._options}

    @cached_property
    def _options(self) -> ReadOptions:
        options = ReadOptions.parse(self._given)
        options.require_stream()
        return options

    # -- planning, on the driver --------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        # The same for ever: a replay of the first batch asks again, when the table has grown.
        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        # The real limits are combined in `latestOffset`; Spark can pass only one of its own.
        return ReadMaxRows(self._options.rows_max or _NO_BOUND)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log_table().log.head().upper

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        table = self._log_table()
        offset = StreamOffset.from_json(start)
        self._require_same_table(table, offset)
        upper = table.log.head().upper if self._target is None else self._target
        if offset.is_initial:
            offset = self._begin(table, upper)
        offset = self._readable(table, offset)
        self._hold(table, offset)
        unlimited = isinstance(limit, ReadAllAvailable)
        if offset.snapshot and not unlimited:
            return self._placed(table, self._next_in_snapshot(table, offset)).to_json()
        end = self._next_changes(table, offset, upper, unlimited=unlimited)
        return start if end == StreamOffset.from_json(start) else self._placed(table, end).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        upper = self._log_table().log.head().upper
        return StreamOffset.at_changes(upper - 1, upper).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if first == last or last.origin is None:
            return []
        table = self._log_table()
        self._require_same_table(table, last)
        if first.is_initial:
            # What the batch began with is decided by its end: it remembers the origin.
            first = (
                StreamOffset.in_snapshot(last.origin, 0)
                if self._begins_with_snapshot()
                else StreamOffset.at_changes(last.origin, last.origin)
            )
        if first.snapshot:
            # The same, unless the rest of the snapshot was expired and another one took over.
            first = StreamOffset.in_snapshot(last.origin, first.hash)
        first = self._readable(table, first)
        self._hold(table, first)
        snapshot = self._snapshot_splits(table, first, last) if first.snapshot else []
        if last.snapshot:
            return snapshot
        changes = plan_changes(table, self._options, self._schema, first.upper, last.upper)
        return [*snapshot, *changes]

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what is before ``end``; where the stream stands is in Spark's checkpoint."""
        if self._options.consumer is not None:
            self._renew(self._log_table(), StreamOffset.from_json(end).version)

    def stop(self) -> None:
        """Do nothing: the reader owns no resource."""

    def _log_table(self) -> Table:
        if self._table is None:
            self._table = open_table(self._options)
        return self._table

    def _require_same_table(self, table: Table, offset: StreamOffset) -> None:
        """Raise unless the table is the one that an offset was planned on, and not an older copy.

        An offset stands for all before it: each version names the one that it was made upon.
        """
        if offset.place is None:
            return
        table.log.require(
            offset.place,
            "the checkpoint of this query",
            hint="if the table was replaced by mistake, put it back. If it was made anew, or an older "
            "copy is to be gone on with, give the query a new checkpointLocation: it delivers the "
            "whole table first, so let what it feeds begin anew, too.",
        )

    def _placed(self, table: Table, offset: StreamOffset) -> StreamOffset:
        """Return an offset with the version that it stands at; one yet to come has no token."""
        version = min(offset.version, table.log.head().version)
        return replace(offset, place=table.log.place(version))

    def _readable(self, table: Table, offset: StreamOffset) -> StreamOffset:
        """Return where a stream at an offset goes on; elsewhere only if data loss is allowed.

        Raises
        ------
        DataLossError
            What comes next is expired.
        """
        assert offset.origin is not None
        if not offset.snapshot:
            lower = readable_from(table, self._options, offset.upper)
            if lower <= table.log.head().version:
                table.log.require_changes(lower)
            return StreamOffset.at_changes(offset.origin, lower)
        since = table.log.head().since
        if offset.origin >= since or self._options.fail_on_data_loss:
            return offset
        readable_from(table, self._options, offset.upper)
        return StreamOffset.in_snapshot(since, offset.hash)

    def _hold(self, table: Table, offset: StreamOffset) -> None:
        """Take the lease, if it is not held yet, or renew it where it stands if it is due."""
        if self._options.consumer is None:
            return
        lease = self._lease
        if lease is None:
            self._renew(table, offset.version)
        elif table.log.now_ms() > lease.renewed_ms + lease.ttl_ms // _RENEWALS:
            self._renew(table, lease.version)

    def _renew(self, table: Table, version: int) -> None:
        assert self._options.consumer is not None
        if not self._options.fail_on_data_loss:
            version = max(version, table.log.head().since)
        ttl_ms = self._options.consumer_ttl_ms
        self._lease = table.hold(self._options.consumer, version, ttl_ms=ttl_ms)

    def _begins_with_snapshot(self) -> bool:
        options = self._options
        return options.starting_version is None and options.starting_timestamp_ms is None

    def _begin(self, table: Table, upper: int) -> StreamOffset:
        if self._begins_with_snapshot():
            return StreamOffset.in_snapshot(upper - 1, 0)
        origin = starting_version(table, self._options)
        assert origin is not None
        return StreamOffset.at_changes(origin, origin)

    def _next_in_snapshot(self, table: Table, offset: StreamOffset) -> StreamOffset:
        assert offset.origin is not None
        manifest = table.log.at(offset.origin)
        entries = sum(part.file.rows for part in manifest.slices)
        steps = [SNAPSHOT_STEPS]
        if self._options.rows_max is not None and entries:
            steps.append(SNAPSHOT_STEPS * self._options.rows_max // entries)
        if self._options.bytes_max is not None and manifest.bytes:
            steps.append(SNAPSHOT_STEPS * self._options.bytes_max // manifest.bytes)
        step = max(1, min(steps)) * (HASH_END // SNAPSHOT_STEPS)
        return StreamOffset.in_snapshot(offset.origin, min(HASH_END, offset.hash + step))

    def _next_changes(
        self, table: Table, offset: StreamOffset, upper: int, *, unlimited: bool
    ) -> StreamOffset:
        """Go as many whole epochs further as the limits allow, and at least one."""
        assert offset.origin is not None
        if unlimited or not self._is_limited():
            return StreamOffset.at_changes(offset.origin, max(offset.upper, upper))
        rows = size = epochs = 0
        end = offset.upper
        for version in range(offset.upper, upper):
            commit = table.log.commit(version)
            if commit.is_epoch:
                rows += Counters.from_json(commit.counters).output_count
                size += sum(file.bytes for file in commit.added)
                epochs += 1
                if epochs > 1 and self._exceeds(rows, size, epochs):
                    break
            end = version + 1
        return StreamOffset.at_changes(offset.origin, end)

    def _is_limited(self) -> bool:
        options = self._options
        return not options.rows_max is options.bytes_max is options.epochs_max is None

    def _exceeds(self, rows: int, size: int, epochs: int) -> bool:
        limits = (
            (rows, self._options.rows_max),
            (size, self._options.bytes_max),
            (epochs, self._options.epochs_max),
        )
        return any(most is not None and value > most for value, most in limits)

    def _snapshot_splits(
        self, table: Table, first: StreamOffset, last: StreamOffset
    ) -> list[InputPartition]:
        assert first.origin is not None
        table_schema(table, self._schema, changelog_columns(self._options))
        manifest = table.log.at(first.origin)
        hash_range = HashRange(first.hash, last.hash if last.snapshot else HASH_END)
        return snapshot_splits(self._options, manifest, hash_range)

    # -- reading, in the tasks ----------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SnapshotSplit):
            rows = read_rows(self._options, partition, self._schema)
            inserts = as_inserts(rows, partition.manifest)
            yield from to_spark(inserts, self._schema, is_scan=True)
        else:
            yield from read_change_split(self._options, partition, self._schema)
