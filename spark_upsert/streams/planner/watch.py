"""Looking at the inputs again, but only now and then.

Spark asks an idle query some 80 times a second how far it can go, and a look at a thousand tables
takes a while. So the heads of a look stand until it is over for `REST` times as long as it took:
looking takes at most a fifth of the time, whatever the number of inputs and the storage, and what
comes is seen within six times the length of a look. Who asks a little earlier is kept waiting,
since what was written before the question should be in the answer (Spark's ``processAllAvailable``
counts on that); nobody waits for longer than `PAUSE_MAX_S`, for a query that is stopped waits, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_upsert.streams.inputs.inputs import Heads

REST = 4.0
"""So many times the length of a look passes until the next one."""

PAUSE_MAX_S = 2.5


class Watch:
    """The inputs as they were last seen.

    Parameters
    ----------
    look : callable
        Returns the heads (`Inputs.look`).
    clock, sleep : callable, optional
        In seconds; the clock never goes back.
    """

    def __init__(
        self,
        look: Callable[[], Heads],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._clock = clock
        self._sleep = sleep
        self._seen: Heads | None = None
        self._began_s = self._due_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": None}

    def seen(self) -> Heads:
        """Return the last look, or a new one if it is time for that."""
        return self.look() if self._seen is None or self._is_due() else self._seen

    def look(self) -> Heads:
        """Look anew, whenever the last time was."""
        self._began_s = self._clock()
        self._seen = self._look()
        self.rest()
        return self._seen

    def rest(self) -> None:
        """Let the next look wait, counted from now: until now the last one was worked upon."""
        now_s = self._clock()
        self._due_s = now_s + REST * (now_s - self._began_s)

    def last(self) -> Heads:
        """Return the last look, however long ago it was."""
        return self.look() if self._seen is None else self._seen

    def _is_due(self) -> bool:
        left_s = self._due_s - self._clock()
        if 0 < left_s <= PAUSE_MAX_S:
            self._sleep(left_s)
            return True
        return left_s <= 0
