"""Who is served next: deficit weighted round robin over the bands, as a function of a small state.

A round goes from the highest band to the lowest. Each gets credit, as much as its weight, and
spends one for each input that is served; what a band has not spent when it has nobody left is
forfeited. So all credit there ever is belongs to the band that has the turn, and two numbers are
the whole state beside the dirty set. As rounds are regular, the order of all that wait is computed
at once.

Bands are told anew for each order, at the last tick. What a wait is bounded by (N inputs are dirty
at most, and b is where an input stands after `WAITED_MAX_MS`):

* without deferral, at any priority: N + 5 rounds, which serve `ROUND` inputs each at most. A round
  serves the one that waits longest in each band; that may be this one, or one of N - 1 that came
  before it. The band can rise four times, and each time its turn in that round may be over.
* with and without deferral, and from `WAITED_MAX_MS` and a tick on: N / weight(b) rounds, rounded
  up, and the one that is under way. Nobody stands in the lowest band by then: -1000 has come to 0.
  So b has weight 8 from -250 on, 4 from -500, 2 from -750 and 1 below that.

Both suppose a clock that does not go back, and priorities that stay; each time one of them falls it
begins anew. While two bands have somebody that this service has not served, what they were served,
divided by their weights, differs by one at most.

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
"""Bands change at multiples of it: who asks more often gets the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where a round stands: the band whose turn it is, and how many of it may still be served."""

    band: int = LOWEST
    credit: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.band < len(WEIGHTS) and 0 <= self.credit <= WEIGHTS[self.band]):
            raise ValueError(f"band {self.band} cannot have {self.credit} credit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An order in which inputs are to be served, whoever serves how many of them."""

    names: list[str]
    """Each once, the first one first; those of a band that is deferred are not in it."""
    bands: Numbers
    """The band of each."""
    rounds: Numbers
    """The round of each; 0 is the one under way."""
    turn: Turn
    """Whose turn it is before any is served."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each name with its weight."""
        return zip(self.names, WEIGHTS[self.bands].tolist(), strict=True)

    def turn_behind(self, count: int) -> Turn:
        """Return whose turn it is when so many are served."""
        if not count:
            return self.turn
        band, round_ = int(self.bands[count - 1]), self.rounds[count - 1]
        spent = int(np.sum((self.bands[:count] == band) & (self.rounds[:count] == round_)))
        had = self.turn.credit if band == self.turn.band and not round_ else int(WEIGHTS[band])
        return Turn(band=band, credit=had - spent)

    def is_drained(self, band: int, count: int, left: Collection[str]) -> bool:
        """Return whether a band has nobody when so many are served and some have more."""
        places = np.flatnonzero(self.bands == band)
        has_others = len(places) and places[-1] >= count
        return not (has_others or any(self.names[place] in left for place in places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who waits, and whose turn it is; a value. A service is a function of it and of arrivals."""

    dirty: DirtySet = field(default_factory=DirtySet)
    turn: Turn = Turn()

    def marked(self, names: Collection[str], now_ms: int) -> Schedule:
        """Return it with some that have something (`DirtySet.marked`)."""
        return replace(self, dirty=self.dirty.marked(names, now_ms))

    def service(
        self,
        now_ms: int,
        standings: Mapping[str, Urgency] | None = None,
        *,
        defers_lowest: bool = False,
    ) -> Service:
        """Return the order in which those that wait are served.

        Parameters
        ----------
        now_ms : int
        standings : mapping of str to Standing, optional
            Who is not in it has no priority, and is not known to be read.
        defers_lowest : bool
            Whether the lowest band is passed over; who grows older leaves it.
        """
        bands = self._bands(now_ms, standings or {})
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
        """Return what is behind a service.

        Parameters
        ----------
        service : Service
        count : int
            How many of its first were served in their turn; they have paid. Others may have been
            served as well, where the turn of the next could not be: it waits, and has it still.
        names : collection of str
            Those that were served.
        left : collection of str
            Those of them that have more, in the order in which they are to wait on.
        """
        dirty = self.dirty.served(names, left, now_ms)
        turn = service.turn_behind(count)
        if service.is_drained(turn.band, count, set(left)):
            turn = replace(turn, credit=0)
        return Schedule(dirty=dirty, turn=turn)

    def waiting(self, now_ms: int, standings: Mapping[str, Urgency] | None = None) -> list[int]:
        """Return how many wait in each band, the lowest first; as `service` takes its arguments."""
        bands = self._bands(now_ms, standings or {})
        return [int(count) for count in np.bincount(bands, minlength=len(WEIGHTS))]

    def _bands(self, now_ms: int, standings: Mapping[str, Urgency]) -> Numbers:
        tick_ms = now_ms - now_ms % TICK_MS
        bases = np.zeros(len(self.dirty), np.int64)
        if standings:
            known = ((place, standings.get(name)) for place, name in enumerate(self.dirty))
            for place, standing in known:
                if standing is not None:
                    bases[place] = standing.base(tick_ms)
        return bands_of(priorities(bases, self.dirty.waited_ms(tick_ms)))


def _settled(turn: Turn, bands: Numbers) -> Turn:
    """Return a turn whose credit is forfeited if the band has nobody."""
    return turn if np.any(bands == turn.band) else replace(turn, credit=0)


def _rounds(bands: Numbers, turn: Turn) -> Numbers:
    """Return the round in which each of a line is served: 0 for the rest of the one under way."""
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
