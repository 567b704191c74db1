"""Polling of many inputs in the background (`Poller`), within two budgets (`PollSchedule`).

The planner only reads memory. No head goes back, and an input's error is raised where batches are
planned, with its name (docs/adr/0029).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from spark_upsert.errors import StorageError, about
from spark_upsert.streams.inputs.inputs import Heads, Inputs, PolledInputs, SeenHeads
from spark_upsert.streams.inputs.protocol import Backlog, PollResult
from spark_upsert.streams.offsets.offset import Position

GAP_SHARE = 0.1

LEAST_S = 0.05
"""Minimum polling interval; micro-batches take longer."""

MOST_S = 30.0
"""Default maximum polling interval for an idle input in object storage."""

MOST_LOCAL_S = 0.5
"""Default maximum polling interval on a file system: a poll takes about 30 microseconds."""

REQUESTS_PER_S = 200.0
"""Default request budget in object storage: about 100 dollars a month."""

BUSY_SHARE = 0.2
"""Processor share for polls; the batch planner uses the same processor."""

RETRIES = 3
"""Consecutive storage failures tolerated per input before an error is reported."""

_BURST_S = 0.1
"""Seconds for which an unused budget accumulates; that amount may be spent in one step."""

_COST_WEIGHT = 0.05
"""Weight per poll in the moving average for processor time."""

_ENTRIES_SPARE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBounds:
    """Polling interval bounds, and resource limits per second."""

    least_s: float = LEAST_S
    most_s: float = MOST_LOCAL_S
    requests_per_s: float | None = None
    """None: unlimited."""
    busy_share: float = BUSY_SHARE

    @classmethod
    def of(cls, *, is_remote: bool, most_ms: int | None, requests_per_s: int | None) -> PollBounds:
        """Return the bounds from options, with defaults for None."""
        most_s = MOST_S if is_remote else MOST_LOCAL_S
        if most_ms is not None:
            most_s = most_ms / 1000
        if requests_per_s is None:
            requests = REQUESTS_PER_S if is_remote else None
        else:
            requests = float(requests_per_s) or None
        return cls(least_s=min(LEAST_S, most_s), most_s=most_s, requests_per_s=requests)


@dataclass(slots=True)
class Budget:
    """A token bucket with a rate per second; an overdraft must be paid back before the next use."""

    rate: float
    _left: float = 0.0
    _at_s: float = -math.inf

    def __post_init__(self) -> None:
        self._left = self.rate * _BURST_S

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until tokens are available; 0 if some are."""
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(self.rate * _BURST_S, self._left + self.rate * passed_s)
        self._at_s = now_s
        return 0.0 if self._left > 0 else -self._left / self.rate + 1e-3

    def spend(self, amount: float) -> None:
        """Spend tokens; the balance may become negative."""
        self._left -= amount


@dataclass(slots=True)
class _PollState:
    """Polling state for one input."""

    due_s: float
    moved_s: float
    gap_s: float
    """Average time between its observed changes."""
    began_s: float
    """Start time for its last poll, finished or not."""
    failures: int = 0
    is_under_way: bool = False


@dataclass
class PollSchedule:
    """Decides which inputs are due for a poll. Not thread-safe.

    Two budgets bound all polls: requests, and processor time. Idle inputs get at most half, so two
    polls for one input are at most ``most_s`` and one round over all inputs apart.

    Parameters
    ----------
    bounds : PollBounds
    """

    bounds: PollBounds
    requests: int = 0
    """Storage requests so far."""
    poll_count: int = 0
    _known: dict[str, _PollState] = field(default_factory=dict)
    _due: list[tuple[float, str]] = field(default_factory=list)
    """A heap; entries differing from their input's due time are stale."""
    _busy_s: float = 0.0
    """Average processor time per poll."""

    def __post_init__(self) -> None:
        rate = self.bounds.requests_per_s
        self._request_budget = None if rate is None else Budget(rate)
        self._time_budget = Budget(self.bounds.busy_share)

    @property
    def names(self) -> Set[str]:
        """The polled inputs."""
        return self._known.keys()

    @property
    def rate(self) -> float:
        """Polls per second allowed by the budgets, estimated."""
        by_time = self.bounds.busy_share / self._busy_s if self._busy_s else math.inf
        return min(by_time, self.bounds.requests_per_s or math.inf)

    @property
    def most_s(self) -> float:
        """Maximum polling interval for an idle input."""
        return max(self.bounds.most_s, 2 * len(self._known) / self.rate)

    def add_all(self, names: list[str], now_s: float) -> None:
        """Add just polled inputs; their due times are spread evenly."""
        most_s = max(self.bounds.most_s, 2 * len(names) / self.rate)
        for index, name in enumerate(names):
            self._known[name] = _PollState(
                due_s=now_s + most_s * (index + 1) / len(names),
                moved_s=now_s - most_s / GAP_SHARE,
                gap_s=most_s / GAP_SHARE,
                began_s=now_s,
            )
        self._due = [(poll.due_s, name) for name, poll in self._known.items()]
        heapify(self._due)

    def add(self, name: str, now_s: float) -> None:
        """Add a not yet polled input; it is due immediately."""
        self._known[name] = _PollState(due_s=now_s, moved_s=now_s, gap_s=0.0, began_s=now_s)
        heappush(self._due, (now_s, name))

    def drop(self, name: str) -> None:
        """Remove an input."""
        self._known.pop(name, None)

    def take_due(self, now_s: float, count_max: int) -> list[str]:
        """Return due inputs, earliest first, and mark them as in progress until `record_poll` or
        `record_failure`.
        """
        due_names: list[str] = []
        if self._budget_wait_s(now_s) > 0:
            return due_names
        while self._due and self._due[0][0] <= now_s and len(due_names) < count_max:
            due_s, name = heappop(self._due)
            poll = self._known.get(name)
            if poll is None or poll.due_s != due_s or poll.is_under_way:
                continue
            poll.is_under_way, poll.began_s = True, now_s
            due_names.append(name)
            if self._request_budget is not None:
                self._request_budget.spend(1)
                if self._request_budget.wait_s(now_s) > 0:
                    break
        return due_names

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until an input may be due; inf: never."""
        first_s = self._due[0][0] - now_s if self._due else math.inf
        return max(0.0, first_s, self._budget_wait_s(now_s))

    def _budget_wait_s(self, now_s: float) -> float:
        of_requests = 0.0 if self._request_budget is None else self._request_budget.wait_s(now_s)
        return max(of_requests, self._time_budget.wait_s(now_s))

    def record_poll(self, name: str, now_s: float, *, has_moved: bool, requests: int = 1) -> float:
        """Record a finished poll and schedule the next one; return the poll's start time."""
        self.poll_count += 1
        self._count_requests(requests)
        poll = self._known[name]
        poll.is_under_way, poll.failures = False, 0
        if has_moved:
            poll.gap_s = (poll.gap_s + max(0.0, now_s - poll.moved_s)) / 2
            poll.moved_s = now_s
        gap_s = max(poll.gap_s, now_s - poll.moved_s)
        self._reschedule(name, poll, now_s + self.interval_s(gap_s))
        return poll.began_s

    def record_failure(self, name: str, now_s: float, *, may_pass: bool, requests: int = 1) -> bool:
        """Record a failed poll; return whether to report its error."""
        self._count_requests(requests)
        poll = self._known[name]
        poll.is_under_way, poll.failures = False, poll.failures + 1
        is_told = not may_pass or poll.failures > RETRIES
        if is_told:
            poll.failures = 0
        self._reschedule(name, poll, now_s + min(self.bounds.most_s, LEAST_S * 2**poll.failures))
        return is_told

    def record_busy_time(self, seconds: float) -> None:
        """Record a poll's processor time."""
        self._time_budget.spend(seconds)
        self._busy_s += (_COST_WEIGHT if self._busy_s else 1.0) * (seconds - self._busy_s)

    def record_listing(self, requests: int, seconds: float) -> None:
        """Record a listing's requests and processor time."""
        self.requests += requests
        self._time_budget.spend(seconds)
        if self._request_budget is not None:
            self._request_budget.spend(requests)

    def interval_s(self, gap_s: float) -> float:
        """Return the polling interval for an average time between changes.

        It is `GAP_SHARE` times that, within the bounds.
        """
        return min(max(self.bounds.least_s, GAP_SHARE * gap_s), self.most_s)

    def _count_requests(self, requests: int) -> None:
        self.requests += requests
        if self._request_budget is not None:
            self._request_budget.spend(requests - 1)  # One was spent when it was taken.

    def _reschedule(self, name: str, each: _PollState, due_s: float) -> None:
        each.due_s = due_s
        heappush(self._due, (due_s, name))
        if len(self._due) > 2 * len(self._known) + _ENTRIES_SPARE:
            self._due = [(poll.due_s, name) for name, poll in self._known.items()]
            heapify(self._due)


THREADS = 4
THREADS_REMOTE = 16
"""An object store responds after about 20 ms, and serves many requests concurrently."""

_CHECKS_AT_ONCE = 16
"""Due inputs per thread and turn: few turns, and no input waits for long."""

_TICK_S = 0.01
"""Minimum pause for idle threads: batches cannot be planned more often."""

_TRANSIENT_ERRORS = (StorageError, OSError)

_FIND_SHARE = 0.05
"""Time share for listings; a listing with ten thousand folders takes about 20 ms."""

_FIND_S = 1.0
_FIND_REMOTE_S = 10.0


class DaemonThreads:
    """Threads working until stopped; they never keep a process alive."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._stopped = threading.Event()
        self._condition = threading.Condition()
        self._turn = threading.Lock()
        self._due_s = 0.0

    def start(self, work: Callable[[], float | None]) -> None:
        """Call ``work`` repeatedly until it returns None; a number is the pause in seconds."""
        for number in range(self._count):
            name = f"upsertflow-discovery-{number}"
            threading.Thread(target=self._work, args=(work,), name=name, daemon=True).start()

    def _work(self, work: Callable[[], float | None]) -> None:
        while not self._stopped.is_set():
            # One thread waits for the due time; the others wait for the lock.
            with self._turn:
                left_s = self._due_s - time.monotonic()
                if left_s > 0 and self._stopped.wait(left_s):
                    return
            rest_s = work()
            if rest_s is None:
                return
            self._due_s = time.monotonic() + rest_s

    def wait(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition is true, with a timeout in seconds."""
        with self._condition:
            self._condition.wait_for(is_over, seconds)

    def notify_all(self) -> None:
        """Wake waiting callers, which test their condition; called by a worker thread."""
        with self._condition:
            self._condition.notify_all()

    def stop(self) -> None:
        """Let the threads end; does not wait for storage requests in progress."""
        self._stopped.set()


@dataclass
class _Listing:
    """Schedule for listings, which find new inputs."""

    least_s: float
    rest_s: float
    due_s: float
    is_under_way: bool = False
    failures: int = 0


@dataclass
class _Sweep:
    """A poll round over all inputs, starting after a set time."""

    asked_s: float
    left: set[str]
    """Inputs not polled since."""
    lists: bool
    """Whether a listing is still missing."""

    @property
    def is_over(self) -> bool:
        return not (self.left or self.lists)


class Poller:
    """Polls inputs in background threads, after all heads were read once.

    Parameters
    ----------
    inputs : PolledInputs
    heads : mapping of str to Position
        From that first read, in input order.
    bounds : PollBounds
    is_remote : bool, optional
        Whether a poll is a network request.
    crew : DaemonThreads
        The polling threads.
    clock, busy_clock : callable, optional
        In seconds; the second one measures the calling thread's processor time.
    """

    def __init__(
        self,
        inputs: PolledInputs,
        heads: Heads,
        bounds: PollBounds,
        *,
        is_remote: bool = False,
        crew: DaemonThreads,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._inputs = inputs
        self._clock = clock
        self._busy_clock = busy_clock
        self._lock = threading.Lock()
        self._schedule = PollSchedule(bounds)
        self._schedule.add_all(list(heads), clock())
        self._seen = SeenHeads(heads)
        self._moved: dict[str, Position | None] = {}
        """Heads changed since the last `cached_heads`; None: the input is gone."""
        self._error: Exception | None = None
        self._sweep: _Sweep | None = None
        find_s = _FIND_REMOTE_S if is_remote else _FIND_S
        self._listing = _Listing(find_s, find_s, clock() + find_s) if inputs.is_dynamic else None
        self._is_stopped = False
        self._crew = crew
        self._crew.start(self.work)

    # -- where batches are planned ---------------------------------------------------

    @property
    def schedule(self) -> PollSchedule:
        """The polling schedule, with request and poll counts."""
        return self._schedule

    def cached_heads(self) -> SeenHeads:
        """Return the cached heads; reads memory only. Raises a reported input error once."""
        with self._lock:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._moved:
                self._seen = self._publication_result()
            elif self._seen.moved:
                # The caller has these heads already: nothing has moved since.
                heads = self._seen.heads
                self._seen = SeenHeads(heads, before=heads, has_same_names=True)
            return self._seen

    def last_heads(self) -> Heads:
        """Return the heads from the last `cached_heads`."""
        return self._seen.heads

    def _publication_result(self) -> SeenHeads:
        before = self._seen.heads
        heads = dict(before)
        comers = False
        for name, head in self._moved.items():
            if head is None:
                heads.pop(name, None)
            else:
                comers |= name not in heads
                heads[name] = head
        moved, self._moved = frozenset(self._moved), {}
        if comers:
            heads = dict(sorted(heads.items()))
        same = not comers and len(heads) == len(before)
        return SeenHeads(heads, before=before, moved=moved, has_same_names=same)

    def wait_for_news(self, asked_s: float, seconds: float) -> bool:
        """Return whether an input changed, or may have changed, before ``asked_s``.

        Waits until all inputs were polled after it, if the intervals allow this within the timeout.
        """
        if self._clock() >= asked_s + seconds:
            return False  # Whatever came: it may come for ever.
        with self._lock:
            if self._has_news:
                return True
            listing = self._listing
            if max(self._schedule.most_s, listing.rest_s if listing else 0.0) > seconds:
                return False
            sweep = _Sweep(asked_s, set(self._schedule.names), listing is not None)
            self._sweep = sweep
        left_s = asked_s + seconds - self._clock()
        self._crew.wait(lambda: self._has_news or sweep.is_over or self._is_stopped, left_s)
        with self._lock:
            self._sweep = None
            return self._has_news

    @property
    def _has_news(self) -> bool:
        return bool(self._moved) or self._error is not None

    def stop(self) -> None:
        """Stop polling. Idempotent."""
        self._is_stopped = True
        self._crew.stop()

    # -- in the threads --------------------------------------------------------------

    def work(self) -> float | None:
        """Poll some due inputs (a callback for `DaemonThreads.start`)."""
        if self._is_stopped:
            return None
        now_s = self._clock()
        with self._lock:
            is_listing = self._try_start_listing(now_s)
            names = [] if is_listing else self._schedule.take_due(now_s, _CHECKS_AT_ONCE)
        if is_listing:
            self._list_inputs()
        for name in names:
            self._poll_input(name)
        if names or is_listing:
            self._crew.notify_all()
        with self._lock:
            now_s = self._clock()
            wait_s = self._schedule.wait_s(now_s)
            if self._listing is not None and not self._listing.is_under_way:
                wait_s = min(wait_s, max(0.0, self._listing.due_s - now_s))
        # Not for long: a poll under way in another thread may be due again by then.
        return min(max(wait_s, _TICK_S), LEAST_S) if wait_s else 0.0

    def _poll_input(self, name: str) -> None:
        busy_s = self._busy_clock()
        polled, failure = None, None
        try:
            polled = self._inputs.poll(name)
        except Exception as error:  # noqa: BLE001  raised by seen()
            failure = error
        busy_s = self._busy_clock() - busy_s
        with self._lock:
            self._schedule.record_busy_time(busy_s)
            if name not in self._schedule.names:
                return  # Meanwhile a listing did not find it.
            if polled is not None:
                self._record_poll(name, polled)
            elif failure is not None:
                may_pass = isinstance(failure, _TRANSIENT_ERRORS)
                if self._schedule.record_failure(name, self._clock(), may_pass=may_pass):
                    self._error = self._error or failure

    def _record_poll(self, name: str, polled: PollResult) -> None:
        has_moved = polled.head is not self._moved.get(name, self._seen.heads.get(name))
        began_s = self._schedule.record_poll(
            name, self._clock(), has_moved=has_moved, requests=polled.requests
        )
        if polled.head is None:
            self._drop(name)
        elif has_moved:
            self._moved[name] = polled.head
        if self._sweep is not None and began_s >= self._sweep.asked_s:
            self._sweep.left.discard(name)

    def _drop(self, name: str) -> None:
        self._schedule.drop(name)
        self._moved[name] = None
        if self._sweep is not None:
            self._sweep.left.discard(name)

    # -- added and removed inputs -----------------------------------------------------

    def _try_start_listing(self, now_s: float) -> bool:
        listing = self._listing
        if listing is None or listing.is_under_way or now_s < listing.due_s:
            return False
        listing.is_under_way = True
        return True

    def _list_inputs(self) -> None:
        """List the inputs: add new ones and drop missing ones."""
        listing = self._listing
        assert listing is not None
        began_s, busy_s = self._clock(), self._busy_clock()
        names, failure = None, None
        try:
            names = self._inputs.list_names()
        except Exception as error:  # noqa: BLE001  raised by seen()
            failure = error
        with self._lock:
            now_s = self._clock()
            listing.rest_s = max(listing.least_s, (now_s - began_s) / _FIND_SHARE)
            listing.due_s, listing.is_under_way = now_s + listing.rest_s, False
            self._schedule.record_listing(
                names.requests if names else 1, self._busy_clock() - busy_s
            )
            if names is not None:
                listing.failures = 0
                self._update_names(names.names, now_s)
                if self._sweep is not None and began_s >= self._sweep.asked_s:
                    self._sweep.lists = False
                return
            listing.failures += 1
            if not isinstance(failure, _TRANSIENT_ERRORS) or listing.failures > RETRIES:
                self._error, listing.failures = self._error or failure, 0

    def _update_names(self, names: Collection[str], now_s: float) -> None:
        for name in names:
            if name not in self._schedule.names:
                self._schedule.add(name, now_s)
                if self._sweep is not None:
                    self._sweep.left.add(name)
        for name in self._schedule.names - set(names):
            self._drop(name)


REST = 4.0
"""Pause between two head reads, as a multiple of the first one's duration.

Head reads take at most a fifth of the time.
"""

PAUSE_MAX_S = 2.5

LOOKED_AT_MAX = 300
"""Maximum inputs whose heads the planner itself reads: that takes about 50 ms, and the query waits."""


class InputHeads:
    """A stream's input heads: read during planning, or polled in the background.

    Parameters
    ----------
    inputs : Inputs
    bounds : PollBounds, optional
        For background polling.
    is_remote : bool, optional
        Whether a poll is a network request.
    clock, busy_clock : callable, optional
        In seconds; never go back (`Poller`).
    sleep : callable, optional
        Waits for some seconds.
    crew : callable, optional
        Creates the polling threads from their number.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        bounds: PollBounds | None = None,
        is_remote: bool = False,
        clock: Callable[[], float] = time.monotonic,
        busy_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
        crew: Callable[[int], DaemonThreads] = DaemonThreads,
    ) -> None:
        self._inputs = inputs
        self._bounds = bounds or PollBounds()
        self._is_remote = is_remote
        self._clock = clock
        self._busy_clock = busy_clock
        self._sleep = sleep
        self._crew = crew
        self._poller: Poller | None = None
        self._seen: SeenHeads | None = None
        self._began_s = self._due_s = 0.0

    @property
    def poller(self) -> Poller | None:
        """The background poller if there are many inputs, else None."""
        return self._poller

    def read_if_due(self) -> SeenHeads:
        """Return the heads as read last, or read them again if due.

        With many inputs, return the poller's cached heads after the first read.
        """
        if self._poller is not None:
            return self._poller.cached_heads()
        if self._seen is None or self._is_due():
            self.read_now()
        assert self._seen is not None
        heads = self._seen.heads
        if len(heads) > LOOKED_AT_MAX and (inputs := self._inputs.as_pollable()) is not None:
            self._poller = Poller(
                inputs,
                heads,
                self._bounds,
                is_remote=self._is_remote,
                crew=self._crew(THREADS_REMOTE if self._is_remote else THREADS),
                clock=self._clock,
                busy_clock=self._busy_clock,
            )
        return self._seen

    def read_now(self) -> Heads:
        """Read all heads now, even if not due."""
        self._began_s = self._clock()
        self._seen = SeenHeads(self._inputs.read_heads())
        self.restart_pause()
        return self._seen.heads

    def restart_pause(self) -> None:
        """Restart the pause before the next head read: work on the last one took until now."""
        now_s = self._clock()
        self._due_s = now_s + REST * (now_s - self._began_s)

    def last_heads(self) -> Heads:
        """Return the last heads read, however old."""
        if self._poller is not None:
            return self._poller.last_heads()
        return self.read_now() if self._seen is None else self._seen.heads

    def _is_due(self) -> bool:
        left_s = self._due_s - self._clock()
        if 0 < left_s <= PAUSE_MAX_S:
            self._sleep(left_s)
            return True
        return left_s <= 0

    def now_s(self) -> float:
        """Return the start time for `wait_for_news`."""
        return self._clock()

    def wait_for_news(self, asked_s: float, until_s: float = inf) -> bool:
        """Return whether to read the heads again, because an input changed.

        Rows existing at ``asked_s`` should be in the next batch. Waits at most `PAUSE_MAX_S`;
        returns False immediately without a poller.
        """
        if self._poller is None:
            return False
        return self._poller.wait_for_news(asked_s, min(PAUSE_MAX_S, until_s - asked_s))

    def stop(self) -> None:
        """Stop background polling. Idempotent."""
        if self._poller is not None:
            self._poller.stop()


class Backlogs:
    """Queries inputs for their backlogs and remembers which ones are idle.

    An input without a backlog is queried again only when its head or the stream's position changes.
    Heads are compared as objects: a recreated table may have an equal one.

    Parameters
    ----------
    inputs : Inputs
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._standing: Mapping[str, Position] | None = None
        self._planned: Mapping[str, Position] | None = None
        self._heads: Heads | None = None
        self._idle: dict[str, Position] = {}
        """Heads by idle input, valid for the stream's current position there."""
        self._dirty: set[str] = set()
        """All other inputs."""

    def is_incremental(self, standing: Mapping[str, Position], poll: SeenHeads) -> bool:
        """Return whether only `SeenHeads.moved` and planned positions differ from the last call."""
        is_there = standing is self._standing or standing is self._planned
        return is_there and (poll.heads is self._heads or poll.before is self._heads)

    def record_positions(self, positions: Mapping[str, Position]) -> None:
        """Record the planned positions: only inputs with a backlog have moved."""
        self._planned = positions

    def read(self, standing: Mapping[str, Position], poll: SeenHeads) -> dict[str, Backlog]:
        """Return the backlogs by input; a missing input has none."""
        heads = poll.heads
        names: Iterable[str]
        if self.is_incremental(standing, poll):
            moved = poll.moved if poll.heads is not self._heads else frozenset[str]()
            names = sorted(name for name in self._dirty | moved if name in heads)
        else:
            self._forget_moved(standing)
            resting = self._idle
            names = [name for name, head in heads.items() if resting.get(name) is not head]
        self._heads = None  # Until all have answered.
        heads_by_name = {
            name: self._query_backlog(name, standing.get(name), heads[name]) for name in names
        }
        for name, backlog in heads_by_name.items():
            if backlog.is_at_rest:
                self._idle[name] = heads[name]
            else:
                self._idle.pop(name, None)
        self._dirty = {name for name, backlog in heads_by_name.items() if not backlog.is_at_rest}
        self._standing, self._planned, self._heads = standing, None, heads
        return heads_by_name

    def _forget_moved(self, standing: Mapping[str, Position]) -> None:
        """Forget idle inputs whose stream position has changed."""
        before = self._standing or {}
        for name in list(self._idle):
            now, then = standing.get(name), before.get(name)
            if now is not then and now != then:
                del self._idle[name]

    def _query_backlog(self, name: str, position: Position | None, head: Position) -> Backlog:
        with about("input", name):
            return self._inputs[name].backlog(position, head)
