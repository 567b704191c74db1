"""The group table ``ROOT/_group`` (`GroupTable`): complete batches, and each table's version.

A batch is *complete* when all tables have it; then it is one epoch here. One root has one query.
Tables stay columns (`Members`), so that untouched ones cost little.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.durations import Fields, render_time
from spark_upsert.core.lsn import parse_lsn
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import (
    OptionError,
    OtherTableError,
    UpsertFlowError,
    VersionNotFoundError,
    setting,
)
from spark_upsert.routed.dead_letter import commit_if_unchanged
from spark_upsert.scheduler.scheduler import DirtySet, Schedule, Service, Turn, Urgency
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.manifest import (
    QUERY,
    Commit,
    Draft,
    Manifest,
    TableVersion,
    Transaction,
)
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.retention.lag import BacklogCounter
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.guards import Admission
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet

_LOGGER = logging.getLogger(__name__)


FIELDS: Mapping[str, pa.DataType] = {
    "folder": pa.string(),
    "name": pa.string(),
    "values": pa.list_(pa.string()),
    "table_id": pa.string(),
    "version": pa.int64(),
    "token": pa.string(),
    "query": pa.string(),
    "batch": pa.int64(),
    "rows": pa.int64(),
    "tasks": pa.int64(),
    "parked": pa.int64(),
    "debt": pa.int64(),
    "debt_since": pa.timestamp("us", "UTC"),
    "priority": pa.int64(),
    "turn": pa.list_(pa.int64()),
    "committed": pa.timestamp("us", "UTC"),
    "terms": pa.string(),
    "source_lsn": pa.string(),
    "source_time": pa.timestamp("us", "UTC"),
    "state": pa.string(),
}
"""Group table columns."""

_OF_SOURCE = ("source_lsn", "source_time", "state")
_OF_PLACES = ("folder", "table_id", "version", "token")

_US_PER_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A group table row for one table, from its last complete batch."""

    folder: str
    name: str
    """Name used in options: the template filled with unescaped values."""
    values: tuple[str, ...]
    place: TableVersion
    """Version containing the batch."""
    writer: str
    """The batch's `Transaction.writer`; ``""`` for an unnamed batch write."""
    batch: int | None
    rows: int
    """Rows in that batch."""
    tasks: int = 1
    """Tasks with rows in that batch."""
    parked: int = 0
    """Dead-letter rows from all batches, not yet replayed."""
    debt: int = 0
    """Due compactions."""
    debt_since_ms: int | None = None
    """Waiting for compaction since this time; None if none is due."""
    priority: int | None = None
    """The table's own compaction priority (`schedule`)."""
    committed_ms: int = 0

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Member:
        """Convert a group table row."""
        return cls(
            folder=row["folder"],
            name=row["name"],
            values=tuple(row["values"]),
            place=TableVersion(
                table_id=row["table_id"], version=row["version"], token=row["token"]
            ),
            writer=row["query"],
            batch=row["batch"],
            rows=row["rows"],
            tasks=row["tasks"],
            parked=row["parked"],
            debt=row["debt"],
            debt_since_ms=ms_of(row["debt_since"]),
            priority=row["priority"],
            committed_ms=ms_of(row["committed"]) or 0,
        )

    def to_row(self) -> dict[str, Any]:
        """Return the group table row."""
        return {
            "folder": self.folder,
            "name": self.name,
            "values": list(self.values),
            "table_id": self.place.table_id,
            "version": self.place.version,
            "token": self.place.token,
            "query": self.writer,
            "batch": self.batch,
            "rows": self.rows,
            "tasks": self.tasks,
            "parked": self.parked,
            "debt": self.debt,
            "debt_since": us_of(self.debt_since_ms),
            "priority": self.priority,
            "committed": us_of(self.committed_ms),
        }


class Members(Mapping[str, Member]):
    """Group members by folder.

    Parameters
    ----------
    rows : pyarrow.Table
        Columns as in `FIELDS`, one row per table.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows.combine_chunks()
        self._made: dict[str, Member] = {}

    @classmethod
    def of(cls, members: Iterable[Member]) -> Members:
        """Build from member objects."""
        return cls(pa.Table.from_pylist([member.to_row() for member in members], pa.schema(FIELDS)))

    def __repr__(self) -> str:
        return f"Members({len(self)} tables)"

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, folder: object) -> bool:
        return folder in self._index

    def __getitem__(self, folder: str) -> Member:
        member = self._made.get(folder)
        if member is None:
            [row] = self._rows.slice(self._index[folder], 1).to_pylist()
            member = self._made[folder] = Member.of_row(row)
        return member

    @cached_property
    def _index(self) -> dict[str, int]:
        return {folder: at for at, folder in enumerate(self._rows["folder"].to_pylist())}

    @property
    def names(self) -> list[str]:
        """Table names."""
        names: list[str] = self._rows["name"].to_pylist()
        return names

    @property
    def places(self) -> TableVersions:
        """Each table's version."""
        return TableVersions(self._rows.select(_OF_PLACES))

    def waiting(self) -> list[Member]:
        """Return tables with due compactions or dead-letter rows."""
        waits = pc.or_(
            pc.greater(self._rows["debt"], 0).combine_chunks(),
            pc.greater(self._rows["parked"], 0).combine_chunks(),
        )
        return [self[folder] for folder in self._rows["folder"].filter(waits).to_pylist()]


class TableVersions(Mapping[str, TableVersion]):
    """Table versions by folder. Pickled as columns.

    Parameters
    ----------
    rows : pyarrow.Table
        Columns ``folder``, ``table_id``, ``version``, ``token``.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return TableVersions, (self._rows,)  # What is derived does not travel.

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, folder: object) -> bool:
        return folder in self._index

    def __getitem__(self, folder: str) -> TableVersion:
        _, table_id, version, token = self._rows.slice(self._index[folder], 1).columns
        return TableVersion(
            table_id=table_id[0].as_py(), version=version[0].as_py(), token=token[0].as_py()
        )

    def folder_of(self, table_id: str) -> str | None:
        """Return a table ID's folder; None if there is none."""
        at = pc.index(self._rows["table_id"], table_id).as_py()
        return None if at < 0 else str(self._rows["folder"][at].as_py())

    @cached_property
    def _index(self) -> dict[str, int]:
        return {folder: at for at, folder in enumerate(self._rows["folder"].to_pylist())}


def ms_of(value: Any) -> int | None:
    """Convert a timestamp to ms since 1970; None stays None."""
    return None if value is None else round(value.timestamp() * 1000)


def us_of(ms: int | None) -> int | None:
    """Convert ms to µs since 1970, as stored in the group table; None stays None."""
    return None if ms is None else ms * _US_PER_MS


def _us_since_1970(value: Any) -> int | None:
    return None if value is None else round(value.timestamp() * 1_000_000)


FOLDER = "_group"
"""Group table folder below the root. No table folder begins with it."""

BATCH = ""
"""Value in column ``folder`` for the batch row."""

COLUMNS = pa.schema(FIELDS)

SCHEMA = TableSchema.of(COLUMNS, keys=["folder"])

_CHECKPOINT = "checkpoint:"
"""Writer name prefix for a query without a known ID."""

_CLAIM = "claim:"
"""Writer name prefix for a query with a claim to the root and possibly no writes yet."""


WHOLE, JOINING = "whole", "joining"
"""States of a followed database's batch: the tables together show one state of it, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """A batch's place in the log of the database that the tables follow."""

    lsn: str
    committed_us: int | None = None
    """When the batch's last transaction was committed, in microseconds since 1970; None: none."""
    is_whole: bool = True
    """Whether the tables together show the database's state at this position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A complete batch: committed to all its tables."""

    template: str
    """Folder template, relative to the root."""
    writer: str
    number: int | None
    rows: int
    tasks: int = 1
    """Task count."""
    parked: int = 0
    """Dead-letter rows not yet replayed, including rows without a table name."""
    unmatched: tuple[str, ...] = ()
    """Option patterns matching no table."""
    turn: Turn = field(default_factory=Turn)
    """Position in the compaction queue: determines the next table."""
    committed_ms: int = 0
    terms: str | None = None
    """`RoutedPlan.terms` under which a table last accepted rows; None if none ever did."""
    source: SourcePosition | None = None
    """None unless the tables follow a database."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Batch:
        """Convert the row with the folder ``""``."""
        return cls(
            template=row["name"],
            writer=row["query"],
            number=row["batch"],
            rows=row["rows"],
            tasks=row["tasks"],
            parked=row["parked"],
            unmatched=tuple(row["values"] or ()),
            turn=Turn()
            if row["turn"] is None
            else Turn(band=row["turn"][0], credit=row["turn"][1]),
            committed_ms=ms_of(row["committed"]) or 0,
            terms=row["terms"],
            source=None
            if row["source_lsn"] is None
            else SourcePosition(
                lsn=row["source_lsn"],
                committed_us=_us_since_1970(row["source_time"]),
                is_whole=row["state"] == WHOLE,
            ),
        )

    def to_row(self) -> dict[str, Any]:
        """Return the group table row."""
        source = self.source
        of_source = (
            {}
            if source is None
            else {
                "source_lsn": source.lsn,
                "source_time": source.committed_us,
                "state": WHOLE if source.is_whole else JOINING,
            }
        )
        return {
            **of_source,
            "folder": BATCH,
            "name": self.template,
            "values": list(self.unmatched),
            "query": self.writer,
            "batch": self.number,
            "rows": self.rows,
            "tasks": self.tasks,
            "parked": self.parked,
            "debt": 0,
            "turn": [self.turn.band, self.turn.credit],
            "committed": us_of(self.committed_ms),
            "terms": self.terms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGroup:
    """All tables below a root, as recorded at one group table version."""

    version: int = -1
    """Group table version; -1 if the table does not exist."""
    batch: Batch | None = None
    """Newest complete batch; None before the first."""
    members: Members = field(default_factory=lambda: Members.of(()))
    """Tables by folder."""

    @property
    def source(self) -> SourcePosition | None:
        """The batch's position; None unless the tables follow a database."""
        return None if self.batch is None else self.batch.source

    @property
    def is_joining(self) -> bool:
        """Whether the tables follow a database, and were copied at different times."""
        return self.source is not None and not self.source.is_whole


class GroupTable:
    """A root's group table.

    Parameters
    ----------
    root : Store
        The folder containing all tables.
    """

    def __init__(self, root: Store) -> None:
        self.root = root
        self.table = Table(PrefixStore(root, FOLDER))

    def __repr__(self) -> str:
        return f"GroupTable({self.root.url!r})"

    def at(self, version: int | None = None) -> TableGroup:
        """Return the group at a group table version, by default the newest.

        Empty if the root has no group table.
        """
        look = self.table.log.try_refresh()
        if look is None:
            return TableGroup()
        with look:
            return self.at_snapshot(look, version)

    def at_snapshot(self, look: LogSnapshot, version: int | None = None) -> TableGroup:
        """Return the group at a group table version, by default the snapshot's head."""
        manifest = look.head() if version is None else look.at(version)
        snapshot = Snapshot(self.table.store, manifest)
        rows = _read_rows(snapshot)
        is_batch = pc.equal(rows["folder"], BATCH)
        batches = rows.filter(is_batch).to_pylist()
        return TableGroup(
            version=snapshot.manifest.version,
            batch=Batch.of_row(batches[0]) if batches else None,
            members=Members(rows.filter(pc.invert(is_batch))),
        )

    def of_batch(self, number: int) -> TableGroup:
        """Return the group as of one batch from the owning query.

        A binary search reads O(log n) group table versions. Raises if the batch is expired or not
        recorded.
        """
        look = self.table.log.try_refresh()
        head = None if look is None else look.head()
        writer = None if head is None else newest_query(head) or self._last_writer()
        if (
            look is None
            or head is None
            or writer is None
            or head.transactions.get(writer, -1) < number
        ):
            last = -1 if head is None else head.transactions.get(writer or "", -1)
            raise _no_such_batch(number, last, self.root.url)
        with look:
            versions = range(head.since, head.upper)
            index = bisect_left(
                versions, number, key=lambda version: look.at(version).transactions.get(writer, -1)
            )
            last_number = look.at(versions[index]).transactions[writer]
            if last_number == number:
                return self.at_snapshot(look, versions[index])
        if index == 0 and head.since > 0:
            raise VersionNotFoundError(
                f"batch {number} of the tables below '{self.root.url}' is expired: the oldest "
                f"readable batch is {last_number}.",
                hint=f"read batch {last_number} or a later one; keep more from now on by a longer "
                f"{setting('groupRetention', '30 days')} of the query that writes.",
                since=head.since,
                newest=head.version,
                batch=number,
            )
        raise VersionNotFoundError(
            f"no batch {number} was written below '{self.root.url}': the next batch is "
            f"{last_number}.",
            hint=f"read batch {last_number}.",
            batch=number,
        )

    def of_source(self, *, lsn: int | None = None, time_ms: int | None = None) -> TableGroup:
        """Return the group as of the newest whole batch at or before a place in the database's log.

        The place is a position or a commit time; a batch without a transaction has no time. A
        binary search reads O(log n) group table versions. Raises if there is no such batch.
        """
        look = self.table.log.try_refresh()
        if look is None:
            return TableGroup()
        bound = lsn if time_ms is None else time_ms
        assert bound is not None

        def place_at(version: int) -> tuple[int | None, TableGroup]:
            group = self.at_snapshot(look, version)
            source = group.source
            if source is None or time_ms is None:
                return None if source is None else parse_lsn(source.lsn), group
            us = source.committed_us
            return None if us is None else us // _US_PER_MS, group

        with look:
            versions = range(look.head().since, look.head().upper)
            index = bisect_left(versions, True, key=lambda v: (place_at(v)[0] or 0) > bound)
            for version in reversed(versions[:index]):
                place, group = place_at(version)
                if place is not None and place <= bound and not group.is_joining:
                    return group
            groups = (group for place, group in map(place_at, versions) if place is not None)
            oldest = next((group for group in groups if not group.is_joining), None)
            raise _no_source_batch(
                oldest or self.at_snapshot(look),
                self.root.url,
                option="asOfLsn" if time_ms is None else "asOfSourceTime",
                is_found=oldest is not None,
            )

    def _last_writer(self) -> str | None:
        batch = self.at().batch
        return None if batch is None else batch.writer

    def has(self, transaction: Transaction | None) -> bool:
        """Return whether a batch is already complete."""
        head = self.table.log.try_head()
        return head is not None and transaction is not None and head.has(transaction)

    def refusal(
        self, writer: str, *, take_over: bool = False, head: Manifest | None = None
    ) -> OtherTableError | None:
        """Return an error if a writer must not write below the root, else None (`refusal_of`)."""
        head = head or self.table.log.try_head()
        if head is None:
            return None
        return refusal_of(writer, head, self.root.url, take_over=take_over)

    def require_owner(
        self, writer: str, *, take_over: bool = False, head: Manifest | None = None
    ) -> None:
        """Raise if a writer must not write below the root; parameters as for `refusal`."""
        refusal = self.refusal(writer, take_over=take_over, head=head)
        if refusal:
            raise refusal

    def claim(self, writer: str, head: Manifest | None = None) -> None:
        """Record a root takeover before the new query writes any table; no-op for the owner."""
        head = head or self.table.log.try_head()
        if head is None or owner_of(head) in (None, writer):
            return
        base = Snapshot(self.table.store, head)
        write_set = WriteSet(
            base=base,
            staged=(stage(base, ()),),
            transactions=(Transaction(writer=f"{_CLAIM}{writer}", number=0),),
        )
        guard = _OwnersOnly(self.table, writer, self.root.url, take_over=True)
        self.table.commit(write_set, admission=guard)

    def append(
        self,
        batch: Batch,
        members: Iterable[Member],
        transaction: Transaction | None,
        *,
        take_over: bool = False,
    ) -> Commit | None:
        """Record a batch as complete; creates the group table if it does not exist."""
        table = self.table
        # The put finds out whether what was seen is the newest.
        head = _add_missing_columns(
            table,
            table.log.cached_head or table.ensure(SCHEMA, allow_non_empty_path=True),
            has_source=batch.source is not None,
        )
        rows = _rows_for(head, [batch.to_row(), *(member.to_row() for member in members)])
        envelope = envelope_of_rows(head.schema, rows.schema)
        base = Snapshot(table.store, head)
        write_set = WriteSet(
            base=base,
            staged=(stage(base, map(envelope.commands, rows.to_batches())),),
            transactions=() if transaction is None else (transaction,),
        )
        guard = _OwnersOnly(table, batch.writer, self.root.url, take_over=take_over)
        try:
            committed = table.commit(write_set, admission=guard)
        except OtherTableError:
            table.discard(write_set.staged)
            raise
        self._compact_once()
        return committed

    def update_member(self, update: Callable[[Member | None], Member | None], folder: str) -> None:
        """Update one table's member between batches.

        `update` returns the new member, or None for no change; it is called again after each lost
        race.
        """

        def stage_runs() -> list[StagedRuns]:
            head = _add_missing_columns(self.table, self.table.log.head(), has_source=False)
            member = update(self.at_snapshot(self.table.log.cached_snapshot()).members.get(folder))
            if member is None:
                return []
            rows = _rows_for(head, [member.to_row()])
            envelope = envelope_of_rows(head.schema, rows.schema)
            base = Snapshot(self.table.store, head)
            return [stage(base, map(envelope.commands, rows.to_batches()))]

        if self.table.log.try_head() is not None:
            commit_if_unchanged(self.table, stage_runs)

    def _compact_once(self) -> None:
        table = self.table
        jobs = table.compaction_jobs(look=table.log.cached_snapshot())[:1]
        table.commit_compactions([compact_runs(table.store, table.log.head(), job) for job in jobs])


class _OwnersOnly(Admission):
    """Checks root ownership directly before the put, so that one competing writer is refused."""

    def __init__(self, table: Table, writer: str, url: str, *, take_over: bool) -> None:
        super().__init__(table.log, table.store, BacklogCounter())
        self._writer, self._url, self._take_over = writer, url, take_over

    def refusal(self, head: Manifest, draft: Draft | None = None) -> OtherTableError | None:
        return refusal_of(self._writer, head, self._url, take_over=self._take_over)


def _read_rows(snapshot: Snapshot) -> pa.Table:
    """Return all group table rows; columns missing from an older release's table are null."""
    stored_names = set(snapshot.manifest.schema.columns.names)
    names = [name for name in COLUMNS.names if name in stored_names]
    schema = pa.schema([COLUMNS.field(name) for name in names])
    rows = pa.Table.from_batches(snapshot.read(names), schema=schema)
    for name in COLUMNS.names:
        if name not in stored_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, COLUMNS.field(name).type))
    return rows


def _add_missing_columns(table: Table, head: Manifest, *, has_source: bool) -> Manifest:
    """Add needed columns missing from an older release's table; return the head."""
    needed = set(COLUMNS.names) if has_source else set(COLUMNS.names) - set(_OF_SOURCE)
    return head if needed <= set(head.schema.columns.names) else table.alter(SCHEMA)


def _rows_for(head: Manifest, rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows with the columns of the group table."""
    columns = head.schema.columns
    schema = pa.schema([field for field in COLUMNS if has_column(columns, field.name)])
    return pa.Table.from_pylist(rows, schema=schema)


def _no_such_batch(number: int, last: int, url: str) -> UpsertFlowError:
    if last >= 0:
        return VersionNotFoundError(
            f"batch {number} does not exist: the newest complete batch below '{url}' is {last}.",
            hint=f"read a batch up to {last}.",
            batch=number,
        )
    return OptionError(
        f"option 'asOfBatch' is {number}, but below '{url}' no batch that has a number is whole "
        "yet.",
        hint=f"read what is there with {setting('consistent', 'true')}. Numbers are those of a "
        "streaming query; a batch write has none without 'txnAppId'.",
        option="asOfBatch",
        batch=number,
    )


def _no_source_batch(
    group: TableGroup, url: str, *, option: str, is_found: bool
) -> UpsertFlowError:
    """Return the error for a read before the oldest whole batch, or if there is none."""
    source = group.source
    if group.batch is None or source is None:
        return OptionError.refused(
            option,
            f"needs tables that follow a database, but the batches below '{url}' have no position",
            hint=f"use {setting('asOfBatch', '17')}; 'upsertflow follow' records positions.",
        )
    if group.is_joining:
        return OptionError.refused(
            option,
            f"needs a whole batch, but below '{url}' there is none yet: the tables were copied at "
            "different times",
            hint="read again when 'upsertflow follow' reports a batch that is not joining.",
        )
    if not is_found:
        return OptionError.refused(
            option,
            f"needs a commit time, but below '{url}' no batch has one yet: nothing was committed "
            "after the tables were copied",
            hint=f"use {setting('asOfLsn', source.lsn)}.",
        )
    us = source.committed_us
    time = "" if us is None else f", committed at {render_time(us // _US_PER_MS)}"
    return VersionNotFoundError(
        f"the oldest whole batch below '{url}' is later: it is batch {group.batch.number} at "
        f"{source.lsn}{time}. Earlier ones do not exist, or are expired.",
        hint=f"read this batch or a later one; keep more from now on by a longer "
        f"{setting('groupRetention', '30 days')} of the write.",
        batch=group.batch.number,
    )


def owner_of(head: Manifest) -> str | None:
    """Return the root's owner from its group table; None if there is none.

    The owner is the last query to write or claim the root. Log times only increase, so no two
    queries share a last-write time.
    """
    newest = _newest_writer(head, lambda name: is_query(name.removeprefix(_CLAIM)))
    return newest and newest.removeprefix(_CLAIM)


def newest_query(head: Manifest) -> str | None:
    """Return the last query to write a table; None if none did."""
    return _newest_writer(head, is_query)


def _newest_writer(head: Manifest, is_meant: Callable[[str], bool]) -> str | None:
    meant = {name: ms for name, ms in head.written_ms.items() if is_meant(name)}
    return max(meant, key=lambda name: meant[name], default=None)


def incomplete_batches(head: Manifest, group: Manifest) -> dict[str, int]:
    """Return a table's permanently incomplete batch numbers, by query.

    Each is the newest batch from a query losing the root in the middle.
    """
    transactions, owner = group.transactions, owner_of(group)
    return {
        writer: number
        for writer, number in head.transactions.items()
        if writer != owner
        and (writer in transactions or f"{_CLAIM}{writer}" in transactions)
        and is_query(writer)
        and number > transactions.get(writer, -1)
    }


def is_query(writer: str) -> bool:
    """Return whether a writer is a streaming query."""
    return writer.startswith((QUERY, _CHECKPOINT))


def refusal_of(writer: str, head: Manifest, url: str, *, take_over: bool) -> OtherTableError | None:
    """Return an error if a writer must not write below a root, else None."""
    owner = owner_of(head)
    if owner is None or owner == writer:
        return None
    message = (
        f"the tables below '{url}' are written by '{owner}', and now by '{writer or 'a batch'}'"
    )
    if not is_query(writer):
        hint = (
            "stop that query and let another one take over, or write into one of the tables by "
            "its own path."
        )
    elif writer in head.transactions or f"{_CLAIM}{writer}" in head.transactions:
        message += ", from which they were taken over"
        hint = "leave this query stopped; to begin again with it, give it a new checkpointLocation."
    elif not take_over:
        hint = (
            "write below another root, or go on with the checkpoint of that query. To give it up "
            f"for good, stop it and give {setting('takeOver', 'true')}."
        )
    else:
        return None
    return OtherTableError(f"{message}. The batch is not recorded.", hint=hint, path=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionQueue:
    """The compaction queue after a complete batch; immutable."""

    schedule: Schedule
    service: Service
    """Waiting folders in compaction order."""
    due_counts: Mapping[str, int]
    """Due compactions per table, by folder."""
    next_ms: int
    """Minimum waiting time stamp for new entries, since the clock may stall or go back."""
    tasks: int
    """Tasks sharing the queue: the last batch's task count."""

    @classmethod
    def of(cls, group: TableGroup) -> CompactionQueue:
        """Build a group's compaction queue; leaves out tables with dead-letter rows."""
        batch = group.batch
        waiting = group.members.waiting()
        due = {member.folder: member for member in waiting if member.debt and not member.parked}
        since = sorted((member.debt_since_ms or 0, folder) for folder, member in due.items())
        last_ms = since[-1][0] if since else 0
        now_ms = max(last_ms, batch.committed_ms if batch else 0)
        schedule = Schedule(
            dirty=DirtySet((folder, since_ms) for since_ms, folder in since),
            turn=batch.turn if batch else Turn(),
        )
        urgencies = {folder: Urgency(manual=member.priority) for folder, member in due.items()}
        return cls(
            schedule=schedule,
            service=schedule.plan_service(now_ms, urgencies),
            due_counts={folder: member.debt for folder, member in due.items()},
            next_ms=last_ms + 1,
            tasks=max(1, batch.tasks if batch else 1),
        )

    @property
    def shares(self) -> tuple[Sequence[str], ...]:
        """Each task's folders, dealt round robin."""
        names = self.service.names
        return tuple(names[index :: self.tasks] for index in range(min(self.tasks, len(names))))

    def after(
        self, visited: Collection[str], due_counts: Mapping[str, int], now_ms: int
    ) -> Schedule:
        """Return the queue after a batch."""
        visited, now_ms = frozenset(visited), max(now_ms, self.next_ms)
        names = self.service.names
        count = next((at for at, name in enumerate(names) if name not in visited), len(names))
        remaining_counts = {**self.due_counts, **due_counts}
        left = [name for name in names if name in visited and remaining_counts[name]]
        paid = [name for name in names if not remaining_counts[name]]
        served = self.schedule.after_service(self.service, count, {*visited, *paid}, left, now_ms)
        return served.with_changed(
            sorted(folder for folder, debt in due_counts.items() if debt), now_ms
        )


UPKEEP_EVERY = 100
"""Group versions between two expiry runs, with about ten requests each."""


def is_expiry_due(before: int, newest: int) -> bool:
    """Return whether an expiry run is due, from the group versions before a batch and now."""
    return newest // UPKEEP_EVERY > max(before, 0) // UPKEEP_EVERY


def expire_old_versions(tables: Iterable[Table], retention_ms: int) -> None:
    """Expire and vacuum versions older than the retention time; errors are only logged."""
    for table in tables:
        try:
            if table.log.try_head() is not None:
                _expire_table(table, retention_ms)
        except UpsertFlowError as error:
            fields = Fields(path=table.store.url, code=error.code, reason=error.message)
            _LOGGER.warning("a table keeps its past: %s", fields)


def _expire_table(table: Table, retention_ms: int) -> None:
    head = table.log.head()
    if not head.live_rows and len(head.slices) > 1:
        # All dead-letter rows are applied: too few versions follow for a compaction to be due.
        table.compact(full=True)
    table.expire(retain_ms=retention_ms)
    table.vacuum()
