"""Deficit weighted round robin over the bands: which input is served next, from a small state.

A round goes from the highest band to the lowest. Each band gets credit, as much as its weight, and
spends one for each input that is served; a band that has no input left forfeits the rest of its
credit. So only the band that has the turn ever holds credit, and two numbers are the whole state
beside the dirty set. As rounds are regular, the order of all waiting inputs is computed at once.

The band of each input is computed anew for each order, at the last tick. A wait is bounded as
follows, where at most N inputs are dirty and b is the band of an input after `WAITED_MAX_MS`:

* without deferral, at any priority: N + 5 rounds, which serve `ROUND` inputs each at most. A round
  serves the input that waits longest in each band; that may be this one, or one of N - 1 that came
  before it. The band can rise four times, and each time its turn in that round may be over.
* with and without deferral, and from `WAITED_MAX_MS` and a tick on: N / weight(b) rounds, rounded
  up, and the one that is under way. By then the lowest band is empty: -1000 has come to 0.
  So b has weight 8 from -250 on, 4 from -500, 2 from -750 and 1 below that.

Both bounds suppose a clock that does not go back and priorities that stay; each time one of them
falls, the bound begins anew. While two bands hold inputs that this service has not served, the
counts of inputs served from them, divided by their weights, differ by one at most.

Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin" (1995), with
every input at a cost of one; bands and weights as in slopus/topics, ``docs/ARCHITECTURE.md``,
section 7, which has no rule for the credit of an empty band nor for the place in another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from spark_upsert.schedule.bands import LOWEST, WEIGHTS, bands_of
from spark_upsert.schedule.dirty import DirtySet
from spark_upsert.schedule.priority import Numbers, Urgency, priorities

TICK_MS = 50
"""Bands change at multiples of this: a caller that asks more often gets the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where a round stands: the band that has the turn, and how many of it may still be served."""

    band: int = LOWEST
    credit: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.band < len(WEIGHTS) and 0 <= self.credit <= WEIGHTS[self.band]):
            raise ValueError(f"band {self.band} cannot have {self.credit} credit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An order in which inputs are to be served; it does not depend on how many will be."""

    names: list[str]
    """The inputs, each once, the first one first; inputs of a deferred band are left out."""
    bands: Numbers
    """The band of each."""
    rounds: Numbers
    """The round of each; 0 is the one under way."""
    turn: Turn
    """The turn before any input is served."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each name with the weight of its band."""
        return zip(self.names, WEIGHTS[self.bands].tolist(), strict=True)

    def turn_behind(self, count: int) -> Turn:
        """Return the turn after so many inputs are served."""
        if not count:
            return self.turn
        band, round_ = int(self.bands[count - 1]), self.rounds[count - 1]
        spent = int(np.sum((self.bands[:count] == band) & (self.rounds[:count] == round_)))
        had = self.turn.credit if band == self.turn.band and not round_ else int(WEIGHTS[band])
        return Turn(band=band, credit=had - spent)

    def is_drained(self, band: int, count: int, left: Collection[str]) -> bool:
        """Return whether a band is empty after a service.

        Parameters
        ----------
        band : int
        count : int
            How many of the first inputs were served.
        left : collection of str
            The inputs that were served and have more.
        """
        places = np.flatnonzero(self.bands == band)
        has_others = len(places) and places[-1] >= count
        return not (has_others or any(self.names[place] in left for place in places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The waiting inputs and the turn; a value. A service is a function of it and of arrivals."""

    dirty: DirtySet = field(default_factory=DirtySet)
    turn: Turn = Turn()

    def marked(self, names: Collection[str], now_ms: int) -> Schedule:
        """Return the schedule with further inputs that have something (`DirtySet.marked`)."""
        return replace(self, dirty=self.dirty.marked(names, now_ms))

    def service(
        self,
        now_ms: int,
        urgencies: Mapping[str, Urgency] | None = None,
        *,
        defers_lowest: bool = False,
    ) -> Service:
        """Return the order in which the waiting inputs are served.

        Parameters
        ----------
        now_ms : int
        urgencies : mapping of str to Urgency, optional
            An input that is left out has no priority, and is not known to be read.
        defers_lowest : bool
            Whether the lowest band is passed over; an input leaves that band as it grows older.
        """
        bands = self._bands(now_ms, urgencies or {})
        turn = _settled(self.turn, bands)
        places = np.flatnonzero(bands != LOWEST) if defers_lowest else np.arange(len(bands))
        bands = bands[places]
        rounds = _rounds(bands, turn)
        order = np.lexsort((-bands, rounds))
        names = list(self.dirty)
        return Service(
            names=[names[place] for place in places[order].tolist()],
            bands=bands[order],
            rounds=rounds[order],
            turn=turn,
        )

    def served(
        self,
        service: Service,
        count: int,
        names: Collection[str],
        left: Collection[str],
        now_ms: int,
    ) -> Schedule:
        """Return the schedule after a service.

        Parameters
        ----------
        service : Service
        count : int
            How many of the first inputs were served in their turn; these have paid. Where the next
            one could not be served, inputs behind it may have been, and do not pay; the one that
            was passed over waits, and keeps its turn.
        names : collection of str
            The inputs that were served.
        left : collection of str
            The served inputs that have more, in the order in which they are to wait on.
        """
        dirty = self.dirty.served(names, left, now_ms)
        turn = service.turn_behind(count)
        if service.is_drained(turn.band, count, set(left)):
            turn = replace(turn, credit=0)
        return Schedule(dirty=dirty, turn=turn)

    def waiting(self, now_ms: int, urgencies: Mapping[str, Urgency] | None = None) -> list[int]:
        """Return how many inputs wait in each band, the lowest first; arguments as of `service`."""
        bands = self._bands(now_ms, urgencies or {})
        return [int(count) for count in np.bincount(bands, minlength=len(WEIGHTS))]

    def _bands(self, now_ms: int, urgencies: Mapping[str, Urgency]) -> Numbers:
        tick_ms = now_ms - now_ms % TICK_MS
        bases = np.zeros(len(self.dirty), np.int64)
        if urgencies:
            known = ((place, urgencies.get(name)) for place, name in enumerate(self.dirty))
            for place, standing in known:
                if standing is not None:
                    bases[place] = standing.base(tick_ms)
        return bands_of(priorities(bases, self.dirty.waited_ms(tick_ms)))


def _settled(turn: Turn, bands: Numbers) -> Turn:
    """Return the turn, with its credit forfeited if the band is empty."""
    return turn if np.any(bands == turn.band) else replace(turn, credit=0)


def _rounds(bands: Numbers, turn: Turn) -> Numbers:
    """Return the round in which each waiting input is served; 0 is the round under way."""
    rounds = np.empty(len(bands), np.int64)
    for band, weight in enumerate(WEIGHTS.tolist()):
        places = np.flatnonzero(bands == band)
        ranks = np.arange(len(places))
        if band < turn.band:  # Its turn in this round is yet to come.
            rounds[places] = ranks // weight
        else:
            credit = turn.credit if band == turn.band else 0
            rounds[places] = np.where(ranks < credit, 0, 1 + (ranks - credit) // weight)
    return rounds
