"""The heads of a stream's inputs: planning looks at a few itself; many are polled beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from spark_upsert.streams.inputs.inputs import Heads, Inputs, SeenHeads
from spark_upsert.streams.planner.poller import THREADS, THREADS_REMOTE, Crew, DaemonThreads, Poller
from spark_upsert.streams.planner.polls import PollBounds
from spark_upsert.streams.planner.watch import PAUSE_MAX_S, Watch

LOOKED_AT_MAX = 300
"""The most inputs that planning looks at itself: a look takes some 50 ms, and the query waits."""


class Lookout:
    """The heads of a stream's inputs: looked at by planning itself, or polled beside it.

    Parameters
    ----------
    inputs : Inputs
    bounds : Bounds, optional
        Of what is looked at beside planning.
    is_remote : bool, optional
        Whether a look is a request over a network.
    clock, busy_clock : callable, optional
        In seconds; never go back (`Poller`).
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
        crew: Callable[[int], Crew] = DaemonThreads,
    ) -> None:
        self._inputs = inputs
        self._bounds = bounds or PollBounds()
        self._is_remote = is_remote
        self._clock = clock
        self._busy_clock = busy_clock
        self._crew = crew
        self._watch = Watch(inputs.look, clock=clock)
        self._poller: Poller | None = None

    @property
    def poller(self) -> Poller | None:
        """The poller beside planning, where there are many inputs."""
        return self._poller

    def seen(self) -> SeenHeads:
        """Return the heads; of many inputs those in memory, once there was a look at all.

        Raises
        ------
        UpsertFlowError
            A look has failed.
        """
        if self._poller is not None:
            return self._poller.seen()
        heads = self._watch.seen()
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
        return SeenHeads(heads)

    def look(self) -> Heads:
        """Look at all inputs now (`Watch.look`)."""
        return self._watch.look()

    def rest(self) -> None:
        """Count what follows from a look to it (`Watch.rest`)."""
        self._watch.rest()

    def last(self) -> Heads:
        """Return what was seen last, however long ago it was."""
        return self._watch.last() if self._poller is None else self._poller.last()

    def now_s(self) -> float:
        """Return the time of a question (`wait_for_news`)."""
        return self._clock()

    def wait_for_news(self, asked_s: float, until_s: float = inf) -> bool:
        """Return whether something came that the caller should be told of.

        Rows that were there before the question should be in the answer (``processAllAvailable``
        counts on that); a wait is never longer than `PAUSE_MAX_S`. Where the caller looks at all
        inputs itself, there is nothing to wait for.

        Parameters
        ----------
        asked_s : float
            When it was asked (`now_s`).
        until_s : float, optional
            When the answer changes, whatever comes.
        """
        if self._poller is None:
            return False
        return self._poller.wait_for_news(asked_s, min(PAUSE_MAX_S, until_s - asked_s))

    def stop(self) -> None:
        """Look no more beside planning. Twice is harmless."""
        if self._poller is not None:
            self._poller.stop()
