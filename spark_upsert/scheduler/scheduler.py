"""The scheduler (`Schedule`): deficit weighted round robin over five priority bands; pure.

All inputs are in one queue by waiting time; a band is the part of it with its priorities, so an
input that changes its band keeps its place. Bounds on waits: docs/adr/0029. Source: Shreedhar and
Varghese, "Efficient Fair Queuing using Deficit Round Robin" (1995).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from spark_upsert.errors import OptionError

PROPERTY = "priority"
"""Name for both the write option and the table property."""

PRIORITY_MIN = -1000
PRIORITY_MAX = 1000

WAITED_MAX_MS = 10_000
"""Waiting time after which an input's priority stops growing."""

IDLE_MAX_MS = 300_000
"""Time without a read after which an input counts as never read."""

HALF_LIFE_MS = 30_000

SCALE = 10 << 20
"""Units per point: it can be halved twenty times, and a tenth is an integer."""

_AUTO_MAX = 500 * SCALE
_AGE_PER_MS = SCALE // 10

Numbers = npt.NDArray[np.int64]

_WHOLE = re.compile(r"\s*([+-]?\d{1,9})\s*", re.ASCII)


def parse_priority(text: str, *, option: str = PROPERTY) -> int:
    """Parse a priority."""
    match = _WHOLE.fullmatch(text)
    if match is None or not PRIORITY_MIN <= int(match[1]) <= PRIORITY_MAX:
        expected = f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}"
        raise OptionError.invalid(option, text, expected)
    return int(match[1])


def priority_in(properties: Mapping[str, str]) -> int | None:
    """Return the priority in a table's properties; None if it is not set."""
    priority_text = properties.get(PROPERTY)
    return None if priority_text is None else parse_priority(priority_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """An input's configured priority and last read, from which its base priority follows."""

    manual: int | None = None
    """Configured priority, clamped to the bounds; None if it is not set."""
    read_ms: int | None = None
    """Time of the last read; None: never, or not requested."""

    def base(self, now_ms: int) -> int:
        """Return the priority before aging, in units."""
        if self.manual is not None:
            return min(max(self.manual, PRIORITY_MIN), PRIORITY_MAX) * SCALE
        if self.read_ms is None:
            return 0
        idle_ms = max(0, now_ms - self.read_ms)
        if idle_ms >= IDLE_MAX_MS:
            return 0
        halvings, rest_ms = divmod(idle_ms, HALF_LIFE_MS)
        return int(_decay()[rest_ms]) >> halvings


def priorities(bases: Numbers, waited_ms: Numbers) -> Numbers:
    """Return the inputs' priorities, in points.

    A configured priority (-1000 to 1000), else ``500 * 2 ** (-idle / 30 s)``, 0 from 300 s on; plus
    100 per second of waiting, at most 1000; rounded half away from zero. All numbers are integers,
    so that every process computes the same.
    """
    units = bases + np.clip(waited_ms, 0, WAITED_MAX_MS) * _AGE_PER_MS
    # Half away from zero; `round` rounds half to even.
    rounded: Numbers = np.sign(units) * ((2 * np.abs(units) + SCALE) // (2 * SCALE))
    return rounded


def priority_of(standing: Urgency, *, now_ms: int, waited_ms: int) -> int:
    """Return a single input's priority, in points.

    >>> priority_of(Urgency(manual=-1000), now_ms=0, waited_ms=7_500)
    -250
    >>> priority_of(Urgency(read_ms=0), now_ms=90_000, waited_ms=0)
    63
    """
    priority = priorities(np.array([standing.base(now_ms)]), np.array([waited_ms]))
    return int(priority[0])


@cache
def _decay() -> Numbers:
    """Return the remaining units after each millisecond in one half-life."""
    share = np.exp2(np.arange(HALF_LIFE_MS) / -HALF_LIFE_MS)
    scores: Numbers = np.rint(_AUTO_MAX * share).astype(np.int64)
    return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Priorities from a floor up to the next band's floor."""

    floor: int | None
    """Lowest priority; None: unbounded, and the band may be deferred."""
    weight: int
    """Number of its inputs served per round."""


BANDS = (
    Band(floor=None, weight=1),
    Band(floor=0, weight=1),
    Band(floor=250, weight=2),
    Band(floor=500, weight=4),
    Band(floor=750, weight=8),
)
"""The bands, lowest first; other modules call ``BANDS[4]`` B4."""

LOWEST = 0

WEIGHTS: Numbers = np.array([band.weight for band in BANDS])

ROUND = int(WEIGHTS.sum())
"""Maximum inputs served per round."""

_FLOORS = np.array([band.floor for band in BANDS if band.floor is not None])


def bands_of(priorities: Numbers) -> Numbers:
    """Return the band index for each priority.

    >>> bands_of(np.array([-1, 0, 249, 250, 749, 2000])).tolist()
    [0, 1, 1, 2, 3, 4]
    """
    return np.searchsorted(_FLOORS, priorities, side="right").astype(np.int64)


class DirtySet:
    """Waiting inputs in order of arrival, each with its start time; immutable.

    Parameters
    ----------
    waiting : iterable of (str, int)
        Input names and start times in milliseconds, in ascending time order.
    """

    __slots__ = ("_since_ms",)

    def __init__(self, waiting: Iterable[tuple[str, int]] = ()) -> None:
        self._since_ms: dict[str, int] = {}
        last_ms = None
        for name, since_ms in waiting:
            if name in self._since_ms or (last_ms is not None and since_ms < last_ms):
                raise ValueError(f"'{name}' waits twice, or stands before one that came earlier")
            self._since_ms[name] = last_ms = since_ms

    def __len__(self) -> int:
        return len(self._since_ms)

    def __iter__(self) -> Iterator[str]:
        return iter(self._since_ms)

    def __contains__(self, name: object) -> bool:
        return name in self._since_ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DirtySet):
            return NotImplemented
        return list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterable[tuple[str, int]]:
        """Return names and start times in milliseconds, in order."""
        return self._since_ms.items()

    def waited_ms(self, now_ms: int) -> Numbers:
        """Return each input's waiting time, in order."""
        since_ms = np.fromiter(self._since_ms.values(), np.int64, len(self._since_ms))
        return now_ms - since_ms

    def with_changed(self, names: Iterable[str], now_ms: int) -> DirtySet:
        """Return the queue with new inputs at its end; a queued input keeps its position.

        If the clock went back, start times after ``now_ms`` become ``now_ms``: a future time would
        keep its input, and all later inputs, from aging.
        """
        return self._with({}, names, now_ms)

    def without_served(self, names: Iterable[str], left: Iterable[str], now_ms: int) -> DirtySet:
        """Return the queue without served inputs; those in ``left`` rejoin at its end."""
        return self._with(dict.fromkeys(names), left, now_ms)

    def _with(self, gone: dict[str, None], names: Iterable[str], now_ms: int) -> DirtySet:
        dirty_set = DirtySet()
        # The order of times stays as it is, for the least of two rises with either.
        dirty_set._since_ms = {
            name: min(since_ms, now_ms)
            for name, since_ms in self._since_ms.items()
            if name not in gone
        }
        for name in names:
            dirty_set._since_ms.setdefault(name, now_ms)
        return dirty_set


TICK_MS = 50
"""Bands change only at multiples of this; calls in between get the same result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A round's state: the current band, and how many more of its inputs may be served."""

    band: int = LOWEST
    credit: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.band < len(WEIGHTS) and 0 <= self.credit <= WEIGHTS[self.band]):
            raise ValueError(f"band {self.band} cannot have {self.credit} credit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Service order for the waiting inputs, independent of how many will be served."""

    names: list[str]
    """Input names without repetition, in service order; deferred bands are left out."""
    bands: Numbers
    """Band index per input."""
    rounds: Numbers
    """Round number per input; 0 is the current round."""
    turn: Turn
    """The turn before any input is served."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each name with the weight of its band."""
        return zip(self.names, WEIGHTS[self.bands].tolist(), strict=True)

    def turn_after(self, count: int) -> Turn:
        """Return the turn after ``count`` inputs are served."""
        if not count:
            return self.turn
        band, round_ = int(self.bands[count - 1]), self.rounds[count - 1]
        spent = int(np.sum((self.bands[:count] == band) & (self.rounds[:count] == round_)))
        had = self.turn.credit if band == self.turn.band and not round_ else int(WEIGHTS[band])
        return Turn(band=band, credit=had - spent)

    def is_drained(self, band: int, count: int, left: Collection[str]) -> bool:
        """Return whether a band is empty after ``count`` inputs are served.

        Inputs in ``left`` have more changes and stay in the band.
        """
        indices = np.flatnonzero(self.bands == band)
        has_others = len(indices) and indices[-1] >= count
        return not (has_others or any(self.names[index] in left for index in indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The waiting inputs and the turn; immutable. Services depend only on it and on arrivals."""

    dirty: DirtySet = field(default_factory=DirtySet)
    turn: Turn = Turn()

    def with_changed(self, names: Collection[str], now_ms: int) -> Schedule:
        """Return the schedule with further inputs that have changes (`DirtySet.with_changed`)."""
        return replace(self, dirty=self.dirty.with_changed(names, now_ms))

    def plan_service(
        self,
        now_ms: int,
        urgencies: Mapping[str, Urgency] | None = None,
        *,
        defers_lowest: bool = False,
    ) -> Service:
        """Return the order in which to serve the waiting inputs.

        In a round each band, highest first, gets its weight as credit and spends one per input; an
        empty band forfeits the rest. So only one band holds credit, and the state is two numbers.
        """
        bands = self._bands(now_ms, urgencies or {})
        turn = _forfeit_credit(self.turn, bands)
        indices = np.flatnonzero(bands != LOWEST) if defers_lowest else np.arange(len(bands))
        bands = bands[indices]
        rounds = _rounds(bands, turn)
        order = np.lexsort((-bands, rounds))
        names = list(self.dirty)
        return Service(
            names=[names[index] for index in indices[order].tolist()],
            bands=bands[order],
            rounds=rounds[order],
            turn=turn,
        )

    def after_service(
        self,
        service: Service,
        count: int,
        names: Collection[str],
        left: Collection[str],
        now_ms: int,
    ) -> Schedule:
        """Return the schedule after ``count`` inputs are served; those in ``left`` wait again."""
        dirty = self.dirty.without_served(names, left, now_ms)
        turn = service.turn_after(count)
        if service.is_drained(turn.band, count, set(left)):
            turn = replace(turn, credit=0)
        return Schedule(dirty=dirty, turn=turn)

    def waiting(self, now_ms: int, urgencies: Mapping[str, Urgency] | None = None) -> list[int]:
        """Return the waiting inputs per band, lowest band first; arguments as in `plan_service`."""
        bands = self._bands(now_ms, urgencies or {})
        return [int(count) for count in np.bincount(bands, minlength=len(WEIGHTS))]

    def _bands(self, now_ms: int, urgencies: Mapping[str, Urgency]) -> Numbers:
        tick_ms = now_ms - now_ms % TICK_MS
        bases = np.zeros(len(self.dirty), np.int64)
        if urgencies:
            indexed = (
                (name_index, urgencies.get(name)) for name_index, name in enumerate(self.dirty)
            )
            for index, standing in indexed:
                if standing is not None:
                    bases[index] = standing.base(tick_ms)
        return bands_of(priorities(bases, self.dirty.waited_ms(tick_ms)))


def _forfeit_credit(turn: Turn, bands: Numbers) -> Turn:
    """Return the turn, without credit if its band is empty."""
    return turn if np.any(bands == turn.band) else replace(turn, credit=0)


def _rounds(bands: Numbers, turn: Turn) -> Numbers:
    """Return each waiting input's round; 0 is the current round."""
    rounds = np.empty(len(bands), np.int64)
    for band, weight in enumerate(WEIGHTS.tolist()):
        indices = np.flatnonzero(bands == band)
        ranks = np.arange(len(indices))
        if band < turn.band:  # Its turn in this round is yet to come.
            rounds[indices] = ranks // weight
        else:
            credit = turn.credit if band == turn.band else 0
            rounds[indices] = np.where(ranks < credit, 0, 1 + (ranks - credit) // weight)
    return rounds
