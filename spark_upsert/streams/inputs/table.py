"""A table as an input (`TableInput`): its snapshot if no start is given, then epoch after epoch.

A `TablePosition` is in the snapshot or in the changes after it. With ``consumerId`` a lease is
always at or before a restart's position (docs/adr/0021).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_upsert.core.durations import render_ms
from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.lru import LruMap
from spark_upsert.errors import OptionError, TableNotFoundError, UpsertFlowError, masked
from spark_upsert.options.declare import options_affecting_counts
from spark_upsert.options.read import Metadata, ReadOptions
from spark_upsert.scheduler.scheduler import priority_in
from spark_upsert.store import Store
from spark_upsert.store.open import open_store
from spark_upsert.store.records import MALFORMED, text, whole
from spark_upsert.streams.inputs.protocol import (
    Backlog,
    Input,
    PollResult,
    ReadPiece,
    StreamPressure,
)
from spark_upsert.streams.offsets.offset import Json, Position
from spark_upsert.streams.reads.columns import require_columns, shown_grouping, table_columns
from spark_upsert.streams.reads.explain import log_read
from spark_upsert.streams.reads.ordered import SNAPSHOT_STEPS, CountedStep, StreamStep, refuse_gaps
from spark_upsert.streams.reads.read_split import read_split
from spark_upsert.streams.reads.splits import Split, changes_splits, rows_splits, split_bytes
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.codec import no_table
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, TableVersion
from spark_upsert.table.log.properties import heeds_pressure
from spark_upsert.table.log.snapshot import (
    LATEST,
    LogSnapshot,
    Versions,
    readable_from,
    resolve_starting_version,
)
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.retention.lag import PressureReport, report, withdraw
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import HashHistogram
from spark_upsert.table.table import Table

_LOGGER = logging.getLogger(__name__)


_STEP = HASH_END // SNAPSHOT_STEPS


@dataclass(frozen=True, slots=True)
class SnapshotRemainder:
    """The unread part in a snapshot, from a hash upwards.

    It has equal steps; after each, all smaller hashes are delivered. A step covers 1/65536 of the
    hash space, or a smaller part where keys share a hash prefix.
    """

    first: int
    steps: int
    """Step count, at least 1."""
    share: Fraction
    """Share in all entries of the snapshot."""
    spread: HashHistogram | None
    """Hash distribution within the remainder; None: uniform."""

    @classmethod
    def of(cls, manifest: Manifest | None, first: int) -> SnapshotRemainder:
        """Return the remainder for a version; opens no file."""
        if manifest is None or not manifest.schema.hash_prefix:
            steps = -(-(HASH_END - first) // _STEP)
            return cls(first, steps, Fraction(steps, SNAPSHOT_STEPS), None)
        spread = HashHistogram(HashRange(first, HASH_END), manifest.slices)
        all_slices = HashHistogram(ALL_HASHES, manifest.slices)
        steps = min(SNAPSHOT_STEPS, max(1, spread.rows))
        return cls(first, steps, Fraction(spread.rows, max(1, all_slices.rows)), spread)

    def of_all(self, amount: int) -> int:
        """Scale an amount for all entries down to the remainder."""
        return int(amount * self.share)

    def hash_after(self, steps: int) -> int:
        """Return the hash below which all rows are delivered after this many steps."""
        if self.spread is None:
            return min(HASH_END, self.first + steps * _STEP)
        # Each step goes on, whatever is known of it.
        return max(self.first + steps, self.spread.hash_at(steps, self.steps))


_END = f"{HASH_END:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePosition:
    """A position in the snapshot ``origin`` or in the changes after it.

    Rows with hashes below ``hash`` and changes in versions below ``upper`` are delivered. A
    continuing stream must find the version ``place`` in the table's log.
    """

    origin: int
    hash: int
    upper: int
    place: TableVersion | None = field(default=None, compare=False)
    """Follows from the other fields and the table; None in positions for reports only."""

    @classmethod
    def at_changes(cls, origin: int, upper: int) -> TablePosition:
        """Return the position before the changes in version ``upper``."""
        return cls(origin=origin, hash=HASH_END, upper=upper)

    @classmethod
    def in_snapshot(cls, origin: int, hash_: int) -> TablePosition:
        """Return a position in a snapshot; its end is the start of the changes."""
        return cls(origin=origin, hash=hash_, upper=origin + 1)

    @property
    def is_in_snapshot(self) -> bool:
        """Whether rows in version ``origin`` are still undelivered."""
        return self.hash < HASH_END

    @property
    def version(self) -> int:
        """The oldest version needed to continue from here."""
        return self.origin if self.is_in_snapshot else max(0, self.upper - 1)

    def to_position(self) -> Position:
        """Return the position as stored in offsets."""
        table_ref = self.place
        return Position.of(
            {
                "hash": f"{self.hash:016x}",
                "origin": self.origin,
                "place": table_ref and [table_ref.table_id, table_ref.version, table_ref.token],
                "upper": self.upper,
            }
        )

    @classmethod
    def from_position(cls, position: Position) -> TablePosition:
        """Parse a stored position; raises `OptionError`."""
        try:
            record = position.record
            table_ref = None
            if record["place"] is not None:
                table_id, version, token = record["place"]
                table_ref = TableVersion(
                    table_id=text(table_id), version=whole(version), token=text(token)
                )
            return cls(
                origin=whole(record["origin"]),
                hash=HashRange.from_json([record["hash"], _END]).first,
                upper=whole(record["upper"]),
                place=table_ref,
            )
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint holds {position.text:.500}, which is no position in a table.",
                hint="this checkpoint belongs to another input; give the query a new "
                "checkpointLocation.",
            ) from error


STEP_ROWS = 1 << 16
"""Approximate entries per snapshot step: a batch resuming within a step reads it again."""

_COUNTS = 10_000
"""Maximum cached step row counts; a replanned step is not counted again."""


class TableSteps:
    """One table's steps and their row counts.

    A row count comes from the log's counters where they are exact; otherwise the step is read.

    Parameters
    ----------
    table : Table
    options : ReadOptions
        Without net changes: each step is independent.
    columns : pyarrow.Schema
        The planned columns.
    """

    def __init__(self, table: Table, options: ReadOptions, columns: pa.Schema) -> None:
        if options.deduplication is Deduplication.NET_CHANGES:
            raise OptionError(
                "deduplicationMode=netChanges has no meaning in an exact order: which changes are "
                "left out would depend on where a batch ends.",
                hint="use another mode, or leave out 'merge' and 'interleaveSeed'.",
                option="deduplicationMode",
            )
        refuse_gaps(fail_on_data_loss=options.fail_on_data_loss)
        self._table = table
        self._options = replace(options, splits=1)
        self._columns = table_columns(columns, options)
        self._counts: LruMap[tuple[int, HashRange | None], int] = LruMap(_COUNTS)

    def of_snapshot(self, manifest: Manifest, due: HashRange) -> CountedStep:
        """Return the step for a version's rows in a hash range (`snapshot_ranges`)."""

        def split() -> Split:
            return rows_splits(manifest, self._options, due)[0]

        def rows() -> int:
            return self._counts.get_or_create(
                (manifest.version, due), lambda: self._read(split(), ())
            )

        return CountedStep(rows=rows, split=split)

    def of_changes(self, version: int, look: LogSnapshot) -> CountedStep:
        """Return the step for a version's changes, in the schema at the log snapshot's head."""

        def split() -> Split | None:
            with look:
                splits = changes_splits(look, self._options, version, version + 1)
            return splits[0] if splits else None

        def count() -> int:
            row_count = None
            if shown_grouping(look.head(), self._options) is None:
                row_count = _known_rows(look.commit(version), self._options)
            if row_count is not None:
                return row_count
            splits = split()
            return 0 if splits is None else self._read(splits, self._columns)

        return CountedStep(
            rows=lambda: self._counts.get_or_create((version, None), count), split=split
        )

    def _read(self, split: Split, columns: tuple[str, ...]) -> int:
        """Count a split's rows by reading it."""
        batches = read_split(self._table.store, split, self._options, columns)
        return sum(batch.num_rows for batch in batches)


def snapshot_ranges(manifest: Manifest, start: int = 0, end: int = HASH_END) -> list[HashRange]:
    """Return the snapshot steps between two hashes, which may be within steps.

    Step boundaries depend on the version only, hence every batch and replay has the same ones.
    """
    entries = sum(slice_.rows_within(ALL_HASHES) for slice_ in manifest.slices)
    count = min(SNAPSHOT_STEPS, max(1, entries // STEP_ROWS))
    unit = HASH_END // SNAPSHOT_STEPS
    inner = (unit * (SNAPSHOT_STEPS * index // count) for index in range(1, count))
    bounds = [start, *(bound for bound in inner if start < bound < end), end]
    return [HashRange(first, last) for first, last in pairwise(bounds)]


def _known_rows(commit: Commit, options: ReadOptions) -> int | None:
    """Return an epoch's change row count, None if its counters are not exact.

    Counters include updates without effect, and each key in an overwrite.
    """
    if not commit.is_epoch:
        return 0
    counters = Counters.from_json(commit.counters)
    is_plain = commit.kind is Kind.APPEND and not (counters.restored or counters.retracted)
    if not (is_plain and options.change_feed):
        return None
    if counters.updates and options.deduplication is not Deduplication.NONE:
        return None
    return counters.output_count


_POLLS_PER_PROOF = 8
"""Polls per full log check: the other polls only look up the next version."""

_OPENING = 4
"""Estimated requests to find an unknown log's head, rounded up."""

_RENEWING = 5
"""Requests per lease renewal."""

_RENEWALS = 4
"""Renewals by an idle stream per lease lifetime."""


OTHER_THAN_IN_GROUP = (
    "put the table back that was replaced. If it was made anew on purpose, the next batch of the "
    "query that writes it says what to do; until then, read without 'consistent'."
)


def open_table(options: ReadOptions) -> Table:
    """Return a read's table; with ``metadata=group`` it must exist."""
    table = Table(open_store(options.path, options.storage))
    if options.metadata is Metadata.GROUP and table.log.try_head() is None:
        raise no_group_error(options.path.rpartition("/")[0])
    return table


def no_group_error(root: str) -> TableNotFoundError:
    """Return the error for a root without a group table."""
    return TableNotFoundError(
        f"below '{root}' no query has written a batch into many tables: it has no group table.",
        hint="check 'path': it is the folder before the first '{' of the path that the query "
        "writes to, and has a group table from its first whole batch on.",
        path=root,
    )


def table_identity(table: Table) -> str:
    """Return a table's identity, which is equal under any path."""
    return identity_at(table.log)


def identity_at(log: Versions) -> str:
    """Return the table identity from a log."""
    return f"table {log.head().version_ref.table_id}"


_COMMITS_MAX = 64
"""Maximum versions to search for an epoch: compactions, for example, contain none."""


def _version_lag(upper: int, position: Position) -> int:
    """Return the version lag at a position (`Backlog.lag_at`)."""
    reached = TablePosition.from_position(position)
    return max(0, upper - reached.upper) + int(reached.is_in_snapshot)


def _left_since_ms(table: Table, upper: int, position: Position) -> int | None:
    """Return the commit time for the first epoch after a position (`Backlog.left_since_ms`)."""
    with suppress(UpsertFlowError):  # An error that matters, planning will meet, too.
        return _first_committed_ms(table, TablePosition.from_position(position), upper)
    return None


def _first_committed_ms(table: Table, start: TablePosition, upper: int) -> int | None:
    """Return the commit time for the first unread epoch (`Backlog.committed_ms`)."""
    if start.is_in_snapshot:
        return None
    versions = range(start.upper, min(upper, start.upper + _COMMITS_MAX))
    commits = (table.log.commit(version) for version in versions)
    return next((commit.timestamp_ms for commit in commits if commit.is_epoch), None)


_NEWEST_AMONG = 8
"""Maximum versions to search for the newest epoch."""


def _newest_epoch(table: Table, head: Manifest) -> Mapping[str, int] | None:
    """Return the newest epoch and its counters (`Input.newest`)."""
    versions = range(head.version, max(head.since - 1, head.version - _NEWEST_AMONG), -1)
    commits = (table.log.commit(version) for version in versions)
    with suppress(UpsertFlowError):  # An error that matters, planning will meet, too.
        for commit in commits:
            if commit.is_epoch:
                counted = Counters.from_json(commit.counters).to_json()
                return {"version": commit.version, **{k: n for k, n in counted.items() if n}}
    return None


_CHECKPOINT = "the checkpoint of this query"

_REPLACED = (
    "if the table was replaced by mistake, put it back. If it was made anew, or an older copy is "
    "to be gone on with, give the query a new checkpointLocation: it delivers the whole table "
    "first, so let what it feeds begin anew, too."
)


def _require_batch(look: LogSnapshot, place: TableVersion) -> Manifest:
    """Return the table's head, which must descend from the version in its group's batch."""
    return look.require(place, "the newest batch of its group", hint=OTHER_THAN_IN_GROUP)


def _skip_unchanged(look: LogSnapshot, position: TablePosition) -> TablePosition:
    """Move an expired position past versions without row changes; return it unchanged if
    impossible.
    """
    manifest = look.equivalent_version(position.version)
    if manifest is None:
        return position
    if position.is_in_snapshot:
        return TablePosition.in_snapshot(manifest, position.hash)
    return TablePosition.at_changes(position.origin, manifest + 1)


class TableInput(Input):
    """One table as an input: its rows, then its changes or new values only.

    With ``failOnDataLoss=false`` a stream with an expired position continues at
    `Manifest.first_changes`, or in the first snapshot at ``since``. A batch replayed after a
    further expiry may then have fewer changes.

    Parameters
    ----------
    options : ReadOptions
        Streaming options.
    columns : pyarrow.Schema
        The planned columns (`columns.read_columns`).
    table : Table, optional
        An open table; by default opened on first use.
    """

    def __init__(
        self, options: ReadOptions, columns: pa.Schema, *, table: Table | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._table = table
        self._seen: tuple[int, Position] | None = None
        """The newest upper, with its head position."""
        self._polls = 0
        self._is_polled = False
        self._lease: Lease | None = None
        self._leasing = threading.RLock()
        self._table_steps: TableSteps | None = None
        self._counted: tuple[TableVersion, Mapping[str, int] | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks only read: the log and its cache stay in the planning process.
        return TableInput, (self._options, self._columns)

    # -- planning --------------------------------------------------------------------

    def head(self) -> Position:
        """Return the position after all available data (`Input.head`)."""
        upper = self._opened().log.head().upper
        if self._seen is None or self._seen[0] != upper:
            self._seen = upper, TablePosition.at_changes(upper - 1, upper).to_position()
        return self._seen[1]

    def poll(self) -> PollResult:
        """Poll the head (`Pollable.poll`): mostly one request while nothing changes."""
        self._is_polled = True
        self._polls += 1
        table, before = self._opened(), self._seen
        # The planner may have seen more by now.
        is_known = (
            before is not None
            and (cached_head := table.log.cached_head)
            and cached_head.upper == before[0]
        )
        requests = self._renew_if_due(table)
        if is_known and self._polls % _POLLS_PER_PROOF:
            requests += 1
            if not table.log.has_newer():
                assert before is not None
                return PollResult(head=before[1], requests=requests)
        head = self.head()
        assert self._seen is not None
        new = _OPENING if before is None else max(0, self._seen[0] - before[0])
        return PollResult(head=head, requests=requests + new + 2)

    def identity(self) -> str:
        """Return the table's identity (`Input.identity`)."""
        return identity_at(self._opened().log.cached_snapshot())

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return the unread data (`Input.backlog`); takes or renews the lease."""
        table = self._opened()
        known_position = None if position is None else TablePosition.from_position(position)
        bound = None if head is None else TablePosition.from_position(head)

        def held() -> tuple[TablePosition, int]:
            steps_ahead = self._unread_range(table, known_position, bound)
            self._hold(table, steps_ahead[0])
            return steps_ahead

        start, upper = retry_after_expiry(held, table.store.url)

        def at(reached: TablePosition) -> Position:
            # A stream that has not moved keeps its position object, and so the same text.
            if position is not None and reached == known_position:
                return position
            return self._pack(table, reached)

        end = TablePosition.at_changes(start.origin, max(start.upper, upper))
        behind_snapshot = TablePosition.in_snapshot(start.origin, HASH_END)
        return Backlog(
            start=at(start),
            pieces=self._pieces(table, start, upper),
            reach=partial(at, behind_snapshot if start.is_in_snapshot else end),
            end=partial(at, end),
            # An unpolled input renews its lease here.
            is_at_rest=start == end == known_position
            and (self._is_polled or self._options.consumer is None),
            versions_behind=partial(_version_lag, upper),
            committed_ms=partial(_first_committed_ms, table, start, upper),
            left_since_ms=partial(_left_since_ms, table, upper),
        )

    def priority(self) -> int | None:
        """Return the table's own priority (`Input.priority`)."""
        return priority_in(self._opened().log.cached_snapshot().head().properties)

    def last_read_ms(self) -> int | None:
        """Return when another consumer last renewed its lease (`Input.last_read_ms`).

        This stream's own lease is ignored: otherwise serving an input would raise its urgency.
        """
        consumer = self._options.consumer
        others = [lease for lease in self._opened().consumers() if lease.consumer != consumer]
        return max((lease.renewed_ms for lease in others), default=None)

    def newest(self) -> Mapping[str, int] | None:
        """Return the newest epoch and its row counters (`Input.newest`)."""
        table = self._opened()
        head = table.log.cached_head
        if head is None:
            return None
        if self._counted is None or self._counted[0] != head.version_ref:
            self._counted = head.version_ref, _newest_epoch(table, head)
        return self._counted[1]

    def splits(self, start: Position | None, end: Position) -> list[Split]:
        """Return a batch's tasks (`Input.splits`)."""
        table = self._opened()
        last = TablePosition.from_position(end)
        look = self._log_snapshot(table, last)
        newest = self._newest(look, last)
        first = self._readable(look, self._batch_start(start, last))
        self._hold(table, first)
        require_columns(newest, self._columns, self._options)
        splits: list[Split] = []
        with look:  # All versions read here are older than the snapshot.
            if first.is_in_snapshot:
                # In the newest schema, like changes: its columns are the planned ones.
                manifest = replace(look.at(first.origin), schema=newest.schema)
                due = HashRange(first.hash, last.hash)
                splits += rows_splits(manifest, self._options, due)
            if not last.is_in_snapshot:
                splits += changes_splits(look, self._options, first.upper, last.upper)
        if _LOGGER.isEnabledFor(logging.INFO):
            log_read(splits, self._options, table_columns(self._columns, self._options))
        return splits

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield the steps between two positions (`SteppedInput.steps`)."""
        table = self._opened()
        last = TablePosition.from_position(end)
        look = self._log_snapshot(table, last)
        newest = self._newest(look, last)
        first = self._readable(look, self._batch_start(start, last))
        self._hold(table, first)
        require_columns(newest, self._columns, self._options)
        steps = self._table_steps = self._table_steps or TableSteps(
            table, self._options, self._columns
        )

        def step(of: CountedStep, position_after: TablePosition) -> StreamStep:
            after = partial(self._pack, table, position_after)
            return StreamStep(rows=of.rows, split=of.split, after=after)

        if first.is_in_snapshot:
            manifest = replace(look.at(first.origin), schema=newest.schema)
            for due in snapshot_ranges(manifest, first.hash, last.hash):
                next_position = TablePosition.in_snapshot(first.origin, due.end)
                yield step(steps.of_snapshot(manifest, due), next_position)
        if not last.is_in_snapshot:
            for version in range(first.upper, last.upper):
                next_position = TablePosition.at_changes(first.origin, version + 1)
                yield step(steps.of_changes(version, look), next_position)

    def start_options(self) -> Mapping[str, Json]:
        """Return whether the stream starts with changes or with a snapshot (`Input.start_options`)."""
        return {"startingVersion": None if self._begins_with_snapshot else "given"}

    def row_options(self) -> Mapping[str, Json]:
        """Return the options affecting an epoch's rows (`Input.row_options`)."""
        return {
            "deduplicationMode": self._options.deduplication.value,
            **options_affecting_counts(self._options),
        }

    def split_bytes(self, split: Split) -> int:
        """Estimate the bytes read by a split (`Input.split_bytes`)."""
        return split_bytes(split)

    def commit(self, position: Position) -> None:
        """Advance the lease (`Input.commit`); the position itself is in Spark's checkpoint."""
        if self._options.consumer is not None:
            self._renew(self._opened(), TablePosition.from_position(position).version)

    def report_pressure(self, pressure: StreamPressure | None) -> None:
        """Report pressure to the table's writers, if the table heeds its consumers (`Input.report_pressure`)."""
        consumer, table = self._options.consumer, self._opened()
        cached_head = table.log.cached_head
        if consumer is None or cached_head is None or not heeds_pressure(cached_head.properties):
            return
        try:
            if pressure is None:
                withdraw(table.store, consumer)
                return
            pressure_report = PressureReport(
                consumer=consumer,
                rung=pressure.rung,
                pressure=pressure.ratio,
                reported_ms=pressure.said_ms,
                ttl_ms=pressure.lasts_ms,
                retry_after_ms=pressure.retry_after_ms,
            )
            report(table.store, pressure_report)
        except OSError as error:  # A lost hint breaks no guarantee.
            _LOGGER.warning("pressure is not told: %s", masked(str(error)))

    def _opened(self) -> Table:
        if self._table is None:
            self._table = open_table(self._options)
        return self._table

    # -- positions -------------------------------------------------------------------

    def _log_snapshot(
        self, table: Table, position: TablePosition | None, *, has_looked: bool = False
    ) -> LogSnapshot:
        """Return a log snapshot: the cached one if ``has_looked``, else a new one."""
        if has_looked:
            return table.log.cached_snapshot()
        head = table.log.try_refresh()
        if head is None and position is not None and position.place is not None:
            raise table.log.stored.other_table_error(
                position.place, "no table", _CHECKPOINT, _REPLACED
            )
        return head or table.log.refresh()

    def _newest(self, look: LogSnapshot, position: TablePosition | None) -> Manifest:
        """Return the table's head; raises if the position belongs to another table or history.

        A position vouches for all versions before it: each version names its predecessor.
        """
        if position is None or position.place is None:
            return look.head()
        return look.require(position.place, _CHECKPOINT, hint=_REPLACED)

    def _pack(self, table: Table, position: TablePosition) -> Position:
        """Pack a position with its version's reference; a future version uses the head's."""
        with table.log.cached_snapshot() as look:
            version = min(position.version, look.head().version)
            return replace(position, place=look.version_ref(version)).to_position()

    def _starting_position(self, look: LogSnapshot, upper: int) -> TablePosition:
        """Return the starting position by the options."""
        options = self._options
        if self._begins_with_snapshot:
            return TablePosition.in_snapshot(upper - 1, 0)
        if options.starting_version == LATEST:
            return TablePosition.at_changes(upper, upper)
        origin = resolve_starting_version(
            look,
            version=options.starting_version,
            time_ms=options.starting_timestamp_ms,
            is_inclusive=options.starting_inclusive,
        )
        assert origin is not None
        return TablePosition.at_changes(origin, origin)

    def _batch_start(self, start: Position | None, last: TablePosition) -> TablePosition:
        """Return a batch's start position, derived from its offsets alone."""
        if start is not None:
            first = TablePosition.from_position(start)
            if not first.is_in_snapshot:
                return first
            # The same, unless the rest of the snapshot was expired and another one took over.
            return TablePosition.in_snapshot(last.origin, first.hash)
        # The first batch's end position contains the origin; the starting options may not change
        # while that batch is undelivered (`formats.require_same_start_options`).
        if self._begins_with_snapshot:
            return TablePosition.in_snapshot(last.origin, 0)
        return TablePosition.at_changes(last.origin, last.origin)

    @property
    def _begins_with_snapshot(self) -> bool:
        options = self._options
        return options.starting_version is None and options.starting_timestamp_ms is None

    def _readable(self, look: LogSnapshot, position: TablePosition) -> TablePosition:
        """Return a readable position to continue at; skips data only if data loss is allowed."""
        newest = look.head()
        fail, path = self._options.fail_on_data_loss, self._options.path
        if position.version < newest.since:
            position = _skip_unchanged(look, position)
        if position.is_in_snapshot and (position.origin >= newest.since or fail):
            return position
        lower = readable_from(newest, position.upper, path=path, fail_on_data_loss=fail)
        if position.is_in_snapshot:
            return TablePosition.in_snapshot(newest.since, position.hash)
        if lower < newest.first_changes:
            look.require_changes(lower)
        return TablePosition.at_changes(position.origin, lower)

    # -- unread data -----------------------------------------------------------------

    def _unread_range(
        self, table: Table, known: TablePosition | None, bound: TablePosition | None
    ) -> tuple[TablePosition, int]:
        """Return the start position and the exclusive upper version for unread data."""
        last = None if bound is None else bound.upper
        # A given head was looked up here, unless by another process, or the stream is past it.
        has_looked = last is not None and (known is None or known.upper <= last)
        if has_looked and (cached_head := table.log.cached_head) is not None:
            has_looked = cached_head.upper >= (last or 0)
        with self._log_snapshot(table, known, has_looked=has_looked) as look:
            newest = self._newest(look, known)
            upper = newest.upper if last is None else last
            if bound is not None and bound.place is not None:
                newest = _require_batch(look, bound.place)
            elif known is None:  # Behind the head that was seen an expiry may have come.
                upper = max(upper, newest.since + 1)
            start = known or self._starting_position(look, upper)
            if start.is_in_snapshot or start.upper < upper:
                start = self._readable(look, start)
            return start, upper

    def _pieces(self, table: Table, start: TablePosition, upper: int) -> Iterator[ReadPiece]:
        """Yield the rest of the snapshot, which never shares a batch with changes, or the epochs."""
        if start.is_in_snapshot:
            yield self._rest_of_snapshot(table, start)
            return
        for version in range(start.upper, upper):
            commit = table.log.commit(version)
            end = TablePosition.at_changes(start.origin, version + 1)
            yield ReadPiece(
                steps=1,
                rows=Counters.from_json(commit.counters).output_count if commit.is_epoch else 0,
                bytes=sum(file.bytes for file in commit.added) if commit.is_epoch else 0,
                epochs=int(commit.is_epoch),
                after=lambda _, position_after=end: self._pack(table, position_after),  # type: ignore[misc]
            )

    def _rest_of_snapshot(self, table: Table, start: TablePosition) -> ReadPiece:
        manifest = table.log.at(start.origin)
        remainder = SnapshotRemainder.of(manifest, start.hash)

        def after(taken: int) -> Position:
            reached = remainder.hash_after(taken)
            return self._pack(table, TablePosition.in_snapshot(start.origin, reached))

        return ReadPiece(
            steps=remainder.steps,
            rows=remainder.of_all(manifest.slice_list.rows),
            bytes=remainder.of_all(manifest.bytes),
            after=after,
        )

    # -- leases ----------------------------------------------------------------------

    def _hold(self, table: Table, position: TablePosition) -> None:
        """Take the lease if it is not held yet, else renew it if due."""
        if self._options.consumer is None:
            return
        with self._leasing:
            if self._lease is None:
                self._renew(table, position.version)
            else:
                self._renew_if_due(table)

    def _renew_if_due(self, table: Table) -> int:
        """Renew the lease at its version if due; return the request count."""
        with self._leasing:
            lease = self._lease
            if lease is None or table.log.now_ms() <= lease.renewed_ms + lease.ttl_ms // _RENEWALS:
                return 0
            self._renew(table, lease.version)
            return _RENEWING

    def _renew(self, table: Table, version: int) -> None:
        assert self._options.consumer is not None
        with self._leasing:  # Two threads may hold it; it never goes back.
            if self._lease is not None:
                # Nor by a batch without changed rows that ended at expired versions.
                version = max(version, self._lease.version)
            if not self._options.fail_on_data_loss:
                version = max(version, table.log.head().since)
            ttl_ms = self._options.consumer_ttl_ms
            self._lease = table.hold(self._options.consumer, version, ttl_ms=ttl_ms)

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows (`Input.read`)."""
        store = self._opened().store
        yield from read_split(
            store, split, self._options, table_columns(self._columns, self._options)
        )


PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
"""A table is found within a second after its first epoch, at one request per second."""


def wait_for_table(
    table: Table,
    timeout_ms: int | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Table:
    """Return a table once it exists (``tableTimeout``).

    A query's first batch may create another stream's input table.
    """
    deadline_s = clock() + (timeout_ms or 0) / 1000
    pause_s = PAUSE_S_MIN
    while table.log.try_head() is None:
        left_s = deadline_s - clock()
        if left_s <= 0:
            raise _missing(table.store, timeout_ms)
        sleep(min(pause_s, left_s))
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)
    return table


def _missing(store: Store, timeout_ms: int | None) -> TableNotFoundError:
    if timeout_ms is None:
        return no_table(store, may_wait=True)
    path = store.url
    return TableNotFoundError(
        f"there is no upsertflow table at '{path}' (no version 0 in its _log folder) after "
        f"{render_ms(timeout_ms)}.",
        hint="look whether the query that writes it has had a batch (its first one makes the "
        "table), or make the table before by spark_upsert.Table.create.",
        path=path,
    )
