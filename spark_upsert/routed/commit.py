"""The commit of a routed batch: all its tables side by side, then the group.

Each table takes the batch as a version of its own, with the transaction of the batch, so that a
replay does only what is missing. Tables are not one transaction: between the first and the last of
them a reader of several may see some with the batch and some without, unless it asks the group,
which is told when all have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.fence import Fence
from spark_upsert.routed.group import SCHEMA, GroupTable, TableGroup
from spark_upsert.routed.misfit import fault_of_write
from spark_upsert.routed.park import ParkedTable, as_parkable
from spark_upsert.routed.park_staged import CommandParking
from spark_upsert.routed.past import give_up, is_due
from spark_upsert.routed.plan import require_room, require_template, table_below
from spark_upsert.routed.record import recorded
from spark_upsert.routed.stage import RoutedStaged, discard_staged
from spark_upsert.routed.tables import (
    Settled,
    TableOutcome,
    Tables,
    TableShare,
    names_of,
    require_apart,
    shares_of,
)
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest, TableVersion, Transaction
from spark_upsert.table.log.tombstones import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import require_no_gap
from spark_upsert.table.write.scratch import remove_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommit:
    """A batch that is whole."""

    version: int
    """The version of the group table."""
    places: Mapping[str, TableVersion]
    """The version of each table that has rows of the batch, by folder."""


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
    OptionError, SchemaError
        No table takes its rows, and what is wrong is said of all (`routed.misfit`).
    UpsertFlowError
        Of the first table that failed, with its name, once all were tried. A replay goes on with
        those that failed.
    """
    group_table = GroupTable(root)
    if group_table.has(transaction):
        discard_routed(root, staged)
        return None
    group = _allowed(group_table, options, transaction)
    fence = Fence(group_table, _writer(transaction))
    shares = shares_of(staged)
    require_room(options, root, group.members, names_of(shares))
    terms = next((each.terms for each in staged), "")
    fault = fault_of_write(shares, options, group, terms) if options.park else None
    if fault is not None:
        discard_routed(root, staged)
        raise fault
    planned = max((each.group_version for each in staged), default=group.version)
    settled = Settled(
        shares=shares,
        outcomes=_committed_or_parked(
            shares,
            Tables(root, options, group, fence, transaction, overwrite, late_rows),
            CommandParking(root, options, transaction, planned),
            fence,
            parks=options.park and not overwrite,
        ),
        visited=frozenset(folder for task in staged for folder in task.visited),
        tasks=len(staged),
        terms=terms,
    )
    require_apart(group, settled)
    now_ms = group_table.table.log.now_ms()
    batch, members = recorded(root, options, group, settled, transaction, now_ms)
    committed = group_table.append(batch, members, transaction, take_over=options.take_over)
    if committed is None:
        return None
    newest = group_table.table.log.seen or committed
    if is_due(group.version, newest.version):
        give_up((group_table.table, ParkedTable(root).table), options.group_retention_ms)
    return GroupCommit(version=committed.version, places=settled.places)


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
) -> TableGroup:
    """Return the group, to which the batch may come; raise before any table has it if not."""
    # Mostly it was looked at just now; the put that records the batch asks again.
    log, writer = group_table.table.log, _writer(transaction)
    head, group = log.seen or log.try_head(), TableGroup()
    if head is not None:
        group_table.require_owner(writer, take_over=options.take_over, head=head)
    _require_no_gap(group_table.table, head, transaction)
    if head is not None:
        group_table.claim(writer, head)
        group = group_table.seen_by(log.last_look())
    require_template(group, options.template.relative, group_table.root.url)
    return group


def _committed_or_parked(
    shares: Mapping[str, TableShare],
    tables: Tables,
    parking: CommandParking,
    fence: Fence,
    *,
    parks: bool,
) -> dict[str, TableOutcome]:
    """Give each table its rows, or park them; return what became of those that have them."""
    failed = {folder: share.parts for folder, share in shares.items() if share.is_parked}
    if failed:
        fence.look()
        fence.require()
        parking.park(failed)
    outcomes = tables.commit_all({f: share for f, share in shares.items() if f not in failed})
    fence.require()
    errors = _parkable(outcomes, parks=parks)
    # One that was only to be compacted has no rows to be parked.
    parking.park({f: shares[f].parts for f in errors if shares[f].parts}, errors)
    return {folder: outcome for folder, outcome in outcomes.items() if folder not in errors}


def _parkable(outcomes: Mapping[str, TableOutcome], *, parks: bool) -> dict[str, UpsertFlowError]:
    """Return the errors of tables that are to have their rows parked; raise any other error."""
    failed = {}
    for folder, outcome in outcomes.items():
        if outcome.error is None:
            continue
        parkable = as_parkable(outcome.error) if parks else None
        if parkable is None:
            raise outcome.error
        failed[folder] = parkable
    return failed


def _require_no_gap(table: Table, head: Manifest | None, transaction: Transaction | None) -> None:
    """Refuse a batch while earlier ones are missing, before any table has it."""
    if transaction is not None:
        require_no_gap(transaction, head or Table.unborn(SCHEMA), table.store.url)
