"""Rate limiting of looks at the inputs: a look rests for a multiple of the time that it took.

Spark asks an idle query some 80 times a second how far it can go, and a look at a thousand tables
takes a while. So the heads of a look stay valid for `REST` times as long as the look took: looking
takes at most a fifth of the time, whatever the number of inputs and the storage, and a change is
seen within six times the length of a look. A caller that asks a little early is kept waiting, since
rows that were written before the question should be in the answer (Spark's ``processAllAvailable``
counts on that). A wait is never longer than `PAUSE_MAX_S`, because stopping a query waits, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_upsert.streams.inputs.inputs import Heads

REST = 4.0
"""The pause between two looks, as a multiple of the length of the first."""

PAUSE_MAX_S = 2.5


class Watch:
    """The heads of the inputs as they were last seen.

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
        """Return the heads of the last look, or of a new one if one is due."""
        return self.look() if self._seen is None or self._is_due() else self._seen

    def look(self) -> Heads:
        """Look now, whenever the last look was."""
        self._began_s = self._clock()
        self._seen = self._look()
        self.rest()
        return self._seen

    def rest(self) -> None:
        """Count the rest before the next look from now: work on the last one took until now."""
        now_s = self._clock()
        self._due_s = now_s + REST * (now_s - self._began_s)

    def last(self) -> Heads:
        """Return the heads of the last look, however long ago it was."""
        return self.look() if self._seen is None else self._seen

    def _is_due(self) -> bool:
        left_s = self._due_s - self._clock()
        if 0 < left_s <= PAUSE_MAX_S:
            self._sleep(left_s)
            return True
        return left_s <= 0
