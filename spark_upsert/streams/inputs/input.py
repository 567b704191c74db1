"""The protocol of an input: what a stream reads from, whatever is behind it.

Planning happens in one process that lives as long as the query; `Input.read` happens in tasks, on
a copy that was pickled. So an input is a value as far as others see: what it keeps open is made
anew where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from spark_upsert.streams.offsets.position import Json, Position
from spark_upsert.streams.reads.steps import StreamStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPiece:
    """Something to be read: equal steps, behind each of which a batch may end."""

    steps: int
    rows: int = 0
    """Of all steps together, like the other counts."""
    bytes: int = 0
    epochs: int = 0
    after: Callable[[int], Position]
    """The position behind so many of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What lies before a stream in one input.

    Its positions are asked for only where they are needed: to name one may cost a look-up.
    """

    start: Position
    """Where the stream goes on: its position, unless it has not begun or what is next is gone."""
    pieces: Iterable[ReadPiece]
    """What one batch may hold, in order; made as they are looked at."""
    reach: Callable[[], Position]
    """The position behind all pieces."""
    end: Callable[[], Position]
    """The position behind all there is."""
    is_all: bool = True
    """Whether the input knows that this is all there is; else it is asked again from there on."""
    is_at_rest: bool = False
    """Whether nothing lies ahead and nothing is to be done, so that who stands at the same position
    need not ask again before the head moves."""
    versions_behind: Callable[[Position], int] | None = None
    """How many versions lie behind a position that a batch reaches; None: nobody knows."""
    committed_ms: Callable[[], int | None] | None = None
    """When the first of the changes ahead was committed, in ms since 1970; None: nobody knows."""

    def behind(self, position: Position) -> int:
        """Return how many versions lie behind a position, 1 for any number that nobody knows."""
        if self.versions_behind is not None:
            return self.versions_behind(position)
        return int(position != self.end())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPressure:
    """How pressed a stream is (`spark_upsert.schedule.governor`)."""

    rung: int
    ratio: float
    """From 0 to 1."""
    said_ms: int
    """When, in ms since 1970."""
    lasts_ms: int
    retry_after_ms: int
    """When a writer who is refused should come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What a look at one of very many inputs found."""

    head: Position | None
    """As of `Input.head`; None if the input is gone."""
    requests: int
    """What the storage was asked."""


class Input(Protocol):
    """Something that a stream reads batch by batch, and can read again.

    `head`, `backlog`, `splits` and `commit` are called by one thread, and may read the storage.
    A position of None means that the stream has not begun here.
    """

    def head(self) -> Position:
        """Return the position behind all there is.

        The very object, if it can, as long as nothing comes: who compares many need not read them.
        """
        ...

    def identity(self) -> str:
        """Return the same for what is the same, under whatever name; called right behind `head`."""
        ...

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return what lies between a position and a head.

        Without a head it is all there is; else the head was asked for some time before. Called
        again and again while nothing comes: it should cost next to nothing then.

        What is offered stays readable for those who hold a lease: it is taken in here, before
        anybody knows of the next position.
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
        """Let go of what is before a position: no batch begins there any more."""
        ...


@runtime_checkable
class Pollable(Protocol):
    """An input whose head is learnt by another thread than the one that plans."""

    def poll(self) -> Polled:
        """Look at the head (`Input.head`), and renew what is held; cheap while nothing comes.

        What was replaced without growing may be noticed some looks later.
        """
        ...


@runtime_checkable
class Freezable(Protocol):
    """An input whose head says nothing, so that it must be told to end."""

    def freeze(self) -> None:
        """End at what there is now; called once, before anything else is asked."""
        ...


@runtime_checkable
class Ranked(Protocol):
    """An input that says itself how urgent it is."""

    def priority(self) -> int | None:
        """Return its priority, None if it has none; called behind `backlog`, and next to free."""
        ...

    def last_read_ms(self) -> int | None:
        """Return when others last read it, in ms since 1970; None: never, as far as is known.

        May be called in another thread, for several inputs at once, and read the storage.
        """
        ...


@runtime_checkable
class Counted(Protocol):
    """An input that can tell what the newest thing in it did."""

    def newest(self) -> Mapping[str, int] | None:
        """Return its ``version`` and counters, without zeros; None if it is not known.

        Called behind `head`, again and again; next to free while nothing comes, and never fails.
        """
        ...


@runtime_checkable
class Pressable(Protocol):
    """An input that can slow down who writes it."""

    def press(self, pressure: StreamPressure | None) -> None:
        """Tell its writers how pressed the stream is, None: not any more; never fails."""
        ...


@runtime_checkable
class Decided(Protocol):
    """An input of which options decide how many rows a step has."""

    def decides(self) -> Mapping[str, Json]:
        """Return these options by their names, in one form for what means the same."""
        ...


@runtime_checkable
class Begins(Protocol):
    """An input whose options say how it begins, which its positions do not tell."""

    def begins(self) -> Mapping[str, Json]:
        """Return these options by their names, in one form for what means the same."""
        ...


@runtime_checkable
class SteppedInput(Input, Protocol):
    """An input whose rows have one order, however it is cut: what an exact order takes from."""

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield what lies between two positions, step by step.

        Called where batches are planned. A position is a bound of steps, and those between two of
        them are the same for ever. Equal positions have none between them.
        """
        ...
