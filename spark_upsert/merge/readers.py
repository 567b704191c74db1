"""The threads of a merge: each reads one input into its channel, and waits while that is full.

At most `width` inputs are open at once, each with a thread and a channel. An input counts as open
until all of it was taken; only then does its thread open the next one, in the order in which they
were declared. So between the inputs and the consumer there are never more than

    width * (capacity + batch)

events: full channels, and a batch in the hand of each reader, as large as its input makes it
(`portions`).

There is one lock, and nothing is polled: a reader waits for room in its own channel, and the
consumer waits for any event. A failed input and a closed merge wake all waiting threads. A reader
with a silent input cannot be woken; it is a daemon, closing waits for it no longer than
`join_seconds`, and it ends as soon as its input gives something or the process ends.

Rejected: a `queue.Queue` per input. Its waits end by a time-out only, a thread cannot wait for many
of them at once, and it counts batches where the bound is one of rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from threading import Condition, RLock, Thread, current_thread
from types import TracebackType
from typing import Any, NamedTuple

from spark_upsert.errors import about
from spark_upsert.merge.channel import CHANNEL_EVENTS, Channel, bytes_of, events_of
from spark_upsert.merge.counters import Gauge, MergeCounters
from spark_upsert.merge.pressure import MemoryPressure, Relief
from spark_upsert.model.portions import BATCH_BYTES, HAND_OFF_ROWS, portions

WIDTH = 16
"""Inputs that are open at once: enough to hide the latency of a store, few enough to be threads."""

JOIN_SECONDS = 1.0
"""The time that closing waits for readers of inputs that may be silent."""

OpenInput = Callable[[], Iterator[Any]]
"""A callable that opens an input, in the thread that will read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of reading ahead in a merge.

    Parameters
    ----------
    width : int
        Inputs that are open at once.
    capacity : int
        Events of each open input that are queued.
    batch_rows : int
        Rows of a batch that is handed over; never more than fit into a channel.
    batch_bytes : int
        Bytes of such a batch; a batch of a single row may have more.
    memory_bytes : int or None
        Bytes of all inputs together that are queued. Above 0.80 of this all readers pause, below
        0.70 they go on (`pressure`); each may add the batch that it has in its hand.
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
        """Yield an item in portions that may be handed over; no copy is made."""
        if getattr(item, "num_rows", None) is None:
            yield item
            return
        most = min(self.batch_rows, self.capacity)
        yield from portions(item, rows_max=most, bytes_max=self.batch_bytes)


class Delivery(NamedTuple):
    """A batch or a mark that a merge hands over, with the name of its input.

    Its row count and bytes are those of its item, so that it may pass another channel.
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


class Cancelled(Exception):
    """The merge was closed while a thread waited in it."""


class _Reader:
    """An open input."""

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
    """The readers of all inputs of a merge: a context that starts their threads, and ends them.

    Parameters
    ----------
    inputs : mapping of str to callable
        Each opens an input: an iterator of batches, and of marks if there are any. Its thread
        closes it by its ``close``, if it has one.
    bounds : Bounds
        How much is read ahead.
    counters : Counters or None
        Where the inputs are counted.
    join_seconds : float
        How long leaving waits for threads of silent inputs.
    clock : callable
        Seconds, for the time that readers are blocked.
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
        """Readers with something queued: the first is served next, and then goes to the end."""
        self._queued_bytes = 0
        self._pressure = (
            None
            if bounds.memory_bytes is None
            else MemoryPressure(limit_bytes=bounds.memory_bytes, relief=Relief.PAUSE)
        )
        self._awaited: str | None = None
        """The input that the consumer waits for while nothing of it is queued."""
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
        """End all threads, and wake those that wait. Twice is harmless."""
        with self._lock:
            self._end()
        if current_thread() in self._threads:
            return  # This thread may have the lock, for which others wait before they end.
        deadline = time.monotonic() + self._join_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the consumer ---------------------------------------------------------------------------

    def take_ready(self) -> Delivery | None:
        """Wait until any input has something, and return it with the name; None: all have ended.

        Raises
        ------
        Exception
            The error of an input that failed; it names the input (`about`). It is raised at
            once, whatever others have queued.
        Cancelled
            Another thread closed the merge.
        """
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
        """Wait until one input has something, and return it; None: it has ended.

        Inputs are asked for in the order in which they were declared, each to its end. Raises as
        `take_ready` does.
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
        """Let a paused input go on: it is the only one that can make room."""
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
            raise Cancelled

    # -- the readers ----------------------------------------------------------------------------

    def _work(self) -> None:
        """Read one input after the other, as long as there are any."""
        try:
            while (reader := self._open_next()) is not None:
                with about("input", reader.name):
                    self._read(reader)
                self._wait_until_drained(reader)
        except Cancelled:
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
                reader.gauge.taken(events_of(item))
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
        """Count bytes that came or went, and let paused readers go on when memory allows."""
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
            raise Cancelled

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
