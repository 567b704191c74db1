"""Fail every step of an act, and find out once what follows from each state that is left.

Most faults strike where nothing was written since the fault before, and leave the same state; and
what a process does follows from the state that it finds. So that it does, the processes draw their
names from dice and see one time.
"""

from __future__ import annotations

import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any
from unittest.mock import patch

from spark_upsert.store import Store
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
    is_place,
)

KINDS: list[type[BaseException]] = [KilledError, BrokenError]

STARTED_S = time.time()
"""The time of all processes that ask the machine: what is of use for an hour is of use to them."""

State = frozenset[tuple[str, bytes]]
"""All objects of a store."""


def state_of(store: MemoryStore) -> State:
    """Return the objects of a store."""
    return frozenset(store.objects.items())


def store_of(state: State) -> MemoryStore:
    """Return a store of its own, at the one place, of which no process remembers anything."""
    store = MemoryStore("memory:///swept")
    store.objects = dict(state)
    forget_runs_and_logs()
    return store


class Process(Enum):
    """One of those that come to a table one after the other."""

    FIRST = 1
    SECOND = 2
    LAST = 3


@contextmanager
def alive(process: Process) -> Iterator[None]:
    """Let a process draw the names that it always draws: what it finds decides what it does."""
    dice = random.Random(process.value)
    with (
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128), version=4)),
        patch.object(secrets, "token_hex", lambda count: dice.randbytes(count).hex()),
        patch.object(time, "time", lambda: STARTED_S),
    ):
        yield


@dataclass(frozen=True)
class Left:
    """What a process leaves."""

    state: State
    finished: bool
    steps: tuple[str, ...]
    """Up to its death."""


class Attempts:
    """What comes of an act, in each state that a process finds.

    Parameters
    ----------
    act : callable
        What a process does to a store.
    """

    def __init__(self, act: Callable[[Store], Any]) -> None:
        self.act = act
        self.attempt = cache(self._attempt)

    def _attempt(self, state: State, process: Process, fault: Fault | None = None) -> Left:
        """Let a process act, with a fault."""
        store, steps, finished = store_of(state), Steps(fault), True
        with alive(process):
            try:
                self.act(FaultyStore(store, steps))
            except (KilledError, BrokenError):
                finished = False
        assert steps.struck or not fault, f"{fault} lies behind the last step"
        return Left(state_of(store), finished, tuple(steps.names))

    def struck(
        self, start: State, kind: type[BaseException], moment: Moment
    ) -> Iterator[tuple[Fault, Left, bool]]:
        """Fail one step of the act after the other; says whether it matters which."""
        steps = self.attempt(start, Process.FIRST).steps
        assert steps
        for step in range(len(steps)):
            fault = Fault(step, moment, kind)
            yield fault, self.attempt(start, Process.FIRST, fault), is_place(steps, step)
