"""The compactions that tables are due for: one queue of all of them, served by the scheduler.

Who is next follows from what the group recorded with its newest whole batch, and from nothing else:
who waits and since when, the priorities that tables have, whose turn it was, and as the time at
which to look that of the batch itself. So whoever plans the next batch, however often, finds the
same order. A table is served by its turn, whatever its compactions cost: what bounds them is how
much of the order a batch works off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_upsert.routed.group import TableGroup
from spark_upsert.schedule import DirtySet, Schedule, Service, Turn, Urgency


@dataclass(frozen=True, slots=True, kw_only=True)
class Debts:
    """The queue as a whole batch left it; a value."""

    schedule: Schedule
    service: Service
    """All that wait, by folder, in the order in which they are to be compacted."""
    owed: Mapping[str, int]
    """How many compactions each is due for."""
    next_ms: int
    """Who waits anew does so since then at the earliest: a clock may stand still, or go back."""
    tasks: int
    """That the order is dealt out to: as many as the last batch had."""

    @classmethod
    def of(cls, group: TableGroup) -> Debts:
        """Return the queue of a group; tables with parked rows are left as they are."""
        batch = group.batch
        waiting = group.members.waiting()
        due = {each.folder: each for each in waiting if each.debt and not each.parked}
        since = sorted((member.debt_since_ms or 0, folder) for folder, member in due.items())
        last_ms = since[-1][0] if since else 0
        now_ms = max(last_ms, batch.committed_ms if batch else 0)
        schedule = Schedule(
            dirty=DirtySet((folder, since_ms) for since_ms, folder in since),
            turn=batch.turn if batch else Turn(),
        )
        standings = {folder: Urgency(manual=member.priority) for folder, member in due.items()}
        return cls(
            schedule=schedule,
            service=schedule.service(now_ms, standings),
            owed={folder: member.debt for folder, member in due.items()},
            next_ms=last_ms + 1,
            tasks=max(1, batch.tasks if batch else 1),
        )

    @property
    def shares(self) -> tuple[Sequence[str], ...]:
        """Folders, as they are dealt out: each task has those that come next in a row of tasks."""
        names = self.service.names
        return tuple(names[index :: self.tasks] for index in range(min(self.tasks, len(names))))

    def after(self, visited: Collection[str], owed: Mapping[str, int], now_ms: int) -> Schedule:
        """Return who waits behind a batch, and whose turn it is.

        Parameters
        ----------
        visited : collection of str
            Folders of the tables that had their turn. Those that owe more wait anew, behind all.
        owed : mapping of str to int
            What tables are due for, as far as the batch has looked at them.
        now_ms : int
            When the batch is recorded, by a clock.
        """
        visited, now_ms = frozenset(visited), max(now_ms, self.next_ms)
        names = self.service.names
        count = next((at for at, name in enumerate(names) if name not in visited), len(names))
        now_owed = {**self.owed, **owed}
        left = [name for name in names if name in visited and now_owed[name]]
        paid = [name for name in names if not now_owed[name]]
        served = self.schedule.served(self.service, count, {*visited, *paid}, left, now_ms)
        return served.marked(sorted(each for each, debt in owed.items() if debt), now_ms)
