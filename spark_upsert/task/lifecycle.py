"""Task lifecycle (`step`): the next state and action for each event, as a pure function.

Also the task's lock (`Monitor`) and its counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from threading import Condition, RLock
from types import MappingProxyType
from typing import NamedTuple

from spark_upsert.errors import TaskError


class Phase(Enum):
    """A task's lifecycle phase."""

    OPEN = "open"
    UNDER_BARRIER = "under a barrier"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def is_running(self) -> bool:
        """Whether it may still give rows."""
        return self in (Phase.OPEN, Phase.UNDER_BARRIER)


class Action(Enum):
    """The action required by an event."""

    NOTHING = auto()
    QUEUE = auto()
    """The split is appended to its leaf's queue."""
    PASS_BY = auto()
    """The split is not read."""
    BEGIN_BARRIER = auto()
    JOIN_BARRIER = auto()
    ALREADY_OVER = auto()
    """The barrier's future is completed immediately."""
    END_BARRIER = auto()
    END_LEAF = auto()
    RELEASE = auto()
    """Close everything, and complete the barrier's futures."""


_NO_MARKS: Mapping[str, int] = MappingProxyType({})


class State(NamedTuple):
    """The lifecycle table's state.

    Parameters
    ----------
    leaves : frozenset of str
        The nodes taking splits.
    ended : frozenset of str
        The leaves without further splits.
    marks : mapping of str to int
        Each leaf's highest completed split number, where one was reported.
    barriers : int
        Barriers begun; a request joining one does not count.
    """

    leaves: frozenset[str]
    phase: Phase = Phase.OPEN
    ended: frozenset[str] = frozenset()
    marks: Mapping[str, int] = _NO_MARKS
    barriers: int = 0


class AddSplit(NamedTuple):
    """Adds a split to a leaf, with or without a sequence number."""

    leaf: str
    sequence: int | None = None


class ReadSplit(NamedTuple):
    """Adds a split and a barrier right after it: most reads' two events combined."""

    leaf: str


class SetMark(NamedTuple):
    """Marks a leaf's splits up to a number as done."""

    leaf: str
    sequence: int


class NoMoreSplits(NamedTuple):
    """A leaf gets no more."""

    leaf: str


class Plain(Enum):
    """Events without parameters."""

    REQUEST_BARRIER = auto()
    PULL = auto()
    ALL_DRAINED = auto()
    ALL_ENDED = auto()
    FAIL = auto()
    ABORT = auto()


Event = AddSplit | ReadSplit | SetMark | NoMoreSplits | Plain


def step(state: State, event: Event) -> tuple[State, Action]:
    """Return the next state and the required action; pure.

    ==================  =========================  ==============  =========
    event               open                       under barrier   over
    ==================  =========================  ==============  =========
    add a split         queue it [1]_              refuse          ignore
    read a split        queue, begin one [3]_      refuse          refuse
    set the mark        it only rises              it only rises   nothing
    no more splits      end the leaf [2]_          end the leaf    nothing
    request a barrier   begin one [3]_             join it         over already
    pull                refuse [4]_                pull            refuse
    all have drained                               end it
    all have ended      end, and release           the same        nothing
    fail, abort         release                    release         nothing
    ==================  =========================  ==============  =========

    .. [1] Refuse it if the leaf has no more; ignore it if its number is not above the leaf's mark.
    .. [2] After the queued splits and the barrier. .. [3] Refuse it if a leaf has no more. .. [4]
    Unless no leaf gets more splits: then there is an end to pull to.

    *Release* completes the barrier's futures, so that no caller waits forever.
    """
    match event, state.phase:
        # A small split's two events first: patterns are tried one after the other.
        case ReadSplit(), Phase.OPEN:
            _require_no_end(state)
            return _at(state, Phase.UNDER_BARRIER, state.barriers + 1), Action.QUEUE
        case Plain.ALL_DRAINED, Phase.UNDER_BARRIER:
            return _at(state, Phase.OPEN), Action.END_BARRIER
        case ReadSplit() | AddSplit(), Phase.UNDER_BARRIER:
            raise _split_under_barrier(event.leaf)
        case AddSplit(leaf=leaf, sequence=sequence), Phase.OPEN:
            if leaf in state.ended:
                raise _leaf_has_ended(leaf, "a split was added")
            is_done = sequence is not None and sequence <= state.marks.get(leaf, sequence - 1)
            return state, Action.PASS_BY if is_done else Action.QUEUE
        case AddSplit(), _:
            return state, Action.PASS_BY
        case ReadSplit(), _:
            raise _is_over(state.phase)

        case SetMark(leaf=leaf, sequence=sequence), Phase.OPEN | Phase.UNDER_BARRIER:
            mark = max(sequence, state.marks.get(leaf, sequence))
            marks = MappingProxyType({**state.marks, leaf: mark})
            return state._replace(marks=marks), Action.NOTHING

        case NoMoreSplits(leaf=leaf), Phase.OPEN | Phase.UNDER_BARRIER:
            return state._replace(ended=state.ended | {leaf}), Action.END_LEAF

        case Plain.REQUEST_BARRIER, Phase.OPEN:
            _require_no_end(state)
            return _at(state, Phase.UNDER_BARRIER, state.barriers + 1), Action.BEGIN_BARRIER
        case Plain.REQUEST_BARRIER, Phase.UNDER_BARRIER:
            return state, Action.JOIN_BARRIER
        case Plain.REQUEST_BARRIER, _:
            return state, Action.ALREADY_OVER

        case Plain.PULL, Phase.OPEN if state.ended != state.leaves:
            raise _nothing_to_pull(state)
        case Plain.PULL, Phase.FINISHED | Phase.FAILED | Phase.ABORTED:
            raise _is_over(state.phase)

        case Plain.ALL_ENDED, Phase.OPEN | Phase.UNDER_BARRIER:
            return _at(state, Phase.FINISHED), Action.RELEASE
        case Plain.FAIL, Phase.OPEN | Phase.UNDER_BARRIER:
            return _at(state, Phase.FAILED), Action.RELEASE
        case Plain.ABORT, Phase.OPEN | Phase.UNDER_BARRIER:
            return _at(state, Phase.ABORTED), Action.RELEASE
    return state, Action.NOTHING


def _at(state: State, phase: Phase, barriers: int | None = None) -> State:
    # By its constructor: `_replace` takes longer than all else of a small split's barrier.
    count = state.barriers if barriers is None else barriers
    return State(state.leaves, phase, state.ended, state.marks, count)


def _require_no_end(state: State) -> None:
    if state.ended:
        raise _leaf_has_ended(min(state.ended), "a barrier was requested")


def _split_under_barrier(leaf: str) -> TaskError:
    return TaskError(
        f"node '{leaf}': a split was added under a barrier, which is not over.",
        hint="pull until the barrier is reached, then add it: it belongs to the next one.",
        node=leaf,
    )


def _leaf_has_ended(leaf: str, what: str) -> TaskError:
    return TaskError(
        f"node '{leaf}': {what}, but no more splits were to come.",
        hint="call `no_more_splits` behind the last barrier; a new task takes more.",
        node=leaf,
    )


def _nothing_to_pull(state: State) -> TaskError:
    open_ = ", ".join(sorted(state.leaves - state.ended))
    return TaskError(
        f"rows were pulled, but there is no barrier, and {open_} may get more splits.",
        hint="call `request_barrier`, or `no_more_splits` for each leaf.",
    )


def _is_over(phase: Phase) -> TaskError:
    return TaskError(
        f"rows were pulled from a task that is {phase.value}.", hint="make a new task."
    )


class Monitor:
    """A task's lock, and its change counter.

    A waiter reads the counter before it looks for work and sleeps only while the counter is
    unchanged: no wake-up is lost.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._condition = Condition(self.lock)
        self._waiting: list[Future[None]] = []
        self._asleep = 0
        self.changes = 0
        """How often something has changed."""

    def notify(self) -> None:
        """Note a change: wake up all waiting threads and fulfil all futures."""
        with self.lock:
            self.changes += 1
            if self._asleep:
                self._condition.notify_all()
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set_result(None)

    def wait(self, seen: int) -> None:
        """Wait until something has changed since a count."""
        with self.lock:
            self._asleep += 1
            while self.changes == seen:
                self._condition.wait()
            self._asleep -= 1

    def future(self, seen: int) -> Future[None]:
        """Return a future, done once something has changed since a count."""
        future: Future[None] = Future()
        with self.lock:
            if self.changes == seen:
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future


HISTOGRAM_SECONDS = 30
"""Buckets for barrier durations, one per second; the last one includes all longer barriers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCounts:
    """Split counts; barriers are not included.

    Parameters
    ----------
    total : int
        Added.
    queued : int
        Not begun.
    finished : int
        Read to their end, or dropped because the plan needs no more of their rows.
    """

    total: int = 0
    queued: int = 0
    finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts for a task's work so far.

    Parameters
    ----------
    barriers : int
        Begun.
    splits : SplitCounts
    rows : int
        Returned to the pulling caller.
    histogram : tuple of int
        Barrier counts by duration from request to end: 0 to 1 seconds, 1 to 2, and so on.
    """

    barriers: int
    splits: SplitCounts
    rows: int
    histogram: tuple[int, ...]


class Histogram:
    """Counts of durations, second by second."""

    def __init__(self) -> None:
        self._counts = [0] * HISTOGRAM_SECONDS

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[min(max(int(seconds), 0), HISTOGRAM_SECONDS - 1)] += 1

    def counts(self) -> tuple[int, ...]:
        """Return the counts."""
        return tuple(self._counts)
