"""The compaction queue of a routed write (`Debts`), and the retention of its own tables.

The order is a pure function of the group's newest complete batch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_upsert.core.durations import Fields
from spark_upsert.errors import UpsertFlowError
from spark_upsert.routed.group import TableGroup
from spark_upsert.scheduler.scheduler import DirtySet, Schedule, Service, Turn, Urgency
from spark_upsert.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Debts:
    """The queue as a whole batch left it; a value."""

    schedule: Schedule
    service: Service
    """Folders of all waiting tables, in the order in which they are to be compacted."""
    owed: Mapping[str, int]
    """The number of compactions that each table is due for."""
    next_ms: int
    """The earliest time at which a table may begin to wait anew: a clock may stand or go back."""
    tasks: int
    """The number of tasks that the order is dealt out to: as many as the last batch had."""

    @classmethod
    def of(cls, group: TableGroup) -> Debts:
        """Return the queue of a group; tables with parked rows are left out."""
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
            service=schedule.service(now_ms, urgencies),
            owed={folder: member.debt for folder, member in due.items()},
            next_ms=last_ms + 1,
            tasks=max(1, batch.tasks if batch else 1),
        )

    @property
    def shares(self) -> tuple[Sequence[str], ...]:
        """The order dealt out to the tasks in turn (round robin): the folders of each task."""
        names = self.service.names
        return tuple(names[index :: self.tasks] for index in range(min(self.tasks, len(names))))

    def after(self, visited: Collection[str], owed: Mapping[str, int], now_ms: int) -> Schedule:
        """Return the waiting tables and the turn after a batch."""
        visited, now_ms = frozenset(visited), max(now_ms, self.next_ms)
        names = self.service.names
        count = next((at for at, name in enumerate(names) if name not in visited), len(names))
        now_owed = {**self.owed, **owed}
        left = [name for name in names if name in visited and now_owed[name]]
        paid = [name for name in names if not now_owed[name]]
        served = self.schedule.served(self.service, count, {*visited, *paid}, left, now_ms)
        return served.marked(sorted(folder for folder, debt in owed.items() if debt), now_ms)


_LOGGER = logging.getLogger(__name__)

UPKEEP_EVERY = 100
"""Versions of the group between two times, at some ten requests each."""


def is_due(before: int, newest: int) -> bool:
    """Return whether the past is to be given up, by the group's versions before a batch and now."""
    return newest // UPKEEP_EVERY > max(before, 0) // UPKEEP_EVERY


def give_up(tables: Iterable[Table], retention_ms: int) -> None:
    """Give up what is older; the batch is whole whatever becomes of that."""
    for table in tables:
        try:
            if table.log.try_head() is not None:
                _give_up(table, retention_ms)
        except UpsertFlowError as error:
            fields = Fields(path=table.store.url, code=error.code, reason=error.message)
            _LOGGER.warning("a table keeps its past: %s", fields)


def _give_up(table: Table, retention_ms: int) -> None:
    head = table.log.head()
    if not head.live_rows and len(head.slices) > 1:
        # All that was parked is applied: too few versions follow for a compaction to be due.
        table.compact(full=True)
    table.expire(retain_ms=retention_ms)
    table.vacuum()
