"""The commit of a routed batch (`commit_routed`): each table as its own version, then the group.

Tables are not one transaction; the group table is updated when all have the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_upsert.errors import OptionError, SchemaError, UpsertFlowError, nearest
from spark_upsert.options.declare import TABLE_PREFIX
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.dead_letter import NAMELESS, DeadLetterTable, as_dead_letter_error
from spark_upsert.routed.fence import (
    Fence,
    RoutedCommitResult,
    TableOutcome,
    Tables,
    TableShare,
    group_by_table,
    names_by_folder,
    require_distinct_tables,
)
from spark_upsert.routed.group import (
    SCHEMA,
    Batch,
    CompactionQueue,
    GroupTable,
    Member,
    SourcePosition,
    TableGroup,
    expire_old_versions,
    is_expiry_due,
)
from spark_upsert.routed.park_staged import DeadLetterWriter
from spark_upsert.routed.plan import require_room, require_template, table_below
from spark_upsert.routed.stage import RoutedStaged, discard_staged
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest, TableVersion, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import require_no_gap
from spark_upsert.table.write.write_set import remove_runs

_LOGGER = logging.getLogger(__name__)


_OF_THE_TABLE = "column"
"""Default column role: not named by an option."""


def find_write_error(
    shares: Mapping[str, TableShare], options: RoutedOptions, group: TableGroup, terms: str
) -> UpsertFlowError | None:
    """Return the error stopping the write; None if failing rows may become dead letters.

    Applies until a table has accepted rows under the current `RoutedPlan.terms`: if no table in the
    batch accepts rows and an option shared by all tables is wrong, the batch fails.
    """
    with_rows = {f: share for f, share in shares.items() if share.parts and f != NAMELESS}
    is_proven = group.batch is not None and group.batch.terms == terms
    if is_proven or not all(share.has_dead_letters for share in with_rows.values()):
        return None
    named = (
        (share.route.name, error)
        for share in with_rows.values()
        for error in _iter_staging_errors(share)
    )
    option_errors = {
        name: error
        for name, error in named
        if is_caused_by_option(error) and not options.tells(name)
    }
    return _explain_option_errors(option_errors) if option_errors else None


def is_caused_by_option(error: UpsertFlowError) -> bool:
    """Return whether a table failed because of an option value or a column named by an option."""
    if isinstance(error, SchemaError):
        return error.fields.get("role", _OF_THE_TABLE) != _OF_THE_TABLE
    return isinstance(error, OptionError)


def _iter_staging_errors(share: TableShare) -> Iterator[UpsertFlowError]:
    """Yield each task's first error while staging the rows for a table."""
    for part in share.parts:
        if part.dead_letter is not None and part.dead_letter.error is not None:
            yield part.dead_letter.error


def _explain_option_errors(option_errors: Mapping[str, UpsertFlowError]) -> UpsertFlowError:
    name, error = next(iter(option_errors.items()))
    alike = (
        f", and {len(option_errors)} tables fail by their options" if len(option_errors) > 1 else ""
    )
    error.add_subject("table", name)
    error.advise(
        f"Nothing is parked: no table has taken rows by these options and columns yet{alike}. If "
        f"they are right for others, give '{TABLE_PREFIX}{name}.<option>' with what is right for "
        "this one: a table that is told something by its name is parked."
    )
    return error


def build_group_rows(
    root: Store,
    options: RoutedOptions,
    group: TableGroup,
    result: RoutedCommitResult,
    transaction: Transaction | None,
    now_ms: int,
    source: SourcePosition | None = None,
) -> tuple[Batch, list[Member]]:
    """Return the batch's row for the group table and the changed members."""
    queue = CompactionQueue.of(group).after(result.visited, result.due_counts, now_ms)
    counts = _count_dead_letters(root, group, result)
    members = {
        folder: member
        for folder, outcome in result.outcomes.items()
        if (member := _updated_member(group, result.shares[folder], outcome, transaction, now_ms))
    }
    members = _complete_members(group, members, dict(queue.dirty.items()), counts)
    named = {
        *names_by_folder(result.shares).values(),
        *(group.members.names if options.table_options else ()),
    }
    batch = Batch(
        template=options.template.relative,
        writer="" if transaction is None else transaction.writer,
        number=None if transaction is None else transaction.number,
        rows=result.rows,
        parked=sum(counts.values()),
        tasks=result.tasks,
        unmatched=options.unmatched(named),
        turn=queue.turn,
        committed_ms=now_ms,
        terms=result.terms if result.is_taken else _terms(group),
        source=source,
    )
    _warn_of_unmatched(group, batch.unmatched, named, root.url)
    return batch, [members[folder] for folder in sorted(members)]


def _terms(group: TableGroup) -> str | None:
    return None if group.batch is None else group.batch.terms


def _count_dead_letters(
    root: Store, group: TableGroup, result: RoutedCommitResult
) -> Mapping[str, int]:
    """Return dead-letter row counts by folder; reads nothing if there were none before or now."""
    had_any = group.batch is not None and group.batch.parked
    return DeadLetterTable(root).counts() if had_any or result.dead_letter_folders else {}


def _complete_members(
    group: TableGroup,
    changed: Mapping[str, Member],
    since_ms: Mapping[str, int],
    counts: Mapping[str, int],
) -> dict[str, Member]:
    """Complete changed members with waiting time and dead-letter count; add other changed members.

    Other tables are included only if either value differs from the group.
    """

    def completed(member: Member) -> Member:
        since = since_ms.get(member.folder, member.debt_since_ms) if member.debt else None
        return replace(member, debt_since_ms=since, parked=counts.get(member.folder, 0))

    # Of the others nothing has changed: they wait for nothing, and had no parked rows.
    others = {member.folder: member for member in group.members.waiting()}
    others |= {f: group.members[f] for f in (*since_ms, *counts) if f in group.members}
    members = {folder: completed(member) for folder, member in {**others, **changed}.items()}
    return {
        folder: member
        for folder, member in members.items()
        if folder in changed or member != group.members[folder]
    }


def _updated_member(
    group: TableGroup,
    share: TableShare,
    outcome: TableOutcome,
    transaction: Transaction | None,
    now_ms: int,
) -> Member | None:
    """Return a table's updated member; None if only compacted and not in the group."""
    before = group.members.get(share.folder)
    if not share.parts:
        return before and replace(
            before,
            place=outcome.place or before.place,
            debt=outcome.debt,
            priority=outcome.priority,
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
        priority=outcome.priority,
        committed_ms=now_ms,
    )


def _warn_of_unmatched(
    group: TableGroup, unmatched: Iterable[str], names: Collection[str], url: str
) -> None:
    """Log a warning for new option patterns matching no table."""
    known_patterns = group.batch.unmatched if group.batch else ()
    for pattern in unmatched:
        if pattern not in known_patterns:
            near = nearest(pattern, [name.lower() for name in names])
            meant = f"; did you mean 'table.{near}.*'?" if near else ""
            text = "options 'table.%s.*' match no table below '%s'%s"
            _LOGGER.warning(text, pattern, url, meant)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A complete batch: committed to all its tables."""

    version: int
    """Version in the group table."""
    places: Mapping[str, TableVersion]
    """Version containing the batch, by folder, for each table with rows in it."""


def commit_routed(
    root: Store,
    options: RoutedOptions,
    staged: Sequence[RoutedStaged],
    transaction: Transaction | None,
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    source: SourcePosition | None = None,
) -> GroupCommit | None:
    """Commit staged results to each table exactly once, then record the batch as complete.

    Returns None if the group table already has the batch.
    """
    group_table = GroupTable(root)
    if group_table.has(transaction):
        discard_routed(root, staged)
        return None
    group = _require_allowed(group_table, options, transaction)
    fence = Fence(group_table, _writer(transaction))
    shares = group_by_table(staged)
    require_room(options, root, group.members, names_by_folder(shares))
    terms = next((routed_task.terms for routed_task in staged), "")
    write_error = find_write_error(shares, options, group, terms) if options.park else None
    if write_error is not None:
        discard_routed(root, staged)
        raise write_error
    planned = max((routed_task.group_version for routed_task in staged), default=group.version)
    result = RoutedCommitResult(
        shares=shares,
        outcomes=_commit_or_dead_letter(
            shares,
            Tables(root, options, group, fence, transaction, overwrite, late_rows),
            DeadLetterWriter(root, options, transaction, planned),
            fence,
            allows_dead_letters=options.park and not overwrite,
        ),
        visited=frozenset(folder for task in staged for folder in task.visited),
        tasks=len(staged),
        terms=terms,
    )
    require_distinct_tables(group, result)
    now_ms = group_table.table.log.now_ms()
    batch, members = build_group_rows(root, options, group, result, transaction, now_ms, source)
    committed = group_table.append(batch, members, transaction, take_over=options.take_over)
    if committed is None:
        return None
    newest = group_table.table.log.cached_head or committed
    if is_expiry_due(group.version, newest.version):
        expire_old_versions(
            (group_table.table, DeadLetterTable(root).table), options.group_retention_ms
        )
    return GroupCommit(version=committed.version, places=result.places)


def discard_routed(root: Store, staged: Iterable[RoutedStaged]) -> None:
    """Remove staged files and compacted runs for which no commit was tried."""
    for task in staged:
        discard_staged(root, task.tables)
        for folder, compaction in task.compacted:
            remove_runs(
                table_below(root, folder).store, (slice_.file for slice_ in compaction.added)
            )


def _writer(transaction: Transaction | None) -> str:
    return "" if transaction is None else transaction.writer


def _require_allowed(
    group_table: GroupTable, options: RoutedOptions, transaction: Transaction | None
) -> TableGroup:
    """Return the current group; raise before any table is written if the batch is not allowed."""
    # Mostly it was read just now; the put recording the batch checks again.
    log, writer = group_table.table.log, _writer(transaction)
    head, group = log.cached_head or log.try_head(), TableGroup()
    if head is not None:
        group_table.require_owner(writer, take_over=options.take_over, head=head)
    _require_no_gap(group_table.table, head, transaction)
    if head is not None:
        group_table.claim(writer, head)
        group = group_table.at_snapshot(log.cached_snapshot())
    require_template(group, options.template.relative, group_table.root.url)
    return group


def _commit_or_dead_letter(
    shares: Mapping[str, TableShare],
    tables: Tables,
    dead_letters: DeadLetterWriter,
    fence: Fence,
    *,
    allows_dead_letters: bool,
) -> dict[str, TableOutcome]:
    """Commit each table's rows or turn them into dead letters; return successful outcomes."""
    failed = {folder: share.parts for folder, share in shares.items() if share.has_dead_letters}
    if failed:
        fence.check_owner()
        fence.require()
        dead_letters.write(failed)
    outcomes = tables.commit_all({f: share for f, share in shares.items() if f not in failed})
    fence.require()
    errors = _collect_dead_letter_errors(outcomes, allows_dead_letters=allows_dead_letters)
    # A table visited only for compaction has no rows for the dead-letter table.
    dead_letters.write({f: shares[f].parts for f in errors if shares[f].parts}, errors)
    return {folder: outcome for folder, outcome in outcomes.items() if folder not in errors}


def _collect_dead_letter_errors(
    outcomes: Mapping[str, TableOutcome], *, allows_dead_letters: bool
) -> dict[str, UpsertFlowError]:
    """Return errors for tables whose rows become dead letters; raise any other error."""
    failed = {}
    for folder, outcome in outcomes.items():
        if outcome.error is None:
            continue
        dead_letter_error = as_dead_letter_error(outcome.error) if allows_dead_letters else None
        if dead_letter_error is None:
            raise outcome.error
        failed[folder] = dead_letter_error
    return failed


def _require_no_gap(table: Table, head: Manifest | None, transaction: Transaction | None) -> None:
    """Raise, before any table is written, if earlier batches are missing."""
    if transaction is not None:
        require_no_gap(transaction, head or Table.unborn(SCHEMA), table.store.url)
