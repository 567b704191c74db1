"""Threads for one call: parallel work in order, batch bounds for merges, and shared calls.

A Spark task has one core and uses one thread.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask
from spark_upsert.errors import ContentionError

In = TypeVar("In")
Out = TypeVar("Out")


ROWS_PER_THREAD = 1 << 14
"""Minimum rows per thread: handing over fewer takes longer than processing them."""


def useful_threads(rows: int, threads: int) -> int:
    """Return how many threads pay off for a row count, from 1 to ``threads``."""
    return max(1, min(threads, rows // ROWS_PER_THREAD))


def map_in_order(function: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Apply a function to each item on several threads; yield results in item order."""
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Out]] = deque()
        for item in items:
            if len(waiting) == threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(copy_context().run, function, item))
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def run_in_background(work: Callable[[], Out], *, rows: int) -> Iterator[Callable[[], Out]]:
    """Run work in a thread during the block; yield a function that waits for its result.

    For work that mostly waits for storage, which a task with one core should start early. With
    fewer rows than `ROWS_PER_THREAD`, the yielded function runs the work itself. The block ends
    after the work, which runs in the caller's context.
    """
    if rows < ROWS_PER_THREAD:
        yield work
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(copy_context().run, work).result


HAND_OFF_ROWS = 2048
"""Maximum rows per batch: the overhead is small by then, and the batch still fits the cache."""

BATCH_BYTES = 1 << 20
"""Maximum bytes per batch; above 512 bytes a row, the tighter bound."""


def split_batch(
    batch: Any, *, rows_max: int = HAND_OFF_ROWS, bytes_max: int = BATCH_BYTES
) -> Iterator[Any]:
    """Yield a batch in slices within both bounds, without a copy; nothing if it is empty.

    A single row may exceed ``bytes_max``. A slice keeps its batch in memory, so a producer must
    bound its own batches.
    """
    rows, size = batch.num_rows, batch.nbytes
    most = rows_within(bytes_max, size, rows, rows_max=rows_max)
    if rows <= most:
        if rows:
            yield batch
        return
    for start in range(0, rows, most):
        part = batch.slice(start, most)
        if part.num_rows == 1 or part.nbytes <= bytes_max:
            yield part
        else:  # Some rows are larger than others.
            yield from split_batch(part, rows_max=-(-part.num_rows // 2), bytes_max=bytes_max)


def rows_within(bytes_max: int, size: int, rows: int, *, rows_max: int = HAND_OFF_ROWS) -> int:
    """Return how many rows fit into ``bytes_max``, at least 1.

    ``size`` is the byte count for ``rows`` rows; the result is at most ``rows_max``.
    """
    if size <= bytes_max:
        return rows_max
    return max(1, min(rows_max, bytes_max * rows // size))


SLICE_S = 0.0005
"""Seconds without a new call after which a waiting leader executes its batch."""

WAITING_MAX = 4096
"""Maximum waiting calls; further callers block. Each is a thread and holds its rows."""


@dataclass(eq=False, slots=True)
class _Ticket(Generic[In, Out]):
    """A waiting call."""

    call: In
    is_leading: bool = False
    is_done: bool = False
    outcome: Out | None = None
    error: BaseException | None = None
    woken: threading.Event = field(default_factory=threading.Event)


class SharedCalls(Generic[In, Out]):
    """A queue in which the first caller executes calls for several threads. Thread-safe.

    The first caller, the *leader*, executes its call and all that arrived meanwhile as one *batch*.
    Then the first call still waiting leads. A lone caller never waits. If another call waits, the
    leader waits for more until none arrived for `SLICE_S` or its window is over.

    Source: group commit in LevelDB, ``DBImpl::Write``; window and slices as in slopus/topics.

    Parameters
    ----------
    carry_out : callable
        Takes a batch of calls in arrival order and returns an outcome for each. Two threads never
        call it at the same time. Each caller in the batch gets its exception.
    joins : callable
        Takes a batch's calls and the next call, and returns whether that joins them; if not, the
        batch ends before it.
    window_s : callable, optional
        Returns a leader's maximum wait for more calls, if it is not alone.
    clock, wait : callable, optional
        The clock is monotonic; ``wait(arrived, seconds)`` waits for another call and returns
        whether one arrived.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[In]], Sequence[Out]],
        *,
        joins: Callable[[Sequence[In], In], bool] = lambda _batch, _call: True,
        window_s: Callable[[], float] = lambda: SLICE_S,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Condition, float], bool] = threading.Condition.wait,
    ) -> None:
        self._carry_out = carry_out
        self._joins = joins
        self._window_s = window_s
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._waiting: deque[_Ticket[In, Out]] = deque()
        self._is_led = False
        self._leader: int | None = None
        """Identifier of the thread that executes a batch; None if there is none."""

    @property
    def waiting_count(self) -> int:
        """Number of waiting calls, without those being executed."""
        return len(self._waiting)

    def call(self, call: In) -> Out:
        """Execute a call, in this thread or an earlier caller's, and return its outcome."""
        if self._leader == threading.get_ident():
            # Called from within a batch: no other thread would execute it.
            return self._carry_out([call])[0]
        ticket: _Ticket[In, Out] = _Ticket(call)
        try:
            self._enqueue(ticket)
            if not ticket.is_leading:
                ticket.woken.wait()
        except BaseException:  # This thread was interrupted, and waits no more.
            self._withdraw(ticket)
            raise
        if not ticket.is_done:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket.outcome  # type: ignore[return-value]  # Done and no error: it has one.

    def _enqueue(self, ticket: _Ticket[In, Out]) -> None:
        """Append a call, which leads if no other does; blocks while the queue is full."""
        with self._lock:
            while len(self._waiting) >= WAITING_MAX:
                self._not_full.wait()
            self._waiting.append(ticket)
            if self._is_led:
                self._arrived.notify()
            else:
                self._is_led = ticket.is_leading = True

    def _withdraw(self, ticket: _Ticket[In, Out]) -> None:
        """Withdraw a call that no leader has started."""
        with self._lock:
            if ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
            self._not_full.notify()
            if ticket.is_leading:
                self._wake_next_leader()

    def _lead(self) -> None:
        """Execute a batch that starts with this thread's call."""
        batch: list[_Ticket[In, Out]] = []
        try:
            with self._lock:
                self._wait_for_calls()
                batch = self._take_batch()
                self._leader = threading.get_ident()
            outcomes = self._carry_out([ticket.call for ticket in batch])
            assert len(outcomes) == len(batch)
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.outcome = outcome
        except BaseException as error:
            for ticket in batch[1:]:
                ticket.error = copy_error_for_thread(error)
            raise
        finally:
            with self._lock:
                self._leader = None
                if not batch:  # Interrupted before it began.
                    self._waiting.popleft()
                self._wake_next_leader()
            for ticket in batch:
                ticket.is_done = True
                ticket.woken.set()

    def _wait_for_calls(self) -> None:
        """Wait up to the window for more calls, unless this call is alone."""
        if len(self._waiting) == 1:
            return
        end_s = self._clock() + self._window_s()
        while (left_s := end_s - self._clock()) > 0:
            if not self._wait(self._arrived, min(SLICE_S, left_s)):
                return

    def _take_batch(self) -> list[_Ticket[In, Out]]:
        """Remove the next batch from the queue: the first call and those that join it."""
        batch = [self._waiting.popleft()]
        calls = [batch[0].call]
        while self._waiting and self._joins(calls, self._waiting[0].call):
            batch.append(self._waiting.popleft())
            calls.append(batch[-1].call)
        self._not_full.notify(len(batch))
        return batch

    def _wake_next_leader(self) -> None:
        """Make the first waiting call the leader."""
        self._is_led = bool(self._waiting)
        if self._waiting:
            self._waiting[0].is_leading = True
            self._waiting[0].woken.set()


def copy_error_for_thread(error: BaseException) -> Exception:
    """Return one thread's error in a form that another thread can raise.

    Each thread raises its own copy, because a traceback grows at every raise. An interrupt becomes
    a `ContentionError`.
    """
    if isinstance(error, Exception):
        try:
            copied = copy.copy(error)
        except Exception:  # noqa: BLE001 - an error of others may not be made to be copied
            return error
        copied.__cause__ = error
        return copied
    unknown = ContentionError(
        "the thread that carried out this call for others was interrupted "
        f"({type(error).__name__}); whether it took effect cannot be told from here.",
        hint="do it again, if that does no harm: an append with a transaction is applied once, "
        "however often it is repeated.",
    )
    unknown.__cause__ = error
    return unknown


_CONTINUATION_BELOW = -64
"""Upper bound for UTF-8 continuation bytes as signed integers; ASCII bytes are positive."""

_FEW_ROWS = 4096
"""Row count below which Arrow's check of each row is faster than our set-up."""


def is_plain(type_: pa.DataType) -> bool:
    """Return whether every bit pattern is a valid value for the type."""
    types = pa.types
    return bool(
        types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_date(type_)
        or types.is_timestamp(type_)
        or types.is_duration(type_)
    )


def require_sound(array: pa.Array) -> None:
    """Raise `pyarrow.ArrowInvalid` for an invalid array; its buffers must be long enough."""
    type_ = array.type
    if is_plain(type_):
        return
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        if len(array) < _FEW_ROWS or not _is_sound_text(array):
            array.validate(full=True)
    elif pa.types.is_list(type_) and not array.offset:
        if not _ascend(_offsets(array), len(array.values)):
            raise pa.ArrowInvalid("offsets of lists that are not in order")
        require_sound(array.values)
    elif pa.types.is_struct(type_) and not array.offset:
        for index in range(type_.num_fields):
            require_sound(array.field(index))
    else:
        array.validate(full=True)


def is_sound(array: pa.Array) -> bool:
    """Return whether all values in an array are valid for its type (`require_sound`)."""
    try:
        require_sound(array)
    except pa.ArrowInvalid:
        return False
    return True


def unsound_rows(array: pa.Array) -> Mask:
    """Return a mask of invalid values in an array that is not nested.

    Halves are validated until each invalid value is isolated: the step count depends on the number
    of invalid values.
    """
    unsound = np.zeros(len(array), dtype=np.bool_)
    waiting = [(0, len(array))]
    while waiting:
        first, end = waiting.pop()
        if is_sound(array.slice(first, end - first)):
            continue
        if end - first == 1:
            unsound[first] = True
            continue
        half = (first + end) // 2
        waiting += [(first, half), (half, end)]
    return unsound


def require_offsets(array: pa.Array) -> None:
    """Raise `pyarrow.ArrowInvalid` if list or map offsets are not in ascending order."""
    types = pa.types
    if types.is_list(array.type) or types.is_map(array.type) or types.is_large_list(array.type):
        offsets = np.asarray(array.offsets)
        if bool((offsets[1:] < offsets[:-1]).any()) or (len(offsets) and offsets[0] < 0):
            raise pa.ArrowInvalid("offsets of lists that are not in order")
    elif types.is_list_view(array.type) or types.is_large_list_view(array.type):
        array.validate(full=True)


def _offsets(array: pa.Array) -> npt.NDArray[np.uint32]:
    """Return each value's start and the last value's end."""
    # As they are never negative, a sign would make them too large.
    everything = np.frombuffer(
        array.buffers()[1], dtype=np.uint32, count=array.offset + len(array) + 1
    )
    return everything[array.offset :]


def _ascend(offsets: npt.NDArray[np.uint32], limit: int) -> bool:
    return bool((offsets[1:] >= offsets[:-1]).all()) and int(offsets[-1]) <= limit


def _is_sound_text(array: pa.Array) -> bool:
    """Return whether all texts are certainly valid; False means that a full check is needed.

    The bytes are validated as one text, and each text must start at a character.
    """
    data, offsets = array.buffers()[2], _offsets(array)
    if not _ascend(offsets, 0 if data is None else data.size):
        return False
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last or pa.types.is_binary(array.type):
        return True
    assert data is not None, "offsets above zero lie within the data"
    data_bytes = np.frombuffer(data, dtype=np.int8)
    if data_bytes[first:last].min() >= 0:
        return True
    ends = pa.py_buffer(np.array([0, last - first], dtype=np.int32))
    value = pa.Array.from_buffers(pa.string(), 1, [None, ends, data.slice(first, last - first)])
    try:
        value.validate(full=True)
    except pa.ArrowInvalid:
        return False
    begins = offsets[: np.searchsorted(offsets, np.uint32(last))]
    return not bool((data_bytes[begins] < _CONTINUATION_BELOW).any())


SHOWN_CHARS = 60
"""Maximum characters in a quoted text."""


class Undecodable(Exception):
    """A value does not match its declared type; decoders catch it."""


def shorten(text: str) -> str:
    """Shorten a text to `SHOWN_CHARS` characters for an error message."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


class QuotedValue:
    """A value's bounded ``repr`` for errors; works for integers too long for Python's own."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        try:
            return shorten(repr(self._value))
        except ValueError:  # Python prints no integer of more than 4300 digits.
            return f"a value of type {type(self._value).__name__}"


class Rounding(Enum):
    """Rule for digits that exceed a type's scale."""

    EXACT = "exact"
    """A number with such digits does not fit."""
    HALF_UP = "half_up"
    """To the nearest, halves away from zero: SQL's casts to decimals, and ROUND."""
    DOWN = "down"
    """Toward zero: SQL's casts to integers."""
    CEILING = "ceiling"
    FLOOR = "floor"
