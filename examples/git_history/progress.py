"""How far a streaming query is: one line that renews itself, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import TextIO

from pyspark.sql.streaming.query import StreamingQuery

_LOOK_SECONDS = 1
_LINE_SECONDS = 15.0  # Without a terminal each line stays: a log wants few.


class Line:
    """Writes over itself on a terminal; elsewhere writes seldom.

    Parameters
    ----------
    out : file
    clock : callable, optional
        Returns seconds.
    """

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._is_terminal = out.isatty()
        self._due = clock() + _LINE_SECONDS

    def show(self, text: str) -> None:
        """Say how far things are."""
        if self._is_terminal:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()
        elif self._clock() >= self._due:
            self._due = self._clock() + _LINE_SECONDS
            self._out.write(f"{text}\n")
            self._out.flush()

    def clear(self) -> None:
        """Take the line away, before something else is printed."""
        if self._is_terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


def follow(
    query: StreamingQuery, line: Line, title: str, rows: Sequence[int], *, step: int = 1
) -> Duration:
    """Wait until a query has ended, showing its progress; raises what it failed with.

    Parameters
    ----------
    query : StreamingQuery
    line : Line
    title : str
    rows : sequence of int
        Rows that the query moves per epoch.
    step : int
        Epochs per micro-batch.

    """
    begin = time.monotonic()
    rows_until = [0, *accumulate(rows)]
    pace: Pace | None = None
    try:
        while not query.awaitTermination(_LOOK_SECONDS):
            last = query.lastProgress
            epochs = min(len(rows), (last.batchId + 1) * step) if last else 0
            now = time.monotonic()
            if epochs and pace is None:
                pace = Pace(epochs=epochs, seconds=now)
            left = pace.left(epochs, len(rows), now) if pace else None
            line.show(describe(title, epochs, len(rows), rows_until[epochs], now - begin, left))
    finally:
        if query.isActive:
            query.stop()
    batches = [progress.batchDuration / 1000 for progress in query.recentProgress]
    return Duration(
        seconds=time.monotonic() - begin, batch_seconds_p50=median(batches) if batches else 0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How long a query took."""

    seconds: float
    """From its start to its end; the first micro-batch starts processes, too."""
    batch_seconds_p50: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where the clock stood after the first epochs, whose time is mostly start-up."""

    epochs: int
    seconds: float

    def left(self, epochs: int, epoch_count: int, seconds: float) -> float | None:
        """Return the seconds that remain, None if it is too early to tell."""
        if epochs == self.epochs:
            return None
        return (seconds - self.seconds) / (epochs - self.epochs) * (epoch_count - epochs)


def describe(
    title: str, epochs: int, epoch_count: int, rows: int, seconds: float, left: float | None
) -> str:
    """Return one line about an unfinished query."""
    text = f"{title}  {epochs:,}/{epoch_count:,} epochs  {rows:,} rows"
    if epochs:
        text += f"  {rows / seconds:,.0f} rows/s"
    if left is not None:
        text += f"  {left:.0f} s left"
    return text
