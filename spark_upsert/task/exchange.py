"""Exchanges, where pipelines meet: the rows of some drivers go on to others.

An exchange has producers, which put batches in and say when they have drained or ended, and
consumers, each with a queue of its own. A consumer has come to the barrier when all producers that
have not ended for good have drained, and its queue is empty.

All exchanges of a task share its lock, which is held for no longer than a queue is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.model.hashing import hash_keys
from spark_upsert.task.operators.operator import BatchSource, Signal
from spark_upsert.task.progress import Monitor

QUEUED_BATCHES = 4
"""In a queue of an exchange: enough that a driver need not wait for each batch of another."""

Partitioner = Callable[[pa.RecordBatch, int], Sequence[tuple[int, pa.RecordBatch]]]
"""Shares a batch out among so many consumers: which gets which rows. None of them is empty."""


class Feed(BatchSource, Protocol):
    """The source of a driver: one that can be told to give up until the barrier."""

    def drop(self) -> None:
        """Throw away what comes until the barrier; `DRAINED` is said as always."""
        ...

    def pass_barrier(self) -> None:
        """Go on behind the barrier."""
        ...


class Exchange:
    """Queues between some producers and some consumers.

    Parameters
    ----------
    progress : Monitor
        The task's monitor. The exchange works under its lock, and notes every change with it.
    schema : pyarrow.Schema
    consumers : int
    route : callable
        The partitioner: shares a batch out among the consumers. By default all rows go to the
        first.
    capacity : int
        Batches in a queue; one that is full stops the producers.
    """

    def __init__(
        self,
        progress: Monitor,
        schema: pa.Schema,
        *,
        consumers: int = 1,
        route: Partitioner | None = None,
        capacity: int = QUEUED_BATCHES,
    ) -> None:
        self.schema = schema
        self._progress = progress
        self._route = route or _all_to_the_first
        self._capacity = capacity
        self._queues: list[deque[pa.RecordBatch]] = [deque() for _ in range(consumers)]
        self._dropped: set[int] = set()
        """Consumers that want nothing until the barrier."""
        self._gone: set[int] = set()
        """Consumers that want nothing any more."""
        self._told: set[int] = set()
        """Consumers that know that all has drained."""
        self._live = 0
        self._drained = 0
        self.is_dropped: Callable[[], None] = lambda: None
        """Called when no consumer wants anything until the barrier."""

    # -- producers

    def add_producer(self) -> Producer:
        """Return a new producer; all are made before any row comes."""
        self._live += 1
        return Producer(self)

    def has_room(self) -> bool:
        """Say whether a batch may be put in: every consumer's queue has room."""
        with self._progress.lock:
            return all(len(queue) < self._capacity for queue in self._queues)

    def put(self, batch: pa.RecordBatch) -> None:
        """Share a batch out."""
        for index, part in self._route(batch, len(self._queues)):
            with self._progress.lock:
                if index not in self._dropped | self._gone:
                    self._queues[index].append(part)
        self._progress.note()

    def mark_drained(self) -> None:
        """Learn that a producer has drained."""
        with self._progress.lock:
            self._drained += 1
            assert self._drained <= self._live, "a producer has drained twice"
        self._progress.note()

    def mark_ended(self) -> None:
        """Learn that a producer has ended for good; it counts no more."""
        with self._progress.lock:
            self._live -= 1
        self._progress.note()

    # -- consumers

    def consumer(self, index: int = 0) -> Consumer:
        """Return one of the consumers."""
        return Consumer(self, index)

    def poll(self, index: int) -> pa.RecordBatch | Signal:
        """Return what a consumer gets next."""
        with self._progress.lock:
            if self._queues[index]:
                batch = self._queues[index].popleft()
                # Also where the step that took it gives nothing: a join takes several in one.
                self._progress.note()
                return batch
            if not self._live:
                return Signal.ENDED
            if self._drained < self._live or index in self._told:
                return Signal.WAIT
            self._told.add(index)
            return Signal.DRAINED

    def drop(self, index: int, *, is_for_good: bool = False) -> None:
        """Throw away what a consumer would get."""
        with self._progress.lock:
            (self._gone if is_for_good else self._dropped).add(index)
            self._queues[index].clear()
        self._tell_if_unwanted()
        self._progress.note()

    def _tell_if_unwanted(self) -> None:
        if len(self._dropped | self._gone) == len(self._queues):
            self.is_dropped()

    def pass_barrier(self) -> None:
        """Begin anew behind a barrier."""
        with self._progress.lock:
            assert not any(self._queues), "rows are left behind a barrier"
            self._drained = 0
            self._told.clear()
            self._dropped.clear()
        self._tell_if_unwanted()


class Producer:
    """The end of a pipeline: what its last operator gives is put into an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_ended = False

    def needs_input(self) -> bool:
        return self._exchange.has_room()

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._exchange.put(batch)

    def drained(self) -> None:
        """Say that all before the barrier was put in."""
        self._exchange.mark_drained()

    def ended(self) -> None:
        """Say that nothing comes any more."""
        if not self._is_ended:
            self._is_ended = True
            self._exchange.mark_ended()


class Consumer:
    """The begin of a pipeline, or the right side of a join: what one consumer gets."""

    def __init__(self, exchange: Exchange, index: int) -> None:
        self._exchange = exchange
        self._index = index
        self.schema = exchange.schema

    def poll(self) -> pa.RecordBatch | Signal:
        return self._exchange.poll(self._index)

    def drop(self) -> None:
        self._exchange.drop(self._index)

    def pass_barrier(self) -> None:
        """Nothing: the exchange is told once for all its consumers."""

    def close(self) -> None:
        self._exchange.drop(self._index, is_for_good=True)


class Union:
    """Several feeds in turn: one batch of each that has one, in their order, again and again.

    A round waits until each feed that has neither drained nor ended has a batch, so that the order
    of what comes out does not depend on which was sooner.
    """

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self.schema = feeds[0].schema
        self._feeds = list(feeds)
        self._held: list[pa.RecordBatch | Signal] = [Signal.WAIT] * len(feeds)
        self._round: deque[pa.RecordBatch] = deque()

    def poll(self) -> pa.RecordBatch | Signal:
        if self._round:
            return self._round.popleft()
        for index, feed in enumerate(self._feeds):
            if self._held[index] is Signal.WAIT:
                self._held[index] = feed.poll()
        if any(each is Signal.WAIT for each in self._held):
            return Signal.WAIT
        for index, each in enumerate(self._held):
            if not isinstance(each, Signal):
                self._round.append(each)
                self._held[index] = Signal.WAIT
        if self._round:
            return self._round.popleft()
        is_over = all(each is Signal.ENDED for each in self._held)
        return Signal.ENDED if is_over else Signal.DRAINED

    def drop(self) -> None:
        self._round.clear()
        self._held = [each if isinstance(each, Signal) else Signal.WAIT for each in self._held]
        for feed in self._feeds:
            feed.drop()

    def pass_barrier(self) -> None:
        self._held = [each if each is Signal.ENDED else Signal.WAIT for each in self._held]
        for feed in self._feeds:
            feed.pass_barrier()

    def close(self) -> None:
        self._round.clear()
        for feed in self._feeds:
            feed.close()


def _all_to_the_first(batch: pa.RecordBatch, _: int) -> Sequence[tuple[int, pa.RecordBatch]]:
    return [(0, batch)]


class InTurn:
    """Shares out whole batches, to one consumer after the other."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(
        self, batch: pa.RecordBatch, consumers: int
    ) -> Sequence[tuple[int, pa.RecordBatch]]:
        index = self._next
        # Two producers at once may take the same turn, which is as good.
        self._next = (index + 1) % consumers
        return [(index, batch)]


def by_keys(keys: Sequence[str]) -> Partitioner:
    """Return a way to share out rows so that those of equal keys come to the same consumer."""

    def route(batch: pa.RecordBatch, consumers: int) -> Sequence[tuple[int, pa.RecordBatch]]:
        if consumers == 1:
            return [(0, batch)]
        hashes = hash_keys([batch[name] for name in keys], seed=0)
        places = hashes % np.uint64(consumers)
        found = ((index, np.flatnonzero(places == index)) for index in range(consumers))
        return [(index, batch.take(pa.array(rows))) for index, rows in found if len(rows)]

    return route
