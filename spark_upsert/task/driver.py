"""Exchanges, where pipelines meet: the rows of some drivers go on to others.

An exchange has producers, which put batches in and say when they have drained or ended, and
consumers, each with a queue of its own. A consumer has come to the barrier when all producers that
have not ended for good have drained, and its queue is empty.

All exchanges of a task share its lock, which is held for no longer than a queue is looked at.

A driver: moves batches along one chain, from its feed to an exchange.

It is called step by step. A step goes from the end of the chain to its begin and moves one batch by
one stage, or tells one operator to drain or that nothing comes any more.

**Barriers.** When the feed has drained, the operators drain one after the other: all before
`_front` have, that one does, those behind it have not begun. The end of all input runs along the
chain in the same way, once.

**Drop-input.** What stands before a stage can be thrown away until the barrier. Counters go on
counting (`ChainStage.is_counting`): the rows that come to one are read, and only what it gives is
thrown away, so that neither rows nor numbers behind the barrier depend on when a side was dropped.

**Enough.** An operator that has finished before its input (a limit that was reached) has all that
stands before it dropped, in this barrier and in all that follow. Barriers pass, because a stage
above it may have something to say at each of them: an aggregation without keys has a row. Only
where none has (`ChainStage.is_silent`) and no other chain stands above, the driver ends.
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
        consumer_indices = hashes % np.uint64(consumers)
        routed_rows = (
            (index, np.flatnonzero(consumer_indices == index)) for index in range(consumers)
        )
        return [(index, batch.take(pa.array(rows))) for index, rows in routed_rows if len(rows)]

    return route


class ChainStage(NamedTuple):
    """An operator, the node of the plan that it is, and what the driver has to know of it."""

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
    """One chain of operators, with its feed and where its rows go.

    Parameters
    ----------
    node : str
        The node of the plan that the feed stands for.
    feed : Feed
    stages : sequence of Stage
        From the feed to the end.
    producer : Producer
    is_top : bool
        Whether no other chain stands above: when this one ends, the task does.
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
        """Whether the operator at the front knows that it drains, or that the end has come."""
        self._is_top = is_top
        self._dropped = [False] * (len(self._stages) + 1)
        """Whether the output of the feed, and of each stage, is thrown away."""
        self._asked = self._heeded = 0
        """Before which stage all is to be dropped until the barrier, and what has been done."""
        self._enough = 0
        """Before which stage all is dropped for good."""

    @property
    def is_at_barrier(self) -> bool:
        """Whether all before the barrier was given, or nothing will come any more."""
        return self._mode in (_Mode.AT_BARRIER, _Mode.ENDED)

    @property
    def is_ended(self) -> bool:
        """Whether nothing will come any more."""
        return self._mode is _Mode.ENDED

    @property
    def is_bare(self) -> bool:
        """Whether no operator stands above the feed."""
        return not self._stages

    def step(self) -> bool:
        """Move something; False if nothing could be moved."""
        if self.is_at_barrier:
            return False
        return self._heed_enough() or self._heed_drop() or self._flow() or self._advance()

    def _flow(self) -> bool:
        """Move a batch by one stage, as near to the end of the chain as possible."""
        for index in range(len(self._stages), -1, -1):
            is_dropped = self._dropped[index]
            if is_dropped or self._takes(index):
                batch = self._given(index)
                if batch is not None:
                    if not is_dropped:
                        self._give(index, batch)
                    return True
        return False

    def _takes(self, place: int) -> bool:
        """Say whether what stands behind a stage takes a batch of it."""
        if place == len(self._stages):
            return self._producer.needs_input()
        return self._stages[place].operator.needs_input()

    def _given(self, place: int) -> pa.RecordBatch | None:
        """Return a batch of a stage; the feed stands at 0, an operator at its number from 1."""
        if place == 0:
            return self._fed()
        if self._mode is _Mode.ENDING and place <= self._front:
            return None
        stage = self._stages[place - 1]
        with about("node", stage.node):
            batch = stage.operator.output()
        return batch if batch is not None and batch.num_rows else None

    def _fed(self) -> pa.RecordBatch | None:
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
        """Take what the feed gives next; for a driver that is bare, instead of steps."""
        with self._about_feed:
            return self._feed.poll()

    def _give(self, place: int, batch: pa.RecordBatch) -> None:
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
        """Let the operator at the front drain or end, and go on to the next when it has."""
        if self._mode not in (_Mode.DRAINING, _Mode.ENDING):
            return False
        if self._front == len(self._stages):
            self._arrive()
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

    def _arrive(self) -> None:
        if self._mode is _Mode.DRAINING:
            self._mode = _Mode.AT_BARRIER
            self._producer.drained()
        else:
            self._mode = _Mode.ENDED
            self._feed.close()
            self._producer.ended()

    def _heed_enough(self) -> bool:
        """Give up what stands before an operator that wants no more; say whether that is new."""
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
        """Throw away the output of all stages before one, until the barrier.

        May be called by another thread: it is heeded in the next step. Nothing, if the driver has
        come to the barrier.
        """
        if not self.is_at_barrier:
            self._asked = max(self._asked, place)

    def drop_all(self) -> None:
        """Throw away all that it gives, until the barrier."""
        self.drop_before(len(self._stages) + 1)

    def _heed_drop(self) -> bool:
        """Do what was asked for; say whether that was anything."""
        requested = self._asked
        if requested <= self._heeded:
            return False
        self._heeded = requested
        counting = (at + 1 for at in range(requested - 1) if self._stages[at].is_counting)
        self._drop_between(max(counting, default=0), requested)
        return True

    def _drop_between(self, begin: int, end: int) -> None:
        """Throw away the output of some stages, of which the feed is number 0."""
        for index in range(begin, end):
            if self._dropped[index]:
                continue
            self._dropped[index] = True
            if not index:
                self._feed.drop()
            elif (right := self._stages[index - 1].right) is not None:
                right.drop()

    def pass_barrier(self) -> None:
        """Go on behind the barrier."""
        self._dropped = [False] * len(self._dropped)
        self._asked = self._heeded = self._enough = 0
        self._feed.pass_barrier()
        if self._mode is _Mode.AT_BARRIER:
            self._mode = _Mode.FLOWING

    def waiting_on(self) -> list[Future[Any]]:
        """Return what its operators wait for."""
        futures = (stage.operator.waiting_on() for stage in self._stages)
        return [] if self.is_ended else [future for future in futures if future is not None]

    def close(self) -> None:
        """Close the feed and every operator, whatever another one raises."""
        with ExitStack() as stack:
            stack.callback(self._feed.close)
            for stage in self._stages:
                stack.callback(stage.operator.close)
