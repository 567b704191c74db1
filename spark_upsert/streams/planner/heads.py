"""The newest positions of a stream's inputs (`InputHeads`), and their backlogs (`Backlogs`).

A few inputs are checked by the planner, many by `poller` threads (docs/adr/0029).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

from spark_upsert.errors import about
from spark_upsert.streams.inputs.inputs import Heads, Inputs, SeenHeads
from spark_upsert.streams.inputs.protocol import Backlog
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.poller import (
    THREADS,
    THREADS_REMOTE,
    DaemonThreads,
    PollBounds,
    Poller,
)

REST = 4.0
"""The pause between two looks, as a multiple of the length of the first, so that looks take at most
a fifth of the time.
"""

PAUSE_MAX_S = 2.5

LOOKED_AT_MAX = 300
"""The most inputs that planning looks at itself: a look takes some 50 ms, and the query waits."""


class InputHeads:
    """The heads of a stream's inputs: looked at by planning itself, or polled beside it.

    Parameters
    ----------
    inputs : Inputs
    bounds : PollBounds, optional
        Of what is looked at beside planning.
    is_remote : bool, optional
        Whether a look is a request over a network.
    clock, busy_clock : callable, optional
        In seconds; never go back (`Poller`).
    sleep : callable, optional
        Waits for some seconds.
    crew : callable, optional
        Returns the threads that look, from their number.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        bounds: PollBounds | None = None,
        is_remote: bool = False,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
        crew: Callable[[int], DaemonThreads] = DaemonThreads,
    ) -> None:
        self._inputs = inputs
        self._bounds = bounds or PollBounds()
        self._is_remote = is_remote
        self._clock = clock
        self._busy_clock = busy_clock
        self._sleep = sleep
        self._crew = crew
        self._poller: Poller | None = None
        self._seen: SeenHeads | None = None
        self._began_s = self._due_s = 0.0

    @property
    def poller(self) -> Poller | None:
        """The poller beside planning, where there are many inputs."""
        return self._poller

    def seen(self) -> SeenHeads:
        """Return the heads: those of the last look, or of a new one if one is due.

        Of many inputs they are those in memory, once there was a look at all.
        """
        if self._poller is not None:
            return self._poller.seen()
        if self._seen is None or self._is_due():
            self.look()
        assert self._seen is not None
        heads = self._seen.heads
        if len(heads) > LOOKED_AT_MAX and (inputs := self._inputs.polled()) is not None:
            self._poller = Poller(
                inputs,
                heads,
                self._bounds,
                is_remote=self._is_remote,
                crew=self._crew(THREADS_REMOTE if self._is_remote else THREADS),
                clock=self._clock,
                busy_clock=self._busy_clock,
            )
        return self._seen

    def look(self) -> Heads:
        """Look at all inputs now, whenever the last look was."""
        self._began_s = self._clock()
        self._seen = SeenHeads(self._inputs.look())
        self.rest()
        return self._seen.heads

    def rest(self) -> None:
        """Count the rest before the next look from now: work on the last one took until now."""
        now_s = self._clock()
        self._due_s = now_s + REST * (now_s - self._began_s)

    def last(self) -> Heads:
        """Return what was seen last, however long ago it was."""
        if self._poller is not None:
            return self._poller.last()
        return self.look() if self._seen is None else self._seen.heads

    def _is_due(self) -> bool:
        left_s = self._due_s - self._clock()
        if 0 < left_s <= PAUSE_MAX_S:
            self._sleep(left_s)
            return True
        return left_s <= 0

    def now_s(self) -> float:
        """Return the time of a question (`wait_for_news`)."""
        return self._clock()

    def wait_for_news(self, asked_s: float, until_s: float = inf) -> bool:
        """Return whether something came that the caller should be told of.

        Rows that were there before the question should be in the answer; a wait is never longer
        than `PAUSE_MAX_S`. Where the caller looks at all inputs itself, there is nothing to wait
        for.
        """
        if self._poller is None:
            return False
        return self._poller.wait_for_news(asked_s, min(PAUSE_MAX_S, until_s - asked_s))

    def stop(self) -> None:
        """Look no more beside planning. Twice is harmless."""
        if self._poller is not None:
            self._poller.stop()


class Backlogs:
    """Asks inputs for what lies ahead, and remembers in which of them that was nothing.

    An input without a backlog is asked again only when its head or the stream's position changes.
    Heads are compared as objects: a recreated table may have an equal one.

    Parameters
    ----------
    inputs : Inputs
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._standing: Mapping[str, Position] | None = None
        self._planned: Mapping[str, Position] | None = None
        self._heads: Heads | None = None
        self._resting: dict[str, Position] = {}
        """The heads of inputs that had nothing, while the stream stands there."""
        self._behind: set[str] = set()
        """All others."""

    def continues(self, standing: Mapping[str, Position], seen: SeenHeads) -> bool:
        """Return whether only `SeenHeads.moved` and what was planned differs from the last time."""
        is_there = standing is self._standing or standing is self._planned
        return is_there and (seen.heads is self._heads or seen.before is self._heads)

    def planned(self, positions: Mapping[str, Position]) -> None:
        """Note where the stream will stand: only inputs that had something have moved."""
        self._planned = positions

    def of(self, standing: Mapping[str, Position], seen: SeenHeads) -> dict[str, Backlog]:
        """Return the backlogs by input; an input that is left out has none."""
        heads = seen.heads
        names: Iterable[str]
        if self.continues(standing, seen):
            moved = seen.moved if seen.heads is not self._heads else frozenset[str]()
            names = sorted(name for name in self._behind | moved if name in heads)
        else:
            self._forget_moved(standing)
            resting = self._resting
            names = [name for name, head in heads.items() if resting.get(name) is not head]
        self._heads = None  # Until all have answered.
        heads_by_name = {name: self._of(name, standing.get(name), heads[name]) for name in names}
        for name, backlog in heads_by_name.items():
            if backlog.is_at_rest:
                self._resting[name] = heads[name]
            else:
                self._resting.pop(name, None)
        self._behind = {name for name, backlog in heads_by_name.items() if not backlog.is_at_rest}
        self._standing, self._planned, self._heads = standing, None, heads
        return heads_by_name

    def _forget_moved(self, standing: Mapping[str, Position]) -> None:
        """Forget of which inputs it was known that nothing lies ahead, if the stream has moved."""
        before = self._standing or {}
        for name in list(self._resting):
            now, then = standing.get(name), before.get(name)
            if now is not then and now != then:
                del self._resting[name]

    def _of(self, name: str, position: Position | None, head: Position) -> Backlog:
        with about("input", name):
            return self._inputs[name].backlog(position, head)
