"""Idle tasks of a process, to be used again: a task that was left at a barrier is as good as new.

A task that ended in any other way, by an error or because its reader stopped early, is closed and
not used again. So an idle task holds no rows of an earlier read, only its plan, made ready.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Generic, TypeVar

from spark_upsert.model.bounded import LruMap
from spark_upsert.task.states import Phase
from spark_upsert.task.task import Task

K = TypeVar("K")

IDLE_MAX = 8
"""Tasks that are kept: a worker of Spark runs one at a time, a program's threads some."""


class TaskPool(Generic[K]):
    """Tasks by what they read: a plan, or a key that says more than one.

    Parameters
    ----------
    make : callable
        Makes a task for a key.
    idle_max : int
        How many are kept; the one that was used least recently is closed.
    """

    def __init__(self, make: Callable[[K], Task], idle_max: int = IDLE_MAX) -> None:
        self._make = make
        self._idle: LruMap[int, tuple[K, Task]] = LruMap(idle_max)
        self._lock = Lock()

    def taken(self, key: K) -> LentTask[K]:
        """Lend a task for a key; no other reader has it meanwhile."""
        return LentTask(self, key)

    def take_out(self, key: K) -> Task:
        """Return a task for a key, to be given to `put_back`."""
        return self._taken_out(key) or self._make(key)

    def _taken_out(self, key: K) -> Task | None:
        with self._lock:
            for own, task in self._idle.values():
                if own is key or own == key:
                    self._idle.pop(id(task))
                    return task
        return None

    def put_back(self, key: K, task: Task, *, has_failed: bool) -> None:
        """Keep a task that stands at a barrier; end any other."""
        if has_failed or task.phase is not Phase.OPEN:
            task.abort()
            return
        with self._lock:
            gone = self._idle.put(id(task), (key, task))
        for _, each in gone:
            each.abort()

    def __len__(self) -> int:
        return len(self._idle)


class LentTask(Generic[K]):
    """A task that is lent; a class, as a generator takes twice as long around each split."""

    __slots__ = ("_key", "_pool", "_task")

    def __init__(self, pool: TaskPool[K], key: K) -> None:
        self._pool = pool
        self._key = key

    def __enter__(self) -> Task:
        self._task = self._pool.take_out(self._key)
        return self._task

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.put_back(self._key, self._task, has_failed=kind is not None)
