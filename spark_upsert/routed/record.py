"""What the group is to say of a batch that all its tables have: its row, and those of tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_upsert.errors import nearest
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.debts import Debts
from spark_upsert.routed.group import Batch, TableGroup
from spark_upsert.routed.members import Member
from spark_upsert.routed.park import ParkedTable
from spark_upsert.routed.tables import Settled, TableOutcome, TableShare, names_of
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction

_LOGGER = logging.getLogger(__name__)


def recorded(
    root: Store,
    options: RoutedOptions,
    group: TableGroup,
    settled: Settled,
    transaction: Transaction | None,
    now_ms: int,
) -> tuple[Batch, list[Member]]:
    """Return a batch, and the tables of which it has changed what the group says.

    Parameters
    ----------
    root : Store
        That rows may be parked below.
    options : RoutedOptions
    group : Group
        As the batch before left it.
    settled : Settled
    transaction : Transaction or None
        That of the batch.
    now_ms : int
    """
    queue = Debts.of(group).after(settled.visited, settled.owed, now_ms)
    counts = _parked(root, group, settled)
    told = {
        folder: member
        for folder, outcome in settled.outcomes.items()
        if (member := _member(group, settled.shares[folder], outcome, transaction, now_ms))
    }
    told = _with_others(group, told, dict(queue.dirty.items()), counts)
    named = {*names_of(settled.shares).values(), *(group.members.names if options.told else ())}
    batch = Batch(
        template=options.template.relative,
        writer="" if transaction is None else transaction.writer,
        number=None if transaction is None else transaction.number,
        rows=settled.rows,
        parked=sum(counts.values()),
        tasks=settled.tasks,
        unmatched=options.unmatched(named),
        turn=queue.turn,
        committed_ms=now_ms,
        terms=settled.terms if settled.is_taken else _terms(group),
    )
    _warn_of_unmatched(group, batch.unmatched, named, root.url)
    return batch, [told[folder] for folder in sorted(told)]


def _terms(group: TableGroup) -> str | None:
    return None if group.batch is None else group.batch.terms


def _parked(root: Store, group: TableGroup, settled: Settled) -> Mapping[str, int]:
    """Return how many rows are parked, by folder; nothing is read if none are and none were."""
    had_any = group.batch is not None and group.batch.parked
    return ParkedTable(root).counts() if had_any or settled.parked else {}


def _with_others(
    group: TableGroup,
    told: Mapping[str, Member],
    since_ms: Mapping[str, int],
    counts: Mapping[str, int],
) -> dict[str, Member]:
    """Return what is told with since when each waits for compaction, and how much is parked.

    Of tables of which nothing else is told only what has changed of that is.
    """

    def completed(member: Member) -> Member:
        since = since_ms.get(member.folder, member.debt_since_ms) if member.debt else None
        return replace(member, debt_since_ms=since, parked=counts.get(member.folder, 0))

    # Of the others nothing has changed: they wait for nothing, and had no parked rows.
    others = {each.folder: each for each in group.members.waiting()}
    others |= {f: group.members[f] for f in (*since_ms, *counts) if f in group.members}
    found = {folder: completed(member) for folder, member in {**others, **told}.items()}
    return {
        folder: member
        for folder, member in found.items()
        if folder in told or member != group.members[folder]
    }


def _member(
    group: TableGroup,
    share: TableShare,
    outcome: TableOutcome,
    transaction: Transaction | None,
    now_ms: int,
) -> Member | None:
    """Return what the group is to say of a table; None if it knows nothing of it."""
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
    """Warn of patterns of options that match no table, when they are new."""
    known = group.batch.unmatched if group.batch else ()
    for pattern in unmatched:
        if pattern not in known:
            near = nearest(pattern, [name.lower() for name in names])
            meant = f"; did you mean 'table.{near}.*'?" if near else ""
            text = "options 'table.%s.*' match no table below '%s'%s"
            _LOGGER.warning(text, pattern, url, meant)
