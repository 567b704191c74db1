"""The protocol of an input (`Input`), and optional protocols for polling, filters and steps.

Planning runs in one process per query; `Input.read` runs in tasks on a pickled copy, which opens
files and connections again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from spark_upsert.plan.expressions import Pins
from spark_upsert.streams.offsets.offset import Json, Position
from spark_upsert.streams.reads.ordered import StreamStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPiece:
    """Equally sized steps to read; a batch may end after each one."""

    steps: int
    rows: int = 0
    """Total for all steps, as are ``bytes`` and ``epochs``."""
    bytes: int = 0
    epochs: int = 0
    after: Callable[[int], Position]
    """Maps a step count to the position after that many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Unread data in one input.

    Its positions are functions because computing one may need a storage request.
    """

    start: Position
    """Position at which the stream continues.

    It differs from the stream's own position if the stream has none, or if the next version
    expired.
    """
    pieces: Iterable[ReadPiece]
    """Pieces fitting into one batch, in order; computed lazily."""
    reach: Callable[[], Position]
    """Returns the position after all pieces."""
    end: Callable[[], Position]
    """Returns the position after all available data."""
    is_all: bool = True
    """Whether no data follows `end`; False if the input must be queried again from there."""
    is_at_rest: bool = False
    """Whether nothing is unread and no lease needs renewal.

    A stream at the same position skips the input until its head moves.
    """
    versions_behind: Callable[[Position], int] | None = None
    """Returns the version lag at a position reached by a batch; None: unknown."""
    committed_ms: Callable[[], int | None] | None = None
    """Returns the commit time for the oldest unread change, in ms since 1970; None: unknown."""

    left_since_ms: Callable[[Position], int | None] | None = None
    """Returns the commit time for the first change after a position; None: unknown."""

    def lag_at(self, position: Position) -> int:
        """Return the version lag at a position; an unknown lag counts as 1."""
        if self.versions_behind is not None:
            return self.versions_behind(position)
        return int(position != self.end())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPressure:
    """Backpressure reported by a stream to its tables (`spark_upsert.scheduler.governor`)."""

    rung: int
    ratio: float
    """Pressure from 0 to 1."""
    said_ms: int
    """Report time, in ms since 1970."""
    lasts_ms: int
    retry_after_ms: int
    """Delay after which a refused writer should retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """Result from polling one input."""

    head: Position | None
    """The head, as `Input.head` returns it; None if the input is gone."""
    requests: int
    """The poll's storage requests."""


class Input(Protocol):
    """An input read by a stream batch by batch, and readable again.

    `head`, `backlog`, `splits` and `commit` are called by one thread and may read the storage. With
    position None, the stream has not started here.
    """

    def head(self) -> Position:
        """Return the position after all available data.

        Return the identical object while nothing changes, if possible: a planner with many inputs
        compares objects only.
        """
        ...

    def identity(self) -> str:
        """Return an id equal for the same data under any name; called right after `head`."""
        ...

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return the unread data between a position and a head.

        Without a head, all available data counts; a passed head may be older than the storage.
        Called repeatedly while nothing changes, so it must then be nearly free.

        An input with a lease takes it here, before returning the start position, to keep the
        returned range readable.
        """
        ...

    def splits(self, start: Position | None, end: Position) -> list[Any]:
        """Return a batch's tasks as picklable values.

        The result depends only on both positions and the data between them, because Spark replays a
        batch from its positions alone. May be the first call in a process.
        """
        ...

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows; called in a task, on a pickled copy."""
        ...

    def split_bytes(self, split: Any) -> int:
        """Estimate the bytes read by a split; called in the planning process."""
        ...

    def commit(self, position: Position) -> None:
        """Release resources before a position: no later batch starts before it."""
        ...

    # -- with defaults, for classes that derive from this one ----------------------------------

    def freeze(self) -> None:
        """Stop at the current end; called once, before all other methods.

        For inputs whose head does not define an end, such as a Python source.
        """
        return

    def priority(self) -> int | None:
        """Return the input's own priority, None if it has none; cheap, called after `backlog`."""
        return None

    def last_read_ms(self) -> int | None:
        """Return when another query last read it, in ms since 1970; None: never, or unknown.

        May be called in another thread, for several inputs concurrently, and read the storage.
        """
        return None

    def newest(self) -> Mapping[str, int] | None:
        """Return the newest version and its counters, without zeros; None: unknown.

        Called repeatedly after `head`; nearly free while nothing changes, and never fails.
        """
        return None

    def report_pressure(self, pressure: StreamPressure | None) -> None:
        """Report the stream's pressure to its writers; None withdraws the report. Never fails."""
        return

    def row_options(self) -> Mapping[str, Json]:
        """Return the options affecting row counts per step; equal values have one form."""
        return {}

    def start_options(self) -> Mapping[str, Json]:
        """Return the options defining the starting position, which positions do not contain."""
        return {}


@runtime_checkable
class Pollable(Protocol):
    """An input whose head a background thread can poll, such as `TableInput`."""

    def poll(self) -> PollResult:
        """Poll the head (`Input.head`) and renew leases; cheap while nothing changes.

        A replaced table without more versions may be detected several polls late.
        """
        ...


@runtime_checkable
class Pushable(Protocol):
    """A batch input able to skip rows."""

    def push(self, pins: Pins) -> None:
        """Skip rows whose values differ from the pins, where that saves reading."""
        ...


@runtime_checkable
class SteppedInput(Input, Protocol):
    """An input whose row order does not depend on batch bounds, as exact orders require."""

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield the steps between two positions; called during planning.

        Each position is a step boundary. The steps between two positions never change; equal
        positions have none between them.
        """
        ...
