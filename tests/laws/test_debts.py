"""The queue of compactions of many tables: nobody starves, and service follows the weights."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from spark_upsert.routed.group import Batch, CompactionQueue, Member, Members, TableGroup
from spark_upsert.scheduler.scheduler import ROUND
from spark_upsert.table.log.manifest import TableVersion
from tests.support.seeds import seeds

WEIGHTS = {900: 8, 600: 4, 300: 2, 0: 1, -500: 1}
"""A priority of each band, and its weight."""


def member(folder: str, priority: int | None, debt: int) -> Member:
    """Return a table that owes compactions since the beginning."""
    return Member(
        folder=folder,
        name=folder,
        values=(folder,),
        place=TableVersion(table_id=folder, version=0, token="t"),
        writer="query:q",
        batch=0,
        rows=1,
        debt=debt,
        debt_since_ms=0 if debt else None,
        priority=priority,
    )


class Queue:
    """A group whose tables owe compactions, batch after batch."""

    def __init__(self, priorities: list[int | None], *, debt: int, tasks: int = 1) -> None:
        members = [member(f"t{at:03}", each, debt) for at, each in enumerate(priorities)]
        self.group = TableGroup(
            version=0,
            batch=Batch(template="{t}", writer="query:q", number=0, rows=1, tasks=tasks),
            members=Members.of(members),
        )

    def batch(self, visits: list[int], now_ms: int = 0) -> list[str]:
        """Let each task visit so many tables, and pay one compaction of each; return whom."""
        queue = CompactionQueue.of(self.group)
        shares = zip(queue.shares, visits, strict=False)
        visited = [folder for share, count in shares for folder in share[:count]]
        due_counts = {folder: self.group.members[folder].debt - 1 for folder in visited}
        self.leave(queue, visited, due_counts, now_ms)
        return visited

    def leave(
        self, queue: CompactionQueue, visited: list[str], due_counts: dict[str, int], now_ms: int
    ) -> None:
        """Record what a batch has left."""
        schedule = queue.after(visited, due_counts, now_ms)
        since = dict(schedule.dirty.items())
        assert self.group.batch is not None
        self.group = replace(
            self.group,
            batch=replace(self.group.batch, turn=schedule.turn, committed_ms=now_ms),
            members=Members.of(
                replace(
                    each, debt=due_counts.get(folder, each.debt), debt_since_ms=since.get(folder)
                )
                for folder, each in self.group.members.items()
            ),
        )


@seeds(4)
def test_p7_every_table_has_its_turn_in_time_while_all_owe_for_ever(seed: int) -> None:
    dice = random.Random(seed)
    tables = dice.randrange(2, 30)
    priorities = [dice.choice([None, 900, 900, 900, 600, -1000]) for _ in range(tables)]
    queue = Queue(priorities, debt=10**6, tasks=dice.randrange(1, 4))
    waited = Counter(dict.fromkeys(queue.group.members, 0))
    for _ in range(400):
        # The first of the order has its turn always: the first task begins with it.
        visits = [dice.randrange(1, 7), *(dice.randrange(5) for _ in range(2))]
        order = CompactionQueue.of(queue.group).service.names
        visited = queue.batch(visits)
        turns = next((at for at, each in enumerate(order) if each not in visited), len(order))
        waited.update(dict.fromkeys(waited, turns))
        waited.update({folder: -waited[folder] for folder in visited})
        assert max(waited.values()) <= (tables + 5) * ROUND, (seed, waited.most_common(3))


@seeds(2)
def test_tables_of_a_band_have_turns_by_its_weight(seed: int) -> None:
    dice = random.Random(seed)
    tasks = dice.randrange(1, 4)
    queue = Queue([each for each in WEIGHTS for _ in range(24)], debt=10**6, tasks=tasks)
    found: Counter[int | None] = Counter()
    for _ in range(60):
        # All tasks visit as many, so that those that had their turn are the first of the order.
        for folder in queue.batch([dice.randrange(1, 6)] * tasks):
            found[queue.group.members[folder].priority] += 1
        per_weight = [found[priority] / weight for priority, weight in WEIGHTS.items()]
        assert max(per_weight) - min(per_weight) <= 1


@seeds(2)
def test_a_queue_that_nobody_adds_to_is_worked_off_and_no_table_comes_twice(seed: int) -> None:
    dice = random.Random(seed)
    queue = Queue([dice.choice([None, 900, -900]) for _ in range(50)], debt=1)
    done: list[str] = []
    while any(each.debt for each in queue.group.members.values()):
        done += queue.batch([dice.randrange(1, 9)])
    assert sorted(done) == sorted(queue.group.members)
    assert not CompactionQueue.of(queue.group).shares


def test_a_table_that_owes_more_behind_its_turn_waits_behind_all_others_of_its_band() -> None:
    queue = Queue([None, None, None], debt=2)
    assert [queue.batch([1], now_ms=now_ms) for now_ms in (5, 6, 7, 8, 9, 10)] == [
        ["t000"], ["t001"], ["t002"], ["t000"], ["t001"], ["t002"],
    ]  # fmt: skip


def test_a_table_with_parked_rows_keeps_its_place_and_has_no_turn() -> None:
    queue = Queue([None, None], debt=1)
    members = dict(queue.group.members)
    members["t000"] = replace(members["t000"], parked=3)
    queue.group = replace(queue.group, members=Members.of(members.values()))
    assert CompactionQueue.of(queue.group).shares == (["t001"],)


def test_a_table_that_could_not_be_compacted_does_not_hold_up_the_others() -> None:
    queue = Queue([900, 900, None], debt=1)
    turns = []
    for _ in range(9):  # Eight turns of the highest band, and one of the other.
        compactions = CompactionQueue.of(queue.group)
        visited = [compactions.shares[0][0]]
        turns += visited
        queue.leave(compactions, visited, {}, 0)  # Nobody could look at it.
    assert set(turns) == set(queue.group.members)
