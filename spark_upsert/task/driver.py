"""A driver: moves batches along one chain, from its feed to an exchange.

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

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from enum import Enum, auto
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.errors import about
from spark_upsert.task.exchange import Consumer, Feed, Producer
from spark_upsert.task.operators.operator import Operator, Signal


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
        """Move something; False if nothing could be moved.

        Raises
        ------
        Exception
            What an operator raised, which tells its node.
        """
        if self.is_at_barrier:
            return False
        return self._heed_enough() or self._heed_drop() or self._flow() or self._advance()

    def _flow(self) -> bool:
        """Move a batch by one stage, as near to the end of the chain as possible."""
        for place in range(len(self._stages), -1, -1):
            is_dropped = self._dropped[place]
            if is_dropped or self._takes(place):
                batch = self._given(place)
                if batch is not None:
                    if not is_dropped:
                        self._give(place, batch)
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
        match found := self.poll():
            case Signal.DRAINED:
                self._begin(_Mode.DRAINING, 0)
            case Signal.ENDED:
                self._begin(_Mode.ENDING, 0)
            case Signal.WAIT:
                pass
            case _:
                return found
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
                if self._is_top and all(each.is_silent for each in self._stages[index + 1 :]):
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
        asked = self._asked
        if asked <= self._heeded:
            return False
        self._heeded = asked
        counting = (at + 1 for at in range(asked - 1) if self._stages[at].is_counting)
        self._drop_between(max(counting, default=0), asked)
        return True

    def _drop_between(self, begin: int, end: int) -> None:
        """Throw away the output of some stages, of which the feed is number 0."""
        for place in range(begin, end):
            if self._dropped[place]:
                continue
            self._dropped[place] = True
            if not place:
                self._feed.drop()
            elif (right := self._stages[place - 1].right) is not None:
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
        found = (stage.operator.waiting_on() for stage in self._stages)
        return [] if self.is_ended else [each for each in found if each is not None]

    def close(self) -> None:
        """Close the feed and every operator, whatever another one raises."""
        with ExitStack() as stack:
            stack.callback(self._feed.close)
            for stage in self._stages:
                stack.callback(stage.operator.close)
