"""Threads of a merge (`MergeReaders`), each reading one input into a bounded `Channel`; counters.

At most ``width * (capacity + batch)`` events are between inputs and consumer; an *event* is a row
or a mark. One lock with conditions, no polling (docs/adr/0024).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum
from threading import Condition, RLock, Thread, current_thread
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.core.input_order import SEED_END, Concat, Order, RoundRobin, Seeded
from spark_upsert.core.names import has_column
from spark_upsert.core.threads import BATCH_BYTES, HAND_OFF_ROWS, split_batch
from spark_upsert.errors import OptionError, SchemaError, about
from spark_upsert.merge.spill import MemoryPressure, Relief


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCounters:
    """An input's counters at one moment. Events are rows and marks."""

    queued: int = 0
    """Events in the channel."""
    queued_bytes: int = 0
    queued_peak: int = 0
    """Maximum events in the channel so far."""
    in_flight: int = 0
    """Events read from the input and not yet handed over, including queued events."""
    in_flight_peak: int = 0
    handed: int = 0
    """Events handed over."""
    blocked_seconds: float = 0.0
    """Time that the reader waited for room; a wait counts after it ends."""
    is_finished: bool = False
    """Whether the input has ended and all its events were handed over."""


class Gauge:
    """Mutable counters for one input."""

    __slots__ = (
        "blocked_seconds",
        "handed",
        "in_flight_peak",
        "in_hand",
        "is_finished",
        "queued",
        "queued_bytes",
        "queued_peak",
    )

    def __init__(self) -> None:
        self.queued = self.queued_bytes = self.queued_peak = 0
        self.in_hand = self.in_flight_peak = 0
        self.handed = 0
        self.blocked_seconds = 0.0
        self.is_finished = False

    def record_taken(self, events: int) -> None:
        """Count events that the reader took from its input."""
        self.in_hand += events
        self.in_flight_peak = max(self.in_flight_peak, self.queued + self.in_hand)

    def record_queued(self, events: int, size: int) -> None:
        """Count events that the reader put into the channel."""
        self.in_hand -= events
        self.queued += events
        self.queued_bytes += size
        self.queued_peak = max(self.queued_peak, self.queued)

    def record_delivered(self, events: int, size: int) -> None:
        """Count events that left the channel."""
        self.queued -= events
        self.queued_bytes -= size
        self.handed += events

    def snapshot(self) -> InputCounters:
        return InputCounters(
            queued=self.queued,
            queued_bytes=self.queued_bytes,
            queued_peak=self.queued_peak,
            in_flight=self.queued + self.in_hand,
            in_flight_peak=self.in_flight_peak,
            handed=self.handed,
            blocked_seconds=self.blocked_seconds,
            is_finished=self.is_finished,
        )


class MergeCounters:
    """Counters for all inputs in one merge, readable from any thread at any time.

    Reading takes no lock, so it never delays a merge; numbers that change meanwhile may be
    inconsistent. An input is listed after it is opened. If several merges share this object, an
    input shows the numbers from the newest merge that opened it.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}

    def open(self, name: str) -> Gauge:
        """Return new counters for an input that is opened now."""
        gauge = self._gauges[name] = Gauge()
        return gauge

    def snapshot(self) -> Mapping[str, InputCounters]:
        """Return the counters by input name, for each opened input."""
        return {name: gauge.snapshot() for name, gauge in self._gauges.copy().items()}


CHANNEL_EVENTS = 1024
"""Default channel capacity per input, in events."""

OUTPUT_EVENTS = 256
"""Events between a merge and a sink with a thread of its own (`merged.streamed`)."""


def events_of(item: Any) -> int:
    """Return an item's event count: a batch's rows, or 1."""
    return int(getattr(item, "num_rows", 1))


def bytes_of(item: Any) -> int:
    """Return an item's memory; 0 for a mark."""
    return int(getattr(item, "nbytes", 0))


class Channel:
    """Queue for one input, without a lock, because readers share one.

    An empty channel has room for any item, so that no item is too large to pass.

    Parameters
    ----------
    capacity : int
        Maximum queued events.
    gauge : Gauge
        The input's counters.
    """

    __slots__ = ("_capacity", "_gauge", "_items", "is_closed", "queued")

    def __init__(self, capacity: int, gauge: Gauge) -> None:
        self._capacity = capacity
        self._gauge = gauge
        self._items: deque[tuple[Any, int, int]] = deque()
        self.queued = 0
        """Queued events."""
        self.is_closed = False
        """Whether no more items follow."""

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"Channel({self.queued}/{self._capacity} events{state})"

    @property
    def is_empty(self) -> bool:
        return not self._items

    @property
    def is_drained(self) -> bool:
        """Whether it is closed and every item was taken."""
        return self.is_closed and not self._items

    def has_room(self, item: Any) -> bool:
        """Return whether an item may be put now."""
        return not self._items or self.queued + events_of(item) <= self._capacity

    def put(self, item: Any) -> None:
        """Append an item; requires room."""
        assert self.has_room(item)
        assert not self.is_closed
        events, size = events_of(item), bytes_of(item)
        self._items.append((item, events, size))
        self.queued += events
        self._gauge.record_queued(events, size)

    def take(self) -> Any:
        """Remove and return the first item."""
        item, events, size = self._items.popleft()
        self.queued -= events
        self._gauge.record_delivered(events, size)
        return item

    def close(self) -> None:
        """Declare that no more items follow."""
        self.is_closed = True


WIDTH = 16
"""Default maximum open inputs: enough to hide store latency, few enough for threads."""

JOIN_SECONDS = 1.0
"""Seconds that closing waits for readers with silent inputs."""

OpenInput = Callable[[], Iterator[Any]]
"""Callable that opens an input; runs in the thread that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Read-ahead limits for a merge.

    Parameters
    ----------
    width : int
        Maximum open inputs.
    capacity : int
        Maximum queued events per open input.
    batch_rows : int
        Maximum rows per batch, at most ``capacity``.
    batch_bytes : int
        Maximum bytes per batch; a single row may have more.
    memory_bytes : int or None
        Limit for queued bytes over all inputs; None: no limit. All readers pause above 80 % and
        resume below 70 % (`MemoryPressure`).
    """

    width: int = WIDTH
    capacity: int = CHANNEL_EVENTS
    batch_rows: int = HAND_OFF_ROWS
    batch_bytes: int = BATCH_BYTES
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "capacity", "batch_rows", "batch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, found {getattr(self, name)}")

    def pieces(self, item: Any) -> Iterator[Any]:
        """Yield an item in portions within the limits, without a copy."""
        if getattr(item, "num_rows", None) is None:
            yield item
            return
        most = min(self.batch_rows, self.capacity)
        yield from split_batch(item, rows_max=most, bytes_max=self.batch_bytes)


class Delivery(NamedTuple):
    """Batch or mark from a merge, with its input name.

    It has its item's row count and bytes, so that it can pass another channel.
    """

    name: str
    item: Any

    @property
    def num_rows(self) -> int:
        return self.item.num_rows

    @property
    def nbytes(self) -> int:
        return self.item.nbytes

    def slice(self, offset: int, length: int) -> Delivery:
        return Delivery(self.name, self.item.slice(offset, length))


class MergeCancellation(Exception):
    """The merge was closed while a thread waited in it."""


class _Reader:
    """Open input."""

    __slots__ = ("channel", "gauge", "name", "open", "room")

    def __init__(
        self, name: str, open_: OpenInput, channel: Channel, gauge: Gauge, room: Condition
    ) -> None:
        self.name = name
        self.open = open_
        self.channel = channel
        self.gauge = gauge
        self.room = room


class MergeReaders:
    """Readers for all inputs in a merge; a context manager that starts and ends their threads.

    An input is open until its last item was taken; then its thread opens the next input in
    declaration order. A reader cannot be woken from a silent input; its thread is a daemon.

    Parameters
    ----------
    inputs : mapping of str to callable
        Each opens an input: an iterator over batches and marks. Its thread calls the iterator's
        ``close``, if there is one.
    bounds : Bounds
        Read-ahead limits.
    counters : MergeCounters or None
        Counters for the inputs.
    join_seconds : float
        Seconds that leaving waits for threads with silent inputs.
    clock : callable
        Returns seconds; measures blocked time.
    """

    def __init__(
        self,
        inputs: Mapping[str, OpenInput],
        bounds: Bounds,
        *,
        counters: MergeCounters | None = None,
        join_seconds: float = JOIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = bounds
        self._counters = MergeCounters() if counters is None else counters
        self._join_seconds = join_seconds
        self._clock = clock
        # The garbage collector may close a merge without any reference left, from one of its own
        # threads and anywhere: also where that thread has the lock.
        self._lock = RLock()
        self._something = Condition(self._lock)
        self._unopened = iter(inputs.items())
        self._unfinished = len(inputs)
        self._open: dict[str, _Reader] = {}
        self._finished: set[str] = set()
        self._ready: deque[_Reader] = deque()
        """Readers with queued items; the first is served next, then moves to the end."""
        self._queued_bytes = 0
        self._pressure = (
            None
            if bounds.memory_bytes is None
            else MemoryPressure(limit_bytes=bounds.memory_bytes, relief=Relief.PAUSE)
        )
        self._awaited: str | None = None
        """Input that the consumer waits for while its channel is empty."""
        self._failure: BaseException | None = None
        self._is_closed = False
        self._threads: list[Thread] = []

    def __enter__(self) -> MergeReaders:
        try:
            for index in range(min(self._bounds.width, self._unfinished)):
                work = copy_context().run
                thread = Thread(target=work, args=(self._work,), name=f"merge-{index}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and wake the waiting ones; safe to call twice."""
        with self._lock:
            self._end()
        if current_thread() in self._threads:
            return  # This thread may have the lock, for which others wait before they end.
        deadline = time.monotonic() + self._join_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the consumer ---------------------------------------------------------------------------

    def take_ready(self) -> Delivery | None:
        """Wait for an item from any input and return it; None after all inputs have ended."""
        with self._lock:
            while True:
                self._raise_if_ended()
                if self._ready:
                    reader = self._ready.popleft()
                    return Delivery(reader.name, self._take(reader))
                if not self._unfinished:
                    return None
                self._something.wait()

    def take_of(self, name: str) -> Any | None:
        """Wait for an item from one input and return it; None after the input has ended.

        Take inputs in declaration order, each to its end. Raises the same errors as `take_ready`.
        """
        with self._lock:
            while True:
                self._raise_if_ended()
                reader = self._open.get(name)
                if reader is not None and not reader.channel.is_empty:
                    self._ready.remove(reader)
                    return self._take(reader)
                if name in self._finished:
                    return None
                self._await(name)
                self._something.wait()

    def _await(self, name: str) -> None:
        """Resume a paused input: only this input can make room."""
        self._awaited = name
        if self._pressure is not None and name in self._open:
            self._open[name].room.notify()

    def _take(self, reader: _Reader) -> Any:
        item = reader.channel.take()
        self._account(-bytes_of(item))
        if not reader.channel.is_empty:
            self._ready.append(reader)
        # The reader waits for room, or until its channel is drained.
        reader.room.notify()
        self._finish_if_drained(reader)
        return item

    def _raise_if_ended(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise MergeCancellation

    # -- the readers ----------------------------------------------------------------------------

    def _work(self) -> None:
        """Read inputs one after the other while any are left."""
        try:
            while (reader := self._open_next()) is not None:
                with about("input", reader.name):
                    self._read(reader)
                self._wait_until_drained(reader)
        except MergeCancellation:
            return
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken.
            self._fail(error)

    def _open_next(self) -> _Reader | None:
        with self._lock:
            self._stop_if_ended()
            following = next(self._unopened, None)
            if following is None:
                return None
            name, open_ = following
            gauge = self._counters.open(name)
            channel, room = Channel(self._bounds.capacity, gauge), Condition(self._lock)
            reader = self._open[name] = _Reader(name, open_, channel, gauge, room)
            return reader

    def _read(self, reader: _Reader) -> None:
        items = reader.open()
        with closing(items) if hasattr(items, "close") else nullcontext():  # type: ignore[type-var]
            for item in items:
                reader.gauge.record_taken(events_of(item))
                for piece in self._bounds.pieces(item):
                    self._put(reader, piece)
        with self._lock:
            reader.channel.close()
            self._finish_if_drained(reader)

    def _put(self, reader: _Reader, item: Any) -> None:
        channel = reader.channel
        with self._lock:
            if not self._may_put(reader, item):
                began = self._clock()
                while not (self._may_put(reader, item) or self._has_ended):
                    reader.room.wait()
                reader.gauge.blocked_seconds += self._clock() - began
            self._stop_if_ended()
            if channel.is_empty:
                self._ready.append(reader)
                self._something.notify()
            channel.put(item)
            self._account(bytes_of(item))

    def _wait_until_drained(self, reader: _Reader) -> None:
        with self._lock:
            while not (reader.channel.is_drained or self._has_ended):
                reader.room.wait()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if not self._has_ended:
                self._failure = error
            self._end()

    # -- under the lock -------------------------------------------------------------------------

    def _may_put(self, reader: _Reader, item: Any) -> bool:
        if not reader.channel.has_room(item):
            return False
        if self._pressure is None:
            return True
        is_awaited = reader.name == self._awaited and reader.channel.is_empty
        return self._pressure.may_read(is_awaited=is_awaited)

    def _account(self, size: int) -> None:
        """Count added or removed bytes; resume paused readers when memory allows."""
        if self._pressure is None:
            return
        self._queued_bytes += size
        before, self._pressure = self._pressure, self._pressure.after(self._queued_bytes)
        if before.is_paused and not self._pressure.is_paused:
            for reader in self._open.values():
                reader.room.notify()

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or self._failure is not None

    def _stop_if_ended(self) -> None:
        if self._has_ended:
            raise MergeCancellation

    def _finish_if_drained(self, reader: _Reader) -> None:
        if reader.channel.is_drained:
            reader.gauge.is_finished = True
            self._finished.add(reader.name)
            del self._open[reader.name]
            self._unfinished -= 1
            self._something.notify()

    def _end(self) -> None:
        self._is_closed = True
        self._something.notify_all()
        for reader in self._open.values():
            reader.room.notify_all()


class OneSchema:
    """Compares schemas with the first one, ignoring metadata."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._input = ""

    def check(self, name: str, schema: pa.Schema) -> None:
        """Raise SchemaError if an input's schema differs from the first one."""
        if self._schema is None:
            self._schema, self._input = schema, name
        elif schema is not self._schema and not schema.equals(self._schema):
            raise SchemaError(
                f"the inputs '{self._input}' and '{name}' of a merge have different columns: "
                f"{_difference(self._schema, schema, self._input, name)}.",
                hint="give all inputs the same columns, in the same order and of the same types.",
                input=name,
            )


def _difference(one: pa.Schema, other: pa.Schema, first: str, second: str) -> str:
    for name in one.names:
        if not has_column(other, name):
            return f"'{name}' is only in '{first}'"
    for name in other.names:
        if not has_column(one, name):
            return f"'{name}' is only in '{second}'"
    for mine, theirs in zip(one, other, strict=True):
        if mine.name != theirs.name:
            return f"where '{first}' has '{mine.name}', '{second}' has '{theirs.name}'"
        if not mine.equals(theirs):
            return f"'{mine.name}' is {_describe_field(mine)} in '{first}' and {_describe_field(theirs)} in '{second}'"
    return f"{one.names} and {other.names}"


def _describe_field(field: pa.Field) -> str:
    return str(field.type) if field.nullable else f"{field.type} and never null"


_KEYS = ("mode", "interleave_seed")


class Mode(Enum):
    """Strategy for merging several inputs into one sequence."""

    CONCAT = "concat"
    """One input after the other."""
    INTERLEAVE = "interleave"
    """Live, as items are ready. With a seed, or if live is impossible, in an exact order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """Merge settings.

    Parameters
    ----------
    mode : Mode
        Default: concat.
    seed : int or None
        Seed for a pseudorandom order, from 0 to 2**64 - 1. Ignored by concat.
    """

    mode: Mode = Mode.CONCAT
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < SEED_END):
            raise OptionError.invalid(
                "interleave_seed", self.seed, "a whole number from 0 up to 18446744073709551615"
            )

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> MergeConfig:
        """Return settings from a mapping with the keys ``mode`` and ``interleave_seed``.

        Raises
        ------
        OptionError
            A key is unknown, or a value is invalid.
        """
        for key in record:
            if key not in _KEYS:
                raise OptionError.unknown(key, _KEYS)
        mode = record.get("mode", Mode.CONCAT.value)
        choices = [mode.value for mode in Mode]
        if mode not in choices:
            raise OptionError.not_one_of("mode", str(mode), choices)
        return cls(mode=Mode(mode), seed=record.get("interleave_seed"))

    def order(self, *, is_live: bool = True) -> Order | None:
        """Return the initial order; None: rows are merged as they are ready.

        Parameters
        ----------
        is_live : bool
            Whether the merge can be live (`graph.fusion`). If not, the order is round robin.
        """
        if self.mode is Mode.CONCAT:
            return Concat()
        if self.seed is not None:
            return Seeded(state=self.seed)
        return None if is_live else RoundRobin()
