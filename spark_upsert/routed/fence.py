"""The fence of a routed write (`Fence`): after losing the root, a query cannot continue writing.

Also the commit of a batch's tables, each alone (`Tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from spark_upsert.core.threads import map_in_order
from spark_upsert.envelopes.write_plan import default_late_rows
from spark_upsert.errors import (
    BatchTooLargeError,
    ContentionError,
    OtherTableError,
    TableFullError,
    about,
)
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.dead_letter import NAMELESS
from spark_upsert.routed.group import GroupTable, TableGroup, newest_query
from spark_upsert.routed.plan import require_same, table_below
from spark_upsert.routed.router import Route
from spark_upsert.routed.stage import RoutedStaged, StagedTable
from spark_upsert.scheduler.scheduler import priority_in
from spark_upsert.store import Store
from spark_upsert.table.compaction import CompactionResult, choose
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest, TableVersion, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import WriteSet

ASK_EVERY = 32
"""Tables written between two ownership checks. A check is two requests; writing 32 tables takes
about 200."""


class Fence:
    """Refuses table commits after another query has taken over the root.

    A query claims the root in the group table before it writes any table. An older query checks the
    group when a table's newest version is from an unknown query, and once per `ASK_EVERY` tables.

    Parameters
    ----------
    group_table : GroupTable
        The group, as read when the batch was allowed.
    writer : str
        The writing query (`Transaction.writer`).
    """

    def __init__(self, group_table: GroupTable, writer: str) -> None:
        self._group_table = group_table
        self._writer = writer
        head = group_table.table.log.cached_head
        self._known = {writer, *(head.transactions if head else ())}
        self.lost: OtherTableError | None = None
        """Error stopping the batch's writes to further tables; None while the root is owned."""
        self._begun = count()

    def begin(self) -> OtherTableError | None:
        """Return an error if the batch must not start another table, else None; thread-safe."""
        begun = next(self._begun)
        if begun and begun % ASK_EVERY == 0:
            self.check_owner()
        return self.lost

    def refusal(self, head: Manifest) -> OtherTableError | None:
        """Return an error if the batch must not commit after a table's head, else None."""
        newest = newest_query(head)
        if self.lost is None and newest is not None and newest not in self._known:
            self.check_owner()
        return self.lost

    def check_owner(self) -> None:
        """Check the group table for the current owner."""
        self.lost = self.lost or self._group_table.refusal(self._writer)

    def require(self) -> None:
        """Raise if another query owns the root."""
        if self.lost is not None:
            raise self.lost


@dataclass(slots=True)
class TableShare:
    """All tasks' results for one table."""

    folder: str
    parts: list[StagedTable] = field(default_factory=list)
    """Results in task order; empty if the table is only compacted."""
    compacted: list[CompactionResult] = field(default_factory=list)

    @property
    def route(self) -> Route:
        return self.parts[0].route

    @property
    def has_dead_letters(self) -> bool:
        """Whether a task could not stage its rows; then the table takes no rows from any task."""
        return any(part.staged_dead_letters is not None for part in self.parts)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """Commit outcome for one table."""

    place: TableVersion | None = None
    """Version containing the batch, or a compacted version with the same rows."""
    debt: int = 0
    priority: int | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedCommitResult:
    """Commit result for all tables in a batch."""

    shares: Mapping[str, TableShare]
    """Each table's share in the batch, by folder."""
    outcomes: Mapping[str, TableOutcome]
    """Outcomes for successful tables; rows for the others became dead letters."""
    visited: frozenset[str]
    """Folders visited for compaction in this batch."""
    tasks: int
    terms: str
    """The batch's `RoutedPlan.terms`."""

    @property
    def is_taken(self) -> bool:
        """Whether any table accepted rows."""
        return any(self.shares[folder].parts for folder in self.outcomes)

    @property
    def dead_letter_folders(self) -> frozenset[str]:
        """Folders with rows turned into dead letters."""
        return frozenset(self.shares) - frozenset(self.outcomes)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.shares.values())

    @property
    def due_counts(self) -> dict[str, int]:
        """Due compactions per table, by folder."""
        return {folder: outcome.debt for folder, outcome in self.outcomes.items()}

    @property
    def places(self) -> dict[str, TableVersion]:
        """Current table versions, by folder."""
        refs = ((folder, outcome.place) for folder, outcome in self.outcomes.items())
        return {folder: table_ref for folder, table_ref in refs if table_ref is not None}


def group_by_table(staged: Sequence[RoutedStaged]) -> dict[str, TableShare]:
    """Group the tasks' results by table, sorted by folder."""
    shares: dict[str, TableShare] = {}
    for task in sorted(staged, key=lambda each: each.task_index):
        for part in task.tables:
            shares.setdefault(part.folder, TableShare(part.folder)).parts.append(part)
        for folder, compacted in task.compacted:
            shares.setdefault(folder, TableShare(folder)).compacted.append(compacted)
    return dict(sorted(shares.items()))


def names_by_folder(shares: Mapping[str, TableShare]) -> dict[str, str]:
    """Return table names by folder, for tables with rows."""
    return {
        folder: share.route.name
        for folder, share in shares.items()
        if share.parts and folder != NAMELESS
    }


class Tables:
    """Commits the tables in one batch, each in its own transaction; thread-safe."""

    def __init__(
        self,
        root: Store,
        options: RoutedOptions,
        group: TableGroup,
        fence: Fence,
        transaction: Transaction | None,
        overwrite: bool,
        late_rows: LateRows,
    ) -> None:
        self._root = root
        self._options = options
        self._fence = fence
        self._places = group.members.places
        # A table has only batches with rows for it.
        self._transaction = transaction and replace(transaction, is_consecutive=False)
        self._overwrite = overwrite
        self._late_rows = late_rows

    def commit_all(self, shares: Mapping[str, TableShare]) -> dict[str, TableOutcome]:
        """Commit all shares on several threads; outcomes contain the errors."""
        threads = self._options.commit_threads
        return dict(zip(shares, map_in_order(self.commit, shares.values(), threads), strict=True))

    def commit(self, share: TableShare) -> TableOutcome:
        """Commit one table's share; an error is returned: other tables are still tried."""
        lost = self._fence.begin()
        if lost is not None:
            return TableOutcome(error=lost)
        try:
            table = table_below(self._root, share.folder)
            table_ref = None
            if share.parts:
                with about("table", share.route.name):
                    table_ref = self._commit_rows(table, share)
            if share.compacted:
                table.commit_compactions(share.compacted)
                table_ref = _newest_compacted(table.log, table_ref or self._places[share.folder])
            manifest = table.log.cached_snapshot().head()
            return TableOutcome(
                place=table_ref,
                debt=len(choose(manifest)),
                priority=priority_in(manifest.properties),
            )
        except Exception as error:  # noqa: BLE001 - raised when all tables were tried
            return TableOutcome(error=error)

    def _commit_rows(self, table: Table, share: TableShare) -> TableVersion:
        """Return the table version with the batch, committed now or earlier."""
        log, known_ref = table.log, self._places.get(share.folder)
        base_refs = [part.staged.base for part in share.parts if part.staged and not part.unborn]
        newest = max(base_refs, key=lambda place: place.version, default=None)
        look = (
            log.snapshot_at(newest, reported=known_ref)
            if newest
            else log.try_refresh(reported=known_ref)
        )
        head = None if look is None else look.head()
        require_same(self._places, share.folder, share.route.name, head, table.store.url)
        staged = tuple(part.staged for part in share.parts if part.staged is not None)
        if head is not None and self._transaction is not None and head.has(self._transaction):
            table.discard(staged)
            return self._find_version(table.log)
        _require_not_created(head, share.parts, table.store.url)
        options = self._options.of(share.route.name, share.folder)
        bases = _base_snapshots(table, share.parts)
        write_set = WriteSet(
            base=bases[min(bases)],
            bases=bases,
            staged=staged,
            transactions=() if self._transaction is None else (self._transaction,),
            overwrite=self._overwrite,
            allow_unordered=options.allow_unordered,
            late_rows=default_late_rows(options, self._late_rows),
        )
        try:
            admission = table.admission(options.full_wait_ms, guard=self._fence.refusal)
            commit = table.commit(write_set, admission=admission)
        except (TableFullError, BatchTooLargeError):
            table.discard(staged)  # It was not tried.
            raise
        if commit is None:
            return self._find_version(table.log)
        table_id = write_set.base.manifest.table_id
        return TableVersion(table_id=table_id, version=commit.version, token=commit.token)

    def _find_version(self, log: Log) -> TableVersion:
        """Return an earlier attempt's version; the head if the log no longer has it."""
        with log.refresh() as look:
            head = look.head()
            for version in range(head.version, head.since - 1, -1):
                commit = look.commit(version)
                if any(self._is_ours(transaction) for transaction in commit.transactions):
                    return TableVersion(table_id=head.table_id, version=version, token=commit.token)
        return head.version_ref

    def _is_ours(self, other: Transaction) -> bool:
        transaction = self._transaction
        return transaction is not None and (other.writer, other.number) == (
            transaction.writer,
            transaction.number,
        )


def _base_snapshots(table: Table, parts: Sequence[StagedTable]) -> dict[int, Snapshot]:
    """Return the snapshots on which the tasks staged, by version; -1 for a new table."""
    unborn = [part.unborn for part in parts if part.unborn is not None]
    if unborn:
        return {-1: Snapshot(table.store, _merge_unborn(unborn))}
    base_refs = {part.staged.base for part in parts if part.staged is not None}
    with table.log.cached_snapshot() as look:  # They are in what was just looked at.
        for base_ref in base_refs:
            look.require(base_ref, "the batch")
        return {
            base_ref.version: Snapshot(table.store, look.at(base_ref.version))
            for base_ref in base_refs
        }


def _newest_compacted(log: Log, place: TableVersion) -> TableVersion:
    """Return the head if only compactions follow the version, else the version."""
    head = log.cached_snapshot().head()
    return head.version_ref if head.changed <= place.version else place


def _require_not_created(head: Manifest | None, parts: Sequence[StagedTable], url: str) -> None:
    """Raise if another writer created the new table in the meantime."""
    unborn = [part.unborn for part in parts if part.unborn is not None]
    if unborn and head is not None and head.table_id != unborn[0].table_id:
        raise ContentionError(
            f"another writer made the table at '{url}' while this one was at work. "
            "Nothing was committed there.",
            hint="write it again; a query that is restarted does.",
        )


def _merge_unborn(unborn: Sequence[Manifest]) -> Manifest:
    """Merge the tasks' schemas for a new table; each task inferred its own."""
    schema = unborn[0].schema
    for second in unborn[1:]:
        schema = schema.accept(second.schema.columns, merge=True, orders=second.schema.order)
    return replace(unborn[0], schema=schema)


def require_distinct_tables(group: TableGroup, settled: RoutedCommitResult) -> None:
    """Raise if the storage maps two table names to one folder, which shows as a shared table ID."""
    refs = group.members.places
    named = names_by_folder(settled.shares)
    owners: dict[str, str] = {}
    for folder, table_ref in settled.places.items():
        other_folder = owners.setdefault(table_ref.table_id, folder)
        if other_folder == folder and folder not in refs:
            other_folder = refs.folder_of(table_ref.table_id) or folder
        if other_folder != folder:
            one, two = named.get(other_folder, other_folder), named.get(folder, folder)
            raise OtherTableError(
                f"the rows of '{one}' and of '{two}' lead to one table: to this storage the two "
                "names are one. The batch is not recorded as whole.",
                hint="let the values differ in more than upper and lower case, or use a storage "
                "that tells them apart.",
                path=folder,
            )
