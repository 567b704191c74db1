"""Batches that are not made for a few rows: ``minRowsPerTrigger`` and ``maxTriggerDelay``.

A batch costs some hundred milliseconds and leaves files behind it, whatever it holds. So it waits
until enough rows do, or until the oldest has waited for long enough. How long that is, is told by
two clocks: from when this process saw it, by one that never goes back; and from when it was
committed, where that is known, so that a restart does not let it wait anew. The later of the two
may be wrong by a jump of the clock; then a batch comes early, which harms nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

from spark_upsert.streams.inputs.input import Backlog, ReadPiece


@dataclass(frozen=True, slots=True)
class Held:
    """That a batch waits."""

    until_s: float
    """By the clock that never goes back."""


class Debounce:
    """Decides whether a batch waits for more rows.

    Parameters
    ----------
    rows_min : int or None
        None: no batch waits.
    delay_ms : int
        How long the oldest waits at most.
    clock : callable
        In seconds; never goes back.
    wall : callable
        In seconds since 1970.
    """

    def __init__(
        self,
        rows_min: int | None,
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
        """When something was seen to wait, since the last batch."""

    def hold(self, backlogs: dict[str, Backlog]) -> Held | None:
        """Return until when a batch over these waits; None if it is made now.

        What was looked at of them is put back, so that they can be asked again.
        """
        if self._rows_min is None:
            return None
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
        """Return how many rows wait, no more than are needed; since when; and whether any does."""
        assert self._rows_min is not None
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
