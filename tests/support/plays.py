"""Merges that are played by a schedule: their inputs, what is checked on the way, and a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.merge.readers import Bounds, MergeCounters, MergeReaders
from tests.support.schedules import Choose, Schedule, played


class BrokenInputError(Exception):
    """What an input of these plays fails by."""


@dataclass
class Play:
    """A merge of items of one event each, by one schedule.

    `lengths` are those of the inputs; `breaks` is the index of the input that fails behind its
    items, `silent` of one that never ends. Who takes stops after `stops`, if that is given, and
    lets the readers go on for `lingers` steps before it closes the merge.
    """

    lengths: tuple[int, ...]
    capacity: int = 1
    width: int = 2
    is_live: bool = True
    breaks: int | None = None
    silent: int | None = None
    stops: int | None = None
    lingers: int = 0
    memory_bytes: int | None = None
    produced: int = 0
    taken: list[tuple[str, Any]] = field(default_factory=list)
    is_open: int = 0
    violations: list[str] = field(default_factory=list)
    """Of bounds; an error within an input would be taken for one of its own."""

    def run(self, choose: Choose) -> Schedule:
        self.produced, self.is_open, self.taken, self.violations = 0, 0, [], []
        with played(choose) as schedule:
            names = [str(index) for index in range(len(self.lengths))]
            inputs = {name: self._input(schedule, int(name)) for name in names}
            bounds = Bounds(
                width=self.width, capacity=self.capacity, memory_bytes=self.memory_bytes
            )
            self.counters = MergeCounters()
            with MergeReaders(inputs, bounds, counters=self.counters) as merge:
                if self.is_live:
                    self._take_any(merge, schedule)
                else:
                    self._take_each(merge, names)
                for _ in range(self.lingers):
                    schedule.switch()
        assert self.violations == []
        left = [task for task in schedule.tasks[1:] if not task.is_finished]
        assert all(task.is_silent for task in left), f"threads are left: {left}"
        for name in names:
            mine = [item.number for each, item in self.taken if each == name]
            assert mine == list(range(len(mine))), "an input is out of its order"
        return schedule

    def _take_any(self, merge: MergeReaders, schedule: Schedule) -> None:
        while self.stops is None or len(self.taken) < self.stops:
            taken = merge.take_ready()
            if taken is None:
                return
            self.taken.append((taken.name, taken.item))
            schedule.switch()

    def _take_each(self, merge: MergeReaders, names: list[str]) -> None:
        for name in names:
            while self.stops is None or len(self.taken) < self.stops:
                item = merge.take_of(name)
                if item is None:
                    break
                self.taken.append((name, item))

    def _input(self, schedule: Schedule, index: int) -> Callable[[], Iterator[Any]]:
        def items() -> Iterator[Any]:
            self.is_open += 1
            if self.is_open > self.width:
                self.violations.append(f"{self.is_open} inputs are open")
            for number in range(self.lengths[index]):
                schedule.switch()
                self.produced += 1
                ahead = self.produced - len(self.taken)
                # One more may have left its channel and not yet come to who counts.
                if ahead > self.width * (self.capacity + 1) + 1:
                    self.violations.append(f"{ahead} items are ahead")
                yield Item(number)
            if index == self.breaks:
                raise BrokenInputError(index)
            if index == self.silent:
                schedule.running.is_silent = True
                schedule.block()
            self.is_open -= 1

        return items


@dataclass(frozen=True)
class Item:
    """One event, of ten bytes."""

    number: int
    nbytes: int = 10


PLAYS = {
    "live": Play((2, 3, 1)),
    "live, one open at a time": Play((2, 1, 2), width=1),
    "live, all open": Play((2, 2, 1), width=3, capacity=2),
    "concat": Play((2, 3, 1), is_live=False),
    "concat, all open": Play((1, 2, 2), width=3, is_live=False),
    "inputs without rows": Play((0, 1, 0)),
    "no inputs": Play(()),
    "live, short of memory": Play((3, 3), capacity=3, memory_bytes=25),
    "concat, short of memory": Play((2, 3, 3), width=3, capacity=3, is_live=False, memory_bytes=25),
    "concat, memory for nothing": Play((2, 2, 2), width=3, is_live=False, memory_bytes=1),
}
