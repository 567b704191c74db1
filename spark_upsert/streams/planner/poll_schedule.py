"""The times at which each of very many inputs is polled: pure, its clock comes in.

The interval of an input is a tenth (`GAP_SHARE`) of the time between its changes, or of the time
since the last change where that is longer: an input that changes every minute is looked at every
six seconds. An interval lies between a least and a most, and the input that is due first is looked
at first.

Two budgets bound the cost of all looks together: requests to the storage, and processor time. As
inputs at rest may be very many, they get half of a budget at most: where ``2 * inputs / rate`` is
longer than the most, it takes its place (`PollSchedule.most_s`). So between two looks at an input
lie at most ``most_s`` and one round of all inputs (``inputs / rate``).
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

GAP_SHARE = 0.1

LEAST_S = 0.05
"""More often is of no use: a micro-batch takes longer."""

MOST_S = 30.0
"""How often an input at rest is looked at in a bucket, if nothing else is said."""

MOST_LOCAL_S = 0.5
"""The same on a file system: a look takes some 30 microseconds."""

REQUESTS_PER_S = 200.0
"""In a bucket, if nothing else is said: some 100 dollars a month."""

BUSY_SHARE = 0.2
"""The share of one processor for looks; the planner of batches uses the same processor."""

RETRIES = 3
"""The looks at an input that may fail in a row because of the storage before it is reported."""

_BURST_S = 0.1
"""The time for which an unused budget is kept: so much may be spent at once."""

_COST_WEIGHT = 0.05
"""The weight of one look in the moving average of what a look takes."""

_ENTRIES_SPARE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBounds:
    """Between what intervals lie, and what looks may take in a second."""

    least_s: float = LEAST_S
    most_s: float = MOST_LOCAL_S
    requests_per_s: float | None = None
    """None: any number."""
    busy_share: float = BUSY_SHARE

    @classmethod
    def of(cls, *, is_remote: bool, most_ms: int | None, requests_per_s: int | None) -> PollBounds:
        """Return the bounds that options mean, or those by default.

        Parameters
        ----------
        most_ms : int, optional
        requests_per_s : int, optional
            0: any number.
        """
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
    """A token bucket: what may be spent a second. An overdraft is waited for until paid back."""

    rate: float
    _left: float = 0.0
    _at_s: float = -math.inf

    def __post_init__(self) -> None:
        self._left = self.rate * _BURST_S

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is left; 0 if something is."""
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(self.rate * _BURST_S, self._left + self.rate * passed_s)
        self._at_s = now_s
        return 0.0 if self._left > 0 else -self._left / self.rate + 1e-3

    def spend(self, amount: float) -> None:
        """Take some, whatever is left."""
        self._left -= amount


@dataclass(slots=True)
class _Polled:
    """The state of one input."""

    due_s: float
    moved_s: float
    gap_s: float
    """Between its changes, as far as they were seen."""
    began_s: float
    """Its last look, over or not."""
    failures: int = 0
    is_under_way: bool = False


@dataclass
class PollSchedule:
    """Which of some inputs are due for a look. Not safe for threads.

    Parameters
    ----------
    bounds : Bounds
    """

    bounds: PollBounds
    requests: int = 0
    """Asked of the storage so far."""
    looks: int = 0
    _known: dict[str, _Polled] = field(default_factory=dict)
    _due: list[tuple[float, str]] = field(default_factory=list)
    """A heap; an entry counts if it is what its input is due by."""
    _busy_s: float = 0.0
    """The processor time that a look takes, averaged."""

    def __post_init__(self) -> None:
        rate = self.bounds.requests_per_s
        self._of_requests = None if rate is None else Budget(rate)
        self._of_time = Budget(self.bounds.busy_share)

    @property
    def names(self) -> Set[str]:
        """The inputs that are looked at."""
        return self._known.keys()

    @property
    def rate(self) -> float:
        """How many looks in a second the budgets allow, as far as it is known."""
        by_time = self.bounds.busy_share / self._busy_s if self._busy_s else math.inf
        return min(by_time, self.bounds.requests_per_s or math.inf)

    @property
    def most_s(self) -> float:
        """How long an input at rest is left alone."""
        return max(self.bounds.most_s, 2 * len(self._known) / self.rate)

    def add_all(self, names: list[str], now_s: float) -> None:
        """Begin with inputs that were just looked at; they are due one after the other."""
        most_s = max(self.bounds.most_s, 2 * len(names) / self.rate)
        for index, name in enumerate(names):
            self._known[name] = _Polled(
                due_s=now_s + most_s * (index + 1) / len(names),
                moved_s=now_s - most_s / GAP_SHARE,
                gap_s=most_s / GAP_SHARE,
                began_s=now_s,
            )
        self._due = [(each.due_s, name) for name, each in self._known.items()]
        heapify(self._due)

    def add(self, name: str, now_s: float) -> None:
        """Begin with an input that has not been looked at."""
        self._known[name] = _Polled(due_s=now_s, moved_s=now_s, gap_s=0.0, began_s=now_s)
        heappush(self._due, (now_s, name))

    def drop(self, name: str) -> None:
        """Look at an input no more."""
        self._known.pop(name, None)

    def take(self, now_s: float, count_max: int) -> list[str]:
        """Return inputs that are due, the first one first; each is under way until it is told."""
        found: list[str] = []
        if self._broke_s(now_s) > 0:
            return found
        while self._due and self._due[0][0] <= now_s and len(found) < count_max:
            due_s, name = heappop(self._due)
            each = self._known.get(name)
            if each is None or each.due_s != due_s or each.is_under_way:
                continue
            each.is_under_way, each.began_s = True, now_s
            found.append(name)
            if self._of_requests is not None:
                self._of_requests.spend(1)
                if self._of_requests.wait_s(now_s) > 0:
                    break
        return found

    def wait_s(self, now_s: float) -> float:
        """Return after how long something may be due; inf: never, as far as it is known."""
        first_s = self._due[0][0] - now_s if self._due else math.inf
        return max(0.0, first_s, self._broke_s(now_s))

    def _broke_s(self, now_s: float) -> float:
        of_requests = 0.0 if self._of_requests is None else self._of_requests.wait_s(now_s)
        return max(of_requests, self._of_time.wait_s(now_s))

    def looked(self, name: str, now_s: float, *, has_moved: bool, requests: int = 1) -> float:
        """Note a look that is over, and when the next one is due; return when it began."""
        self.looks += 1
        self._asked(requests)
        each = self._known[name]
        each.is_under_way, each.failures = False, 0
        if has_moved:
            each.gap_s = (each.gap_s + max(0.0, now_s - each.moved_s)) / 2
            each.moved_s = now_s
        gap_s = max(each.gap_s, now_s - each.moved_s)
        self._rest(name, each, now_s + self.interval_s(gap_s))
        return each.began_s

    def failed(self, name: str, now_s: float, *, may_pass: bool, requests: int = 1) -> bool:
        """Note a look that failed; return whether it is to be told.

        Parameters
        ----------
        may_pass : bool
            Whether it may do when it is tried again.
        """
        self._asked(requests)
        each = self._known[name]
        each.is_under_way, each.failures = False, each.failures + 1
        is_told = not may_pass or each.failures > RETRIES
        if is_told:
            each.failures = 0
        self._rest(name, each, now_s + min(self.bounds.most_s, LEAST_S * 2**each.failures))
        return is_told

    def was_busy(self, seconds: float) -> None:
        """Note how long a look kept a processor busy."""
        self._of_time.spend(seconds)
        self._busy_s += (_COST_WEIGHT if self._busy_s else 1.0) * (seconds - self._busy_s)

    def listed(self, requests: int, seconds: float) -> None:
        """Note what a look for new inputs took, of requests and of a processor's time."""
        self.requests += requests
        self._of_time.spend(seconds)
        if self._of_requests is not None:
            self._of_requests.spend(requests)

    def interval_s(self, gap_s: float) -> float:
        """Return when an input is looked at again that changes so often."""
        return min(max(self.bounds.least_s, GAP_SHARE * gap_s), self.most_s)

    def _asked(self, requests: int) -> None:
        self.requests += requests
        if self._of_requests is not None:
            self._of_requests.spend(requests - 1)  # One was spent when it was taken.

    def _rest(self, name: str, each: _Polled, due_s: float) -> None:
        each.due_s = due_s
        heappush(self._due, (due_s, name))
        if len(self._due) > 2 * len(self._known) + _ENTRIES_SPARE:
            self._due = [(known.due_s, name) for name, known in self._known.items()]
            heapify(self._due)
