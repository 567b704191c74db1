"""The commit of a routed batch: all its tables side by side, then the group.

Each table takes the batch as a version of its own, with the transaction of the batch, so that a
replay does only what is missing. Tables are not one transaction: between the first and the last of
them a reader of several may see some with the batch and some without, unless it asks the group,
which is told when all have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_upsert.errors import (
    BatchTooLargeError,
    ContentionError,
    OtherTableError,
    TableFullError,
    UpsertFlowError,
    about_table,
)
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.parallel import in_order
from spark_upsert.routed.group import SCHEMA, Batch, Group, GroupTable, Member
from spark_upsert.routed.park import NAMELESS, ParkedTable, is_parkable
from spark_upsert.routed.park_staged import CommandParking
from spark_upsert.routed.plan import other_table, require_room, require_template, table_below
from spark_upsert.routed.routes import Route
from spark_upsert.routed.stage import RoutedStaged, StagedTable, discard_staged
from spark_upsert.state.compaction import Compacted, choose
from spark_upsert.state.log.log import Log
from spark_upsert.state.log.manifest import Manifest, Place, Transaction
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.state.tombstones import LateRows
from spark_upsert.store import Store
from spark_upsert.table import Table
from spark_upsert.upsert.guards import require_no_gap
from spark_upsert.upsert.plan import usual_late_rows
from spark_upsert.upsert.scratch import remove_runs
from spark_upsert.upsert.write_set import WriteSet

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A batch that is whole."""

    version: int
    """Of the group table."""
    places: Mapping[str, Place]
    """The version of each table that has rows of the batch, by folder."""


@dataclass(slots=True)
class _Share:
    """What the tasks bring for one table."""

    folder: str
    parts: list[StagedTable] = field(default_factory=list)
    """In the order of the tasks; empty where it is only compacted."""
    compacted: list[Compacted] = field(default_factory=list)

    @property
    def route(self) -> Route:
        return self.parts[0].route

    @property
    def is_parked(self) -> bool:
        """Whether a task could not stage its rows: then those of no task go in."""
        return any(part.parked is not None for part in self.parts)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What became of one table."""

    place: Place | None = None
    """The version that has the batch, or a compacted one with the same rows."""
    debt: int = 0
    error: Exception | None = None


def commit_routed(
    root: Store,
    options: RoutedOptions,
    staged: Sequence[RoutedStaged],
    transaction: Transaction | None,
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
) -> GroupCommit | None:
    """Make what all tasks staged visible, each table exactly once, and record that it is whole.

    Parameters
    ----------
    root : Store
    options : RoutedOptions
    staged : sequence of RoutedStaged
    transaction : Transaction or None
        That of the batch.
    overwrite, late_rows
        As in the plan.

    Returns
    -------
    GroupCommit or None
        None if the batch was whole already; what was staged again is removed.

    Raises
    ------
    OtherTableError
        The root belongs to another query, batches are missing, or a table is not the group's.
    UpsertFlowError
        Of the first table that failed, with its name, once all were tried. A replay goes on with
        those that failed.
    """
    group_table = GroupTable(root)
    if group_table.has(transaction):
        discard_routed(root, staged)
        return None
    group = _allowed(group_table, options, transaction)
    shares = _shares(staged)
    named = {
        share.folder: share.route.name
        for share in shares.values()
        if share.parts and share.folder != NAMELESS
    }
    require_room(options, root, group.members, named)
    planned = max((each.group_version for each in staged), default=group.version)
    commands = CommandParking(root, options, transaction, planned)
    parking = {folder: share for folder, share in shares.items() if share.is_parked}
    commands.park({folder: share.parts for folder, share in parking.items()})
    whole = {folder: share for folder, share in shares.items() if folder not in parking}
    tables = _Tables(root, options, group, transaction, overwrite, late_rows)
    outcomes = dict(
        zip(whole, in_order(tables.commit, whole.values(), options.commit_threads), strict=True)
    )
    failed = _parkable(outcomes, parks=options.park and not overwrite)
    # One that was only to be compacted has no rows to be parked.
    commands.park({f: whole[f].parts for f in failed if whole[f].parts}, failed)
    outcomes = {folder: each for folder, each in outcomes.items() if folder not in failed}
    _require_apart(group, named, outcomes)
    now_ms = group_table.table.log.now_ms()
    members = [
        member
        for folder, outcome in outcomes.items()
        if (member := _member(group, whole[folder], outcome, transaction, now_ms)) is not None
    ]
    has_parked = bool(parking or failed or (group.batch and group.batch.parked))
    counts = ParkedTable(root).counts() if has_parked else {}
    members = _with_parked(group, members, counts)
    batch = Batch(
        template=options.template.relative,
        writer=_writer(transaction),
        number=None if transaction is None else transaction.number,
        rows=sum(share.rows for share in shares.values()),
        parked=sum(counts.values()),
        tasks=len(staged),
        unmatched=options.unmatched({*named.values(), *_names(group)}),
        committed_ms=now_ms,
    )
    _warn_of_unmatched(group, batch, root.url)
    committed = group_table.append(batch, members, transaction, take_over=options.take_over)
    if committed is None:
        return None
    places = {folder: each.place for folder, each in outcomes.items() if each.place is not None}
    return GroupCommit(version=committed.version, places=places)


def discard_routed(root: Store, staged: Iterable[RoutedStaged]) -> None:
    """Remove what tasks staged, of which no commit was tried."""
    for task in staged:
        discard_staged(root, task.tables)
        for folder, each in task.compacted:
            remove_runs(table_below(root, folder).store, (slice_.file for slice_ in each.added))


def _writer(transaction: Transaction | None) -> str:
    return "" if transaction is None else transaction.writer


def _allowed(
    group_table: GroupTable, options: RoutedOptions, transaction: Transaction | None
) -> Group:
    """Return the group, to which the batch may come; raise before any table has it if not."""
    group_table.require_owner(_writer(transaction), take_over=options.take_over)
    _require_no_gap(group_table, transaction)
    group = group_table.at()
    require_template(group, options.template.relative, group_table.root.url)
    return group


def _parkable(outcomes: Mapping[str, _Outcome], *, parks: bool) -> dict[str, UpsertFlowError]:
    """Return the errors of tables whose rows are to be parked; raise the first other one."""
    failed = {}
    for folder, outcome in outcomes.items():
        if outcome.error is None:
            continue
        if not (parks and is_parkable(outcome.error)):
            raise outcome.error
        failed[folder] = outcome.error
    return failed


def _names(group: Group) -> Iterator[str]:
    return (member.name for member in group.members.values())


def _warn_of_unmatched(group: Group, batch: Batch, url: str) -> None:
    """Warn of patterns of options that match no table, when they are new."""
    known = group.batch.unmatched if group.batch else ()
    for pattern in batch.unmatched:
        if pattern not in known:
            _LOGGER.warning("options 'table.%s.*' match no table below '%s'", pattern, url)


def _require_no_gap(group_table: GroupTable, transaction: Transaction | None) -> None:
    """Refuse a batch whose earlier ones are missing before any table has it."""
    table = group_table.table
    head = table.log.try_head() or Table.unborn(SCHEMA)
    if transaction is not None:
        require_no_gap(transaction, head, table.store.url)


def _shares(staged: Sequence[RoutedStaged]) -> dict[str, _Share]:
    """Return what the tasks bring by table, in the order of the folders."""
    shares: dict[str, _Share] = {}
    for task in sorted(staged, key=lambda each: each.task_index):
        for part in task.tables:
            shares.setdefault(part.folder, _Share(part.folder)).parts.append(part)
        for folder, compacted in task.compacted:
            shares.setdefault(folder, _Share(folder)).compacted.append(compacted)
    return dict(sorted(shares.items()))


class _Tables:
    """Commits the tables of one batch, each by itself, on any thread."""

    def __init__(
        self,
        root: Store,
        options: RoutedOptions,
        group: Group,
        transaction: Transaction | None,
        overwrite: bool,
        late_rows: LateRows,
    ) -> None:
        self._root = root
        self._options = options
        self._places = {folder: member.place for folder, member in group.members.items()}
        # A table has only the batches that have rows for it.
        self._transaction = transaction and replace(transaction, is_consecutive=False)
        self._overwrite = overwrite
        self._late_rows = late_rows

    def commit(self, share: _Share) -> _Outcome:
        """Commit what tasks bring for a table; errors are returned, so that all are tried."""
        try:
            table = table_below(self._root, share.folder)
            place = None
            if share.parts:
                with about_table(share.route.name):
                    place = self._commit_rows(table, share)
            if share.compacted:
                table.commit_compactions(share.compacted)
                place = _same_behind(table.log, place or self._places[share.folder])
            seen = table.log.seen or table.log.head()
            return _Outcome(place=place, debt=len(choose(seen)))
        except Exception as error:  # noqa: BLE001 - raised when all tables were tried
            return _Outcome(error=error)

    def _commit_rows(self, table: Table, share: _Share) -> Place:
        """Return the version of a table that has the batch, made by this commit or before."""
        known = self._places.get(share.folder)
        if known is not None:
            table.log.trust_durable(known.version)
        head = table.log.try_head()
        refusal = other_table(self._places, share.folder, share.route.name, head, table.store.url)
        if refusal is not None:
            raise refusal
        staged = tuple(part.staged for part in share.parts if part.staged is not None)
        if head is not None and self._transaction is not None and head.has(self._transaction):
            table.discard(staged)
            return self._place(table.log)
        _require_unmade(head, share.parts, table.store.url)
        options = self._options.of(share.route.name, share.folder)
        bases = _bases(table, share.parts)
        write_set = WriteSet(
            base=bases[min(bases)],
            bases=bases,
            staged=staged,
            transactions=() if self._transaction is None else (self._transaction,),
            overwrite=self._overwrite,
            allow_unordered=options.allow_unordered,
            late_rows=usual_late_rows(options, self._late_rows),
        )
        try:
            commit = table.commit(write_set, admission=table.admission(options.full_wait_ms))
        except (TableFullError, BatchTooLargeError):
            table.discard(staged)  # It was not tried.
            raise
        if commit is None:
            return self._place(table.log)
        table_id = write_set.base.manifest.table_id
        return Place(table_id=table_id, version=commit.version, token=commit.token)

    def _place(self, log: Log) -> Place:
        """Return the version of a table that has the batch since an earlier attempt."""
        head = log.head()
        with log.as_seen():
            for version in range(head.version, head.since - 1, -1):
                commit = log.commit(version)
                if any(self._is_ours(each) for each in commit.transactions):
                    return Place(table_id=head.table_id, version=version, token=commit.token)
        return head.place

    def _is_ours(self, other: Transaction) -> bool:
        own = self._transaction
        return own is not None and (other.writer, other.number) == (own.writer, own.number)


def _bases(table: Table, parts: Sequence[StagedTable]) -> dict[int, Snapshot]:
    """Return the versions upon which the tasks staged."""
    unborn = [part.unborn for part in parts if part.unborn is not None]
    if unborn:
        return {-1: Snapshot(table.store, _merged(unborn))}
    places = {part.staged.base for part in parts if part.staged is not None}
    with table.log.as_seen():  # They are in what was just looked at.
        for place in places:
            table.log.require(place, "the batch")
        return {each.version: Snapshot(table.store, table.log.at(each.version)) for each in places}


def _same_behind(log: Log, place: Place) -> Place:
    """Return the newest version that has the rows of another one: compacted, and not expired."""
    head = log.seen or log.head()
    with log.as_seen():
        if any(commit.is_epoch for commit in log.commits(place.version + 1, head.upper)):
            return place
    return head.place


def _require_unmade(head: Manifest | None, parts: Sequence[StagedTable], url: str) -> None:
    """Refuse rows for a table that was to be made, and that somebody else has made meanwhile."""
    unborn = [part.unborn for part in parts if part.unborn is not None]
    if unborn and head is not None and head.table_id != unborn[0].table_id:
        raise ContentionError(
            f"another writer made the table at '{url}' while this one was at work. "
            "Nothing was committed there.",
            hint="write it again; a query that is restarted does.",
        )


def _merged(unborn: Sequence[Manifest]) -> Manifest:
    """Return one table of what the tasks saw of it, each from its own rows: all columns."""
    schema = unborn[0].schema
    for other in unborn[1:]:
        schema = schema.accept(other.schema.columns, merge=True)
    return replace(unborn[0], schema=schema)


def _require_apart(
    group: Group, named: Mapping[str, str], outcomes: Mapping[str, _Outcome]
) -> None:
    """Refuse names that are one to the storage: then two of them have the same table.

    Raises
    ------
    OtherTableError
        The batch is not recorded.
    """
    places = {folder: member.place for folder, member in group.members.items()}
    places |= {folder: each.place for folder, each in outcomes.items() if each.place is not None}
    owners: dict[str, str] = {}
    for folder, place in places.items():
        other = owners.setdefault(place.table_id, folder)
        if other != folder:
            one, two = named.get(other, other), named.get(folder, folder)
            raise OtherTableError(
                f"the rows of '{one}' and of '{two}' lead to one table: to this storage the two "
                "names are one. The batch is not recorded as whole.",
                hint="let the values differ in more than upper and lower case, or use a storage "
                "that tells them apart.",
                path=folder,
            )


def _with_parked(
    group: Group, members: Sequence[Member], counts: Mapping[str, int]
) -> list[Member]:
    """Return what the group is to say of tables, with how many of their rows are parked."""
    told = {member.folder: member for member in members}
    for folder, before in group.members.items():
        if folder not in told and before.parked != counts.get(folder, 0):
            told[folder] = before
    return [
        replace(member, parked=counts.get(folder, 0)) for folder, member in sorted(told.items())
    ]


def _member(
    group: Group,
    share: _Share,
    outcome: _Outcome,
    transaction: Transaction | None,
    now_ms: int,
) -> Member | None:
    """Return what the group is to say of a table; None if it knows nothing of it."""
    before = group.members.get(share.folder)
    since_ms = None
    if outcome.debt:
        since_ms = before.debt_since_ms if before and before.debt_since_ms else now_ms
    if not share.parts:
        return before and replace(
            before,
            place=outcome.place or before.place,
            debt=outcome.debt,
            debt_since_ms=since_ms,
        )
    assert outcome.place is not None
    return Member(
        folder=share.folder,
        name=share.route.name,
        values=tuple(value or "" for value in share.route.values),
        place=outcome.place,
        writer="" if transaction is None else transaction.writer,
        batch=None if transaction is None else transaction.number,
        rows=share.rows,
        tasks=len(share.parts),
        debt=outcome.debt,
        debt_since_ms=since_ms,
        committed_ms=now_ms,
    )
