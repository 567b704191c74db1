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
    """A number of equal steps to be read; a batch may end after each of them."""

    steps: int
    rows: int = 0
    """Rows of all steps together, as the other counts are."""
    bytes: int = 0
    epochs: int = 0
    after: Callable[[int], Position]
    """The position behind so many of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The part of one input that lies ahead of a stream.

    Its positions are functions, called only where they are needed: to name one may cost a look-up.
    """

    start: Position
    """The position at which the stream goes on: its own, unless it has none or the next is gone."""
    pieces: Iterable[ReadPiece]
    """Pieces that one batch may hold, in order; made as they are looked at."""
    reach: Callable[[], Position]
    """The position behind all pieces."""
    end: Callable[[], Position]
    """The position behind all there is."""
    is_all: bool = True
    """Whether the input knows that this is all there is; else it is asked again from there on."""
    is_at_rest: bool = False
    """Whether nothing lies ahead and nothing is to be done, so that a stream at the same position
    need not ask again before the head moves."""
    versions_behind: Callable[[Position], int] | None = None
    """The number of versions behind a position that a batch reaches; None: not known."""
    committed_ms: Callable[[], int | None] | None = None
    """The time at which the first change ahead was committed, in ms since 1970; None: not known."""

    left_since_ms: Callable[[Position], int | None] | None = None
    """The time at which the first change behind a position was committed; None: not known."""

    def behind(self, position: Position) -> int:
        """Return how many versions lie behind a position; an unknown number counts as 1."""
        if self.versions_behind is not None:
            return self.versions_behind(position)
        return int(position != self.end())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPressure:
    """The pressure of a stream (`spark_upsert.scheduler.governor`), as its tables are told."""

    rung: int
    ratio: float
    """The pressure, from 0 to 1."""
    said_ms: int
    """The time of the message, in ms since 1970."""
    lasts_ms: int
    retry_after_ms: int
    """The time after which a refused writer should come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The result of a look at one of very many inputs."""

    head: Position | None
    """The head, as `Input.head` returns it; None if the input is gone."""
    requests: int
    """Requests to the storage that the look cost."""


class Input(Protocol):
    """Something that a stream reads batch by batch, and can read again.

    `head`, `backlog`, `splits` and `commit` are called by one thread, and may read the storage.
    A position of None means that the stream has not begun here.
    """

    def head(self) -> Position:
        """Return the position behind all there is.

        If it can, an input returns the very same object as long as nothing comes, so that a planner
        of many inputs compares objects and need not read them.
        """
        ...

    def identity(self) -> str:
        """Return an id, equal for the same data under any name; called right after `head`."""
        ...

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return what lies between a position and a head.

        Without a head it is all there is; else the head was asked for some time before. Called
        again and again while nothing comes: it should cost next to nothing then.

        An input that holds a lease takes it here, before the next position is known to any caller,
        so that what is offered stays readable.
        """
        ...

    def splits(self, start: Position | None, end: Position) -> list[Any]:
        """Return the work of a batch for the tasks, as values that can be pickled.

        A pure function of both positions and of what lies between them, whatever has come since:
        a batch is replayed by them alone. May be the first call of a process.
        """
        ...

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; called in a task, on a pickled copy."""
        ...

    def split_bytes(self, split: Any) -> int:
        """Estimate the bytes that a split reads; called where it was planned."""
        ...

    def commit(self, position: Position) -> None:
        """Release what lies before a position: no batch begins there any more."""
        ...

    # -- with defaults, for classes that derive from this one ----------------------------------

    def freeze(self) -> None:
        """End at what there is now; called once, before anything else is asked.

        For an input whose head does not say where it ends, as that of a Python source.
        """
        return

    def priority(self) -> int | None:
        """Return its own priority, None if it has none; cheap, and called after `backlog`."""
        return None

    def last_read_ms(self) -> int | None:
        """Return when another query last read it, in ms since 1970; None: never, or not known.

        May be called in another thread, for several inputs at once, and read the storage.
        """
        return None

    def newest(self) -> Mapping[str, int] | None:
        """Return the version and counters of its newest version, without zeros; None: not known.

        Called after `head`, again and again; next to free while nothing comes, and never fails.
        """
        return None

    def press(self, pressure: StreamPressure | None) -> None:
        """Report the stream's pressure to its writers; None: no longer. Never fails."""
        return

    def decides(self) -> Mapping[str, Json]:
        """Return the options that decide how many rows a step has; equal values have one form."""
        return {}

    def begins(self) -> Mapping[str, Json]:
        """Return the options that say how it begins, which its positions do not contain."""
        return {}


@runtime_checkable
class Pollable(Protocol):
    """An input that a thread beside the planner's can poll for its head: `TableInput`."""

    def poll(self) -> PollResult:
        """Look at the head (`Input.head`), and renew leases; cheap while nothing comes.

        A replacement that did not make the input grow may be noticed some looks later.
        """
        ...


@runtime_checkable
class Pushable(Protocol):
    """An input of a batch that may leave rows out."""

    def push(self, pins: Pins) -> None:
        """Leave out rows that have other values in some columns, where that saves reading."""
        ...


@runtime_checkable
class SteppedInput(Input, Protocol):
    """An input with one order of rows, however it is cut: exact orders take from such inputs."""

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield what lies between two positions, step by step.

        Called where batches are planned. A position is a bound of steps, and those between two of
        them are the same for ever. Equal positions have none between them.
        """
        ...
