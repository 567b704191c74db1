"""The turns of inputs: how urgent each is, and the waiting line that a full batch leaves behind.

The urgency of an input is the priority that the read sets, else the input's own. With
``autoPriority`` an input without a priority is the more urgent the later another query read it. The
planner asks for that only now and then, and few inputs at once: it costs requests, and only the
last half minute matters anyway. For the other inputs the last answer stands.

The state of an offset holds under ``schedule``

==========  ====================================================================
``band``    the band that has the turn (`spark_upsert.schedule`)
``credit``  how many inputs of the band may still be served in this round
``dirty``   the waiting inputs, the first one first: lists of a time, in ms since 1970, and
            the names of the inputs that wait since then
==========  ====================================================================

The entry exists only while inputs wait, so its size is bounded by the inputs that a batch left
over. An older release wrote under ``turn`` the input that the next batch begins with, or, if that
one has nothing, the next in the order of names. This form is still read: the other inputs stand
behind that one in the order of their names. A stream over one unnamed table has no turns.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from spark_upsert.errors import about
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.parallel import in_order
from spark_upsert.options.query import QueryOptions
from spark_upsert.schedule.dirty import DirtySet
from spark_upsert.schedule.priority import Urgency
from spark_upsert.schedule.scheduler import Schedule, Turn
from spark_upsert.store.records import MALFORMED, UNREADABLE, text, whole
from spark_upsert.streams.inputs.inputs import Inputs
from spark_upsert.streams.offsets.offset import no_offset, without
from spark_upsert.streams.offsets.position import Json

_LOGGER = logging.getLogger(__name__)

SCHEDULE = "schedule"
TURN = "turn"

ASKED_MAX = 16
"""The most inputs that are asked for their last read, at once, whenever a batch is planned."""

REST_MS = 30_000
"""The least time between two questions to one input: in it the weight of a read halves."""

_KEPT_MIN = 1_000
"""The number of answers beyond which those of inputs that do not wait are forgotten."""


class Urgencies:
    """The urgency of a stream's inputs, as far as it is known.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        self._query = query
        self._read: dict[str, tuple[int, int | None]] = {}
        """Times by input: when it was asked, and when it was last read; the oldest answer first."""

    def of(self, names: Collection[str], now_ms: int) -> dict[str, Urgency]:
        """Return the urgency of inputs, as far as it is known; called right after `backlog`."""
        found: dict[str, Urgency] = {}
        without_priority: list[str] = []
        for name in names:
            priority = self._priority(name)
            if priority is None:
                without_priority.append(name)
            else:
                found[name] = Urgency(manual=priority)
        if self._query.auto_priority:
            self._ask(without_priority, now_ms)
            for name in without_priority:
                _, read_ms = self._read.get(name, (0, None))
                found[name] = Urgency(read_ms=read_ms)
        return found

    def _priority(self, name: str) -> int | None:
        told = self._query.priorities.get(name)
        if told is not None:
            return told
        with about("input", name):
            return self._inputs[name].priority()

    # -- when other queries read an input ---------------------------------------------

    def _ask(self, names: Collection[str], now_ms: int) -> None:
        """Ask the few that were not asked for longest."""
        due = [name for name in names if self._is_due(name, now_ms)]
        due.sort(key=lambda name: self._read.get(name, (-1, None))[0])
        due = due[:ASKED_MAX]
        for name, read_ms in zip(due, in_order(self._last_read_ms, due, len(due)), strict=True):
            self._read[name] = now_ms, read_ms
        if len(self._read) > len(names) + _KEPT_MIN:
            self._read = {name: self._read[name] for name in names if name in self._read}

    def _is_due(self, name: str, now_ms: int) -> bool:
        asked = self._read.get(name)
        return asked is None or not asked[0] <= now_ms < asked[0] + REST_MS

    def _last_read_ms(self, name: str) -> int | None:
        try:
            with about("input", name):
                return self._inputs[name].last_read_ms()
        except UNREADABLE as error:
            # Not knowing the other readers of an input is no reason to stop.
            _LOGGER.warning(
                "the consumers of an input are not known: %s",
                Fields(input=name, error=error.message),
            )
            return None


# -- the line in an offset ------------------------------------------------------------


def schedule_of(state: Mapping[str, Json], dirty: Collection[str], now_ms: int) -> Schedule:
    """Return the inputs that wait now, and the turn.

    Parameters
    ----------
    state : mapping
        The state of the offset that a batch begins at.
    dirty : collection of str
        The inputs that have something. An input that waited before keeps its place.

    Raises
    ------
    OptionError
        The state was not written by this source.
    """
    schedule = _read(state[SCHEDULE]) if SCHEDULE in state else Schedule()
    gone = set(schedule.dirty) - set(dirty)
    waiting = schedule.dirty.served(gone, (), now_ms)
    names = sorted(dirty)
    turn = state.get(TURN)
    first = bisect_left(names, turn) if isinstance(turn, str) else 0
    fresh = [*names[first:], *names[:first]]
    return Schedule(dirty=waiting.marked(fresh, now_ms), turn=schedule.turn)


def waiting_count(state: Mapping[str, Json]) -> int:
    """Return how many inputs wait after a batch, by the state that the batch leaves."""
    return len(_read(state[SCHEDULE]).dirty) if SCHEDULE in state else 0


def waiting_by_band(
    state: Mapping[str, Json], now_ms: int, urgencies: Mapping[str, Urgency] | None = None
) -> dict[str, int]:
    """Return how many inputs wait after a batch, by band, ``B4`` first; empty bands are left out.

    Parameters
    ----------
    state : mapping
        The state that the batch leaves (`Offset.state`).
    now_ms : int
        In ms since 1970.
    urgencies : mapping of str to Urgency, optional
        The urgency of inputs, as far as it is known.
    """
    if SCHEDULE not in state:
        return {}
    counts = _read(state[SCHEDULE]).waiting(now_ms, urgencies)
    return {f"B{band}": count for band, count in reversed(list(enumerate(counts))) if count}


def with_schedule(state: Mapping[str, Json], schedule: Schedule) -> dict[str, Json]:
    """Return the state of an offset with a schedule; without its entry if no input waits."""
    found = without(state, SCHEDULE, TURN)
    if len(schedule.dirty):
        found[SCHEDULE] = {
            "band": schedule.turn.band,
            "credit": schedule.turn.credit,
            "dirty": [
                [since_ms, *(name for name, _ in group)]
                for since_ms, group in groupby(schedule.dirty.items(), itemgetter(1))
            ],
        }
    return found


def _read(record: Any) -> Schedule:
    try:
        waiting = [each for group in record["dirty"] for each in _group(*group)]
        turn = Turn(band=whole(record["band"]), credit=whole(record["credit"]))
        return Schedule(dirty=DirtySet(waiting), turn=turn)
    except MALFORMED as error:
        raise no_offset({SCHEDULE: record}) from error


def _group(since_ms: Any, first: Any, *others: Any) -> list[tuple[str, int]]:
    """Return the inputs of one list of ``dirty``, at least one, each with its time."""
    since_ms = whole(since_ms)
    return [(text(name), since_ms) for name in (first, *others)]
