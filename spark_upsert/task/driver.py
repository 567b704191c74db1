"""Drivers (`Driver`) move batches along a chain; exchanges (`Exchange`) connect chains.

A step scans a chain from its end and moves one batch by one stage, or signals one operator.
Protocol: `task.operator`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.errors import about
from spark_upsert.task.lifecycle import Monitor
from spark_upsert.task.operator import BatchSource, Operator, Signal

QUEUED_BATCHES = 4
"""Batches per exchange queue: enough to spare drivers a wait for every batch."""

Partitioner = Callable[[pa.RecordBatch, int], Sequence[tuple[int, pa.RecordBatch]]]
"""Partitions a batch among the given number of consumers; no partition is empty."""


class Feed(BatchSource, Protocol):
    """A driver's source: it can discard its rows until the barrier."""

    def drop(self) -> None:
        """Discard the rows up to the barrier; `DRAINED` is signalled as usual."""
        ...

    def pass_barrier(self) -> None:
        """Continue after the barrier."""
        ...


class Exchange:
    """Queues between producers and consumers.

    A consumer is at the barrier when all unended producers have drained and its queue is empty.

    Parameters
    ----------
    progress : Monitor
        The task's monitor. The exchange works under its lock, and reports every change to it.
    schema : pyarrow.Schema
    consumers : int
    route : callable
        The partitioner: partitions a batch among the consumers. By default all rows go to the
        first.
    capacity : int
        Batches in a queue; a full queue stops the producers.
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
        self._route = route or _route_to_first
        self._capacity = capacity
        self._queues: list[deque[pa.RecordBatch]] = [deque() for _ in range(consumers)]
        self._dropped: set[int] = set()
        """Consumers wanting nothing until the barrier."""
        self._closed: set[int] = set()
        """Consumers wanting nothing any more."""
        self._told: set[int] = set()
        """Consumers notified about the drain."""
        self._live = 0
        self._drained = 0
        self.is_dropped: Callable[[], None] = lambda: None
        """Called when no consumer wants anything until the barrier."""

    # -- producers

    def add_producer(self) -> Producer:
        """Return a new producer; all are created before any row arrives."""
        self._live += 1
        return Producer(self)

    def has_room(self) -> bool:
        """Return whether a batch may be put in: every consumer's queue has room."""
        with self._progress.lock:
            return all(len(queue) < self._capacity for queue in self._queues)

    def put(self, batch: pa.RecordBatch) -> None:
        """Share a batch out."""
        for index, part in self._route(batch, len(self._queues)):
            with self._progress.lock:
                if index not in self._dropped | self._closed:
                    self._queues[index].append(part)
        self._progress.notify()

    def mark_drained(self) -> None:
        """Record a producer's drain."""
        with self._progress.lock:
            self._drained += 1
            assert self._drained <= self._live, "a producer has drained twice"
        self._progress.notify()

    def mark_ended(self) -> None:
        """Record a producer's end; it counts no more."""
        with self._progress.lock:
            self._live -= 1
        self._progress.notify()

    # -- consumers

    def consumer(self, index: int = 0) -> Consumer:
        """Return the consumer with an index."""
        return Consumer(self, index)

    def poll(self, index: int) -> pa.RecordBatch | Signal:
        """Return a consumer's next batch or signal."""
        with self._progress.lock:
            if self._queues[index]:
                batch = self._queues[index].popleft()
                # Also where the step that took it gives nothing: a join takes several in one.
                self._progress.notify()
                return batch
            if not self._live:
                return Signal.ENDED
            if self._drained < self._live or index in self._told:
                return Signal.WAIT
            self._told.add(index)
            return Signal.DRAINED

    def drop(self, index: int, *, is_permanent: bool = False) -> None:
        """Discard a consumer's pending and future batches."""
        with self._progress.lock:
            (self._closed if is_permanent else self._dropped).add(index)
            self._queues[index].clear()
        self._notify_if_unused()
        self._progress.notify()

    def _notify_if_unused(self) -> None:
        if len(self._dropped | self._closed) == len(self._queues):
            self.is_dropped()

    def pass_barrier(self) -> None:
        """Reset after a barrier."""
        with self._progress.lock:
            assert not any(self._queues), "rows are left behind a barrier"
            self._drained = 0
            self._told.clear()
            self._dropped.clear()
        self._notify_if_unused()


class Producer:
    """A pipeline's end: puts its last operator's output into an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_ended = False

    def needs_input(self) -> bool:
        return self._exchange.has_room()

    def add_input(self, batch: pa.RecordBatch) -> None:
        self._exchange.put(batch)

    def mark_drained(self) -> None:
        """Signal the drain: all rows before the barrier were put in."""
        self._exchange.mark_drained()

    def mark_ended(self) -> None:
        """Signal the input's end."""
        if not self._is_ended:
            self._is_ended = True
            self._exchange.mark_ended()


class Consumer:
    """A pipeline's start, or a join's right side: one consumer's batches."""

    def __init__(self, exchange: Exchange, index: int) -> None:
        self._exchange = exchange
        self._index = index
        self.schema = exchange.schema

    def poll(self) -> pa.RecordBatch | Signal:
        return self._exchange.poll(self._index)

    def drop(self) -> None:
        self._exchange.drop(self._index)

    def pass_barrier(self) -> None:
        """Do nothing: the exchange is notified once for all its consumers."""

    def close(self) -> None:
        self._exchange.drop(self._index, is_permanent=True)


class Union:
    """Round-robin union: one batch from each feed with one, in feed order, repeatedly.

    A round waits until each feed that has neither drained nor ended has a batch: the output order
    does not depend on the feeds' timing.
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
        if any(outcome is Signal.WAIT for outcome in self._held):
            return Signal.WAIT
        for index, held_item in enumerate(self._held):
            if not isinstance(held_item, Signal):
                self._round.append(held_item)
                self._held[index] = Signal.WAIT
        if self._round:
            return self._round.popleft()
        is_over = all(outcome is Signal.ENDED for outcome in self._held)
        return Signal.ENDED if is_over else Signal.DRAINED

    def drop(self) -> None:
        self._round.clear()
        self._held = [
            held_item if isinstance(held_item, Signal) else Signal.WAIT for held_item in self._held
        ]
        for feed in self._feeds:
            feed.drop()

    def pass_barrier(self) -> None:
        self._held = [
            held_item if held_item is Signal.ENDED else Signal.WAIT for held_item in self._held
        ]
        for feed in self._feeds:
            feed.pass_barrier()

    def close(self) -> None:
        self._round.clear()
        for feed in self._feeds:
            feed.close()


def _route_to_first(batch: pa.RecordBatch, _: int) -> Sequence[tuple[int, pa.RecordBatch]]:
    return [(0, batch)]


class BatchDistributor:
    """Distributes complete batches to the consumers in turn."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(
        self, batch: pa.RecordBatch, consumers: int
    ) -> Sequence[tuple[int, pa.RecordBatch]]:
        index = self._next
        # Two producers at once may take the same turn, which is as good.
        self._next = (index + 1) % consumers
        return [(index, batch)]


def partition_by_keys(keys: Sequence[str]) -> Partitioner:
    """Return a partitioner sending rows with equal keys to the same consumer."""

    def route(batch: pa.RecordBatch, consumers: int) -> Sequence[tuple[int, pa.RecordBatch]]:
        if consumers == 1:
            return [(0, batch)]
        hashes = hash_keys([batch[name] for name in keys], seed=0)
        consumer_indices = hashes % np.uint64(consumers)
        routed_rows = (
            (index, np.flatnonzero(consumer_indices == index)) for index in range(consumers)
        )
        return [(index, batch.take(pa.array(rows))) for index, rows in routed_rows if len(rows)]

    return route


class ChainStage(NamedTuple):
    """An operator, its plan node, and its properties for the driver."""

    node: str
    operator: Operator
    is_silent: bool = True
    """Whether it gives nothing at a barrier before which it got nothing."""
    is_counting: bool = False
    """Whether it counts rows over all barriers."""
    right: Consumer | None = None
    """The right side of a join."""


class _Mode(Enum):
    FLOWING = auto()
    DRAINING = auto()
    AT_BARRIER = auto()
    ENDING = auto()
    ENDED = auto()


class Driver:
    """One chain of operators, with its feed and its output.

    After the feed has drained, operators drain in order; `_front` is the draining one. Rows dropped
    until the barrier still pass counting stages (`ChainStage.is_counting`), so that later rows do
    not depend on the time of the drop.

    Parameters
    ----------
    node : str
        The plan node implemented by the feed.
    feed : Feed
    stages : sequence of ChainStage
        From the feed to the end.
    producer : Producer
    is_top : bool
        Whether there is no chain above: when this one ends, the task does.
    """

    def __init__(
        self,
        node: str,
        feed: Feed,
        stages: Sequence[ChainStage],
        producer: Producer,
        *,
        is_top: bool = False,
    ) -> None:
        self._about_feed = about("node", node)
        self._feed = feed
        self._stages = list(stages)
        self._producer = producer
        self._mode = _Mode.FLOWING
        self._front = 0
        self._is_told = False
        """Whether the front operator was notified of the drain or the end."""
        self._is_top = is_top
        self._dropped = [False] * (len(self._stages) + 1)
        """Whether the output of the feed, and of each stage, is discarded."""
        self._asked = self._heeded = 0
        """The stage before which all rows must be dropped until the barrier: requested and done."""
        self._enough = 0
        """Before which stage all is dropped for good."""

    @property
    def is_at_barrier(self) -> bool:
        """Whether all rows before the barrier were emitted, or the input has ended."""
        return self._mode in (_Mode.AT_BARRIER, _Mode.ENDED)

    @property
    def is_ended(self) -> bool:
        """Whether the input has ended."""
        return self._mode is _Mode.ENDED

    @property
    def is_bare(self) -> bool:
        """Whether there is no operator above the feed."""
        return not self._stages

    def step(self) -> bool:
        """Move something; False if nothing could be moved."""
        if self.is_at_barrier:
            return False
        return self._drop_unused_input() or self._execute_drop() or self._flow() or self._advance()

    def _flow(self) -> bool:
        """Move a batch by one stage, as close to the chain's end as possible."""
        for index in range(len(self._stages), -1, -1):
            is_dropped = self._dropped[index]
            if is_dropped or self._accepts(index):
                batch = self._stage_output(index)
                if batch is not None:
                    if not is_dropped:
                        self._push(index, batch)
                    return True
        return False

    def _accepts(self, place: int) -> bool:
        """Return whether the stage after an index accepts a batch."""
        if place == len(self._stages):
            return self._producer.needs_input()
        return self._stages[place].operator.needs_input()

    def _stage_output(self, place: int) -> pa.RecordBatch | None:
        """Return a stage's batch; the feed has index 0, operators are numbered from 1."""
        if place == 0:
            return self._poll_feed()
        if self._mode is _Mode.ENDING and place <= self._front:
            return None
        stage = self._stages[place - 1]
        with about("node", stage.node):
            batch = stage.operator.output()
        return batch if batch is not None and batch.num_rows else None

    def _poll_feed(self) -> pa.RecordBatch | None:
        if self._mode is not _Mode.FLOWING:
            return None
        match polled := self.poll():
            case Signal.DRAINED:
                self._begin(_Mode.DRAINING, 0)
            case Signal.ENDED:
                self._begin(_Mode.ENDING, 0)
            case Signal.WAIT:
                pass
            case _:
                return polled
        return None

    def poll(self) -> pa.RecordBatch | Signal:
        """Return the feed's next batch or signal; replaces steps in a bare driver."""
        with self._about_feed:
            return self._feed.poll()

    def _push(self, place: int, batch: pa.RecordBatch) -> None:
        if place == len(self._stages):
            self._producer.add_input(batch)
            return
        stage = self._stages[place]
        with about("node", stage.node):
            stage.operator.add_input(batch)

    # -- barriers, and the end

    def _begin(self, mode: _Mode, front: int) -> None:
        self._mode, self._front, self._is_told = mode, front, False

    def _advance(self) -> bool:
        """Drain or end the front operator, and proceed to the next one when it is done."""
        if self._mode not in (_Mode.DRAINING, _Mode.ENDING):
            return False
        if self._front == len(self._stages):
            self._reach_barrier()
            return True
        stage = self._stages[self._front]
        was_told = self._is_told
        with about("node", stage.node):
            is_done = self._is_done(stage.operator)
        if is_done:
            self._begin(self._mode, self._front + 1)
        return is_done or not was_told

    def _is_done(self, operator: Operator) -> bool:
        if self._mode is _Mode.DRAINING:
            if self._is_told:
                return operator.is_drained()
            self._is_told = True
            return not operator.start_drain()
        if not self._is_told:
            self._is_told = True
            operator.no_more_input()
        return operator.is_finished()

    def _reach_barrier(self) -> None:
        if self._mode is _Mode.DRAINING:
            self._mode = _Mode.AT_BARRIER
            self._producer.mark_drained()
        else:
            self._mode = _Mode.ENDED
            self._feed.close()
            self._producer.mark_ended()

    def _drop_unused_input(self) -> bool:
        """Drop the input of a finished operator; return whether that is new.

        Barriers still pass, because a later stage may emit a row at each. If none does
        (`ChainStage.is_silent`) and no chain is above, the driver ends.
        """
        begin = self._front + self._is_told if self._mode is _Mode.ENDING else 0
        for index in range(len(self._stages) - 1, max(begin, self._enough) - 1, -1):
            if self._stages[index].operator.is_finished():
                if self._is_top and all(stage.is_silent for stage in self._stages[index + 1 :]):
                    self._feed.close()
                    self._begin(_Mode.ENDING, index + 1)
                else:
                    self._enough = index + 1
                    self._drop_between(0, self._enough)
                return True
        return False

    # -- what the task says

    def drop_before(self, place: int) -> None:
        """Discard the output of all stages before one, until the barrier.

        Any thread may call it: it takes effect in the next step. It does nothing if the driver has
        reached the barrier.
        """
        if not self.is_at_barrier:
            self._asked = max(self._asked, place)

    def drop_all(self) -> None:
        """Discard all output until the barrier."""
        self.drop_before(len(self._stages) + 1)

    def _execute_drop(self) -> bool:
        """Execute a requested drop; return whether there was one."""
        requested = self._asked
        if requested <= self._heeded:
            return False
        self._heeded = requested
        counting = (at + 1 for at in range(requested - 1) if self._stages[at].is_counting)
        self._drop_between(max(counting, default=0), requested)
        return True

    def _drop_between(self, begin: int, end: int) -> None:
        """Discard the output of a stage range, in which the feed is number 0."""
        for index in range(begin, end):
            if self._dropped[index]:
                continue
            self._dropped[index] = True
            if not index:
                self._feed.drop()
            elif (right := self._stages[index - 1].right) is not None:
                right.drop()

    def pass_barrier(self) -> None:
        """Continue after the barrier."""
        self._dropped = [False] * len(self._dropped)
        self._asked = self._heeded = self._enough = 0
        self._feed.pass_barrier()
        if self._mode is _Mode.AT_BARRIER:
            self._mode = _Mode.FLOWING

    def waiting_on(self) -> list[Future[Any]]:
        """Return the futures for which its operators wait."""
        futures = (stage.operator.waiting_on() for stage in self._stages)
        return [] if self.is_ended else [future for future in futures if future is not None]

    def close(self) -> None:
        """Close the feed and every operator, whatever another one raises."""
        with ExitStack() as stack:
            stack.callback(self._feed.close)
            for stage in self._stages:
                stack.callback(stage.operator.close)
