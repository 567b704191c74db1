"""Looking at the inputs again, but only now and then.

Spark asks an idle query some 80 times a second how far it can go, and a look at a thousand tables
takes a while. So the heads of a look stand until it is over for `REST` times as long as it took:
looking takes at most a fifth of the time, whatever the number of inputs and the storage, and what
comes is seen within six times the length of a look. Who asks a little earlier is kept waiting,
since what was written before the question should be in the answer; nobody waits for longer than
`PAUSE_MAX_S`, because a query that is stopped waits as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_upsert.source.position import Position

REST = 4.0
"""So many times the length of a look passes until the next one."""

PAUSE_MAX_S = 0.1

Heads = Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look has found."""

    number: int
    heads: Heads
    """The position behind all there is, for each input there is."""


class Watch:
    """The inputs as they were last seen.

    Parameters
    ----------
    look : callable
        Takes the positions where a stream stands and returns the heads.
    clock, sleep : callable, optional
        In seconds; the clock never goes back.
    """

    def __init__(
        self,
        look: Callable[[Heads], Heads],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._look = look
        self._clock = clock
        self._sleep = sleep
        self._seen: Seen | None = None
        self._due_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": None}

    def seen(self, standing: Heads) -> Seen:
        """Return the last look, or a new one if it is time for that."""
        if self._seen is None or self._is_due():
            return self.look(standing)
        return self._seen

    def look(self, standing: Heads) -> Seen:
        """Look anew, whenever the last time was."""
        began_s = self._clock()
        heads = self._look(standing)
        ended_s = self._clock()
        self._due_s = ended_s + REST * (ended_s - began_s)
        self._seen = Seen(1 if self._seen is None else self._seen.number + 1, heads)
        return self._seen

    @property
    def last(self) -> Seen | None:
        """The last look, if there was one."""
        return self._seen

    def _is_due(self) -> bool:
        left_s = self._due_s - self._clock()
        if 0 < left_s <= PAUSE_MAX_S:
            self._sleep(left_s)
            return True
        return left_s <= 0
