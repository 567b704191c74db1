"""Threads that run one at a time, in an order that a test decides: any one can be played.

The tasks are real threads, but only one of them runs; it hands over where it takes a lock, waits,
notifies, ends, or says so itself. Who goes on is a *choice*, made by a function: at random from a
seed, or so that all choices are tried (`every_schedule`). If all tasks wait, that is a dead-lock,
and an error here; a join with a time-out is then over, as if its time had come.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from spark_upsert.merge import readers

Choose = Callable[[int, bool], int]
"""From how many tasks can go on, and whether the running one is the first of them, to its index."""

STEPS_MAX = 20_000


class DeadlockError(AssertionError):
    """All tasks wait for each other."""


class Task:
    """A thread that runs when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = threading.Semaphore(0)
        self.is_ready = True
        self.has_timeout = False
        self.is_finished = False
        self.is_silent = False
        """Waits for something outside, and is not missed by anybody."""
        self.joiners: list[Task] = []

    def __repr__(self) -> str:
        return self.name


class Schedule:
    """All tasks of one play. The test itself is the first of them."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.running = Task("test")
        self.tasks = [self.running]
        self.steps = 0
        self.is_stuck = False

    def switch(self) -> None:
        """Let any task go on, perhaps the one that runs."""
        me = self.running
        following = self._next()
        if following is not me:
            following.turn.release()
            me.turn.acquire()
        if self.is_stuck:
            raise DeadlockError(f"wait for each other: {self._waiting()}")

    def block(self) -> None:
        """Let others go on until one of them makes the running task ready again."""
        self.running.is_ready = False
        self.switch()

    def finish(self) -> None:
        """End the running task, without going on in it."""
        self.running.is_finished = True
        self.running.is_ready = False
        for joiner in self.running.joiners:
            joiner.is_ready = True
        self._next().turn.release()

    def _next(self) -> Task:
        self.steps += 1
        ready = [task for task in self.tasks if task.is_ready]
        if not ready:
            late = [task for task in self.tasks if task.has_timeout and not task.is_finished]
            if late:
                ready = late[:1]
                ready[0].is_ready = True
        if not ready or self.steps > STEPS_MAX:
            # The test must hear of it, whatever it waits for.
            self.is_stuck = True
            ready = self.tasks[:1]
            ready[0].is_ready = True
        is_first = self.running in ready
        if is_first:
            ready.remove(self.running)
            ready.insert(0, self.running)
        index = self._choose(len(ready), is_first) if len(ready) > 1 else 0
        self.running = ready[index]
        return self.running

    def _waiting(self) -> list[Task]:
        return [task for task in self.tasks if not task.is_finished and not task.is_silent]

    # -- what takes the place of `threading` ------------------------------------------------------

    def lock(self) -> Lock:
        return Lock(self)

    def condition(self, lock: Lock) -> Condition:
        return Condition(self, lock)

    def thread(self, **how: Any) -> Thread:
        return Thread(self, **how)


class Lock:
    """Free whenever it is asked for: whoever holds it does not hand over."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.holder: Task | None = None

    def __enter__(self) -> Lock:
        self._schedule.switch()
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.holder = None

    def take(self) -> None:
        assert self.holder is None, "two tasks are within one lock"
        self.holder = self._schedule.running


class Condition:
    """Notifies in the order of the waits, as Python does."""

    def __init__(self, schedule: Schedule, lock: Lock) -> None:
        self._schedule = schedule
        self._lock = lock
        self._waiting: list[Task] = []

    def wait(self) -> None:
        me = self._schedule.running
        assert self._lock.holder is me, "waits without its lock"
        self._waiting.append(me)
        self._lock.holder = None
        self._schedule.block()
        self._lock.take()

    def notify(self, n: int = 1) -> None:
        assert self._lock.holder is self._schedule.running, "notifies without its lock"
        for task in self._waiting[:n]:
            task.is_ready = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Thread:
    """A task, as `threading.Thread` is used."""

    def __init__(
        self, schedule: Schedule, *, target: Any, args: Any, name: str, daemon: bool
    ) -> None:
        assert daemon
        self._schedule = schedule
        self._target, self._args = target, args
        self.task = Task(name)
        self._thread = threading.Thread(target=self._work, name=f"scheduled-{name}", daemon=True)

    def start(self) -> None:
        self._schedule.tasks.append(self.task)
        self._thread.start()
        self._schedule.switch()

    def join(self, timeout: float) -> None:
        assert timeout >= 0
        me = self._schedule.running
        if not self.task.is_finished:
            self.task.joiners.append(me)
            me.has_timeout = True
            self._schedule.block()
            me.has_timeout = False

    def _work(self) -> None:
        self.task.turn.acquire()
        self._target(*self._args)
        self._schedule.finish()


@contextmanager
def played(choose: Choose) -> Iterator[Schedule]:
    """Let the merges within run by a schedule."""
    schedule = Schedule(choose)
    with (
        patch.object(readers, "RLock", schedule.lock),
        patch.object(readers, "Condition", schedule.condition),
        patch.object(readers, "Thread", schedule.thread),
    ):
        yield schedule


def at_random(seed: int) -> Choose:
    """Choose anybody, at each step."""
    dice = random.Random(seed)
    return lambda count, _: dice.randrange(count)


def every_schedule(*, preemptions: int, most: int = 20_000) -> Iterator[Choose]:
    """Yield a choice for every schedule that takes the turn from a running task so often at most.

    Where the running task must wait, all others are tried, too. Of schedules that differ in one
    choice the later choices differ first.

    Source: Musuvathi and Qadeer, "Iterative context bounding for systematic testing of
    multithreaded programs", 2007: bugs need few preemptions.
    """
    path: list[tuple[int, int]] = []
    for _ in range(most):
        following = _Path(path, preemptions)
        yield following.choose
        path = following.taken
        while path and path[-1][0] + 1 >= path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1] = (path[-1][0] + 1, path[-1][1])
    raise AssertionError(f"there are more than {most} schedules")


class _Path:
    """Choices that begin as given, and go on with the first of each."""

    def __init__(self, given: list[tuple[int, int]], preemptions: int) -> None:
        self._given = [index for index, _ in given]
        self._preemptions = preemptions
        self.taken: list[tuple[int, int]] = []
        """Each choice, and how many there were."""

    def choose(self, count: int, is_first: bool) -> int:
        if is_first and not self._preemptions:
            count = 1
        step = len(self.taken)
        index = self._given[step] if step < len(self._given) else 0
        self.taken.append((index, count))
        self._preemptions -= is_first and index > 0
        return index
