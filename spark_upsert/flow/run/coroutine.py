"""A coroutine over a function that takes batches by iterating: batches can be handed to it.

The caller that hands a batch over gets what the function yields until it asks for the next one; so
operators of one processing element call each other, whatever they are. The function has a thread of
its own, which works only while the caller waits: one of the two runs at any time, and the same
batches give the same results in the same order. A hand-over takes some tens of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from threading import Semaphore, Thread
from typing import TypeAlias

import pyarrow as pa

Overs: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

JOIN_SECONDS = 60.0
"""How long closing waits for a function that does not come back; its thread is a daemon."""


class _Says(Enum):
    IS_HUNGRY = "is hungry"
    HAS_ENDED = "has ended"


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class _Abandoned(BaseException):
    """Ends a function that gets no more input; no `except Exception` stops it."""


class Coroutine:
    """One call of the function: from its first batch to the end of its input."""

    def __init__(self, function: Overs) -> None:
        self._function = function
        self._given: pa.RecordBatch | None = None
        self._said: pa.RecordBatch | _Says | _Failed = _Says.HAS_ENDED
        self._is_abandoned = False
        self._may_work = Semaphore(0)
        self._may_go_on = Semaphore(0)
        self._thread: Thread | None = None

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what the function gives before it asks for another batch.

        A batch that it does not ask for, because it has ended by itself, is left out.
        """
        yield from self._started()
        assert isinstance(self._said, _Says), "what followed from the batch before was not taken"
        if self._said is _Says.IS_HUNGRY:
            yield from self._outputs(batch)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest, behind the end of the input."""
        yield from self._started()
        if self._said is _Says.IS_HUNGRY:
            yield from self._outputs(None)

    def close(self) -> None:
        """End the function where it waits; nothing, if it has ended."""
        if self._thread is not None:
            self._is_abandoned = True
            self._may_work.release()
            self._thread.join(JOIN_SECONDS)

    # -- the caller's thread

    def _started(self) -> Iterator[pa.RecordBatch]:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="operator of a flow", daemon=True)
            self._thread.start()
            yield from self._outputs(None)

    def _outputs(self, given: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        while True:
            self._given = given
            self._may_work.release()
            self._may_go_on.acquire()
            if isinstance(self._said, _Failed):
                raise _as_failure(self._said.error)
            if isinstance(self._said, _Says):
                return
            yield self._said

    # -- the function's thread

    def _work(self) -> None:
        self._may_work.acquire()
        said: _Says | _Failed = _Says.HAS_ENDED
        try:
            if not self._is_abandoned:
                for batch in self._function(self._batches()):
                    self._say(batch)
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001  (raised where the batch was handed over)
            said = _Failed(error)
        self._said = said
        self._may_go_on.release()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._say(_Says.IS_HUNGRY)) is not None:
            yield batch

    def _say(self, what: pa.RecordBatch | _Says) -> pa.RecordBatch | None:
        """Let the caller go on, and wait until it is the function's turn again."""
        self._said = what
        self._may_go_on.release()
        self._may_work.acquire()
        if self._is_abandoned:
            raise _Abandoned
        return self._given


def _as_failure(error: BaseException) -> Exception:
    """Return the error of a function; one that would end a thread or the process is wrapped."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"it ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
