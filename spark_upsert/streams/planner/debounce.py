"""Debouncing: no batch for a few rows (``minRowsPerTrigger`` and ``maxTriggerDelay``).

A batch costs some hundred milliseconds and leaves files behind it, whatever it holds. So a batch
waits until there are enough rows, or until the oldest has waited long enough. Two clocks measure
that wait: a monotonic one from when this process saw the row, and the wall clock from when the row
was committed, where that is known, so that a restart does not let it wait anew. The longer wait
counts. The wall clock may jump; then a batch comes early, which does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from spark_upsert.streams.inputs.input import Backlog, ReadPiece


@dataclass(frozen=True, slots=True)
class Held:
    """The answer that a batch waits."""

    until_s: float
    """The time at which the wait ends, by the clock that never goes back."""


class Debounce:
    """Decides whether a batch waits for more rows.

    Parameters
    ----------
    rows_min : int
        So many rows are enough.
    delay_ms : int
        How long the oldest waits at most.
    clock : callable
        In seconds; never goes back.
    wall : callable
        In seconds since 1970.
    """

    def __init__(
        self,
        rows_min: int,
        delay_ms: int,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._rows_min = rows_min
        self._delay_s = delay_ms / 1000
        self._clock = clock
        self._wall = wall
        self._since_s: float | None = None
        """The time at which rows were first seen to wait, since the last batch."""

    def hold(self, backlogs: dict[str, Backlog]) -> Held | None:
        """Return until when a batch over these backlogs waits; None if it is made now.

        Pieces that were looked at are put back, so that the backlogs can be read again.
        """
        rows, oldest_ms, is_any = self._count(backlogs)
        if not is_any:
            self._since_s = None
            return Held(math.inf)
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if oldest_ms is not None:
            waited_s = max(waited_s, self._wall() - oldest_ms / 1000)
        if rows >= self._rows_min or waited_s >= self._delay_s:
            self._since_s = None
            return None
        return Held(now_s + self._delay_s - waited_s)

    def _count(self, backlogs: dict[str, Backlog]) -> tuple[int, int | None, bool]:
        """Return how many rows wait (counting ends at the minimum), since when, and if any do."""
        rows, oldest_ms, is_any = 0, None, False
        for name, backlog in backlogs.items():
            pieces = iter(backlog.pieces)
            looked: list[ReadPiece] = []
            for piece in pieces:
                looked.append(piece)
                rows += piece.rows
                if rows >= self._rows_min:
                    break
            backlogs[name] = replace(backlog, pieces=chain(looked, pieces))
            is_any |= bool(looked)
            made_ms = backlog.committed_ms() if looked and backlog.committed_ms else None
            if made_ms is not None:
                oldest_ms = made_ms if oldest_ms is None else min(oldest_ms, made_ms)
            if rows >= self._rows_min:
                break
        return rows, oldest_ms, is_any
