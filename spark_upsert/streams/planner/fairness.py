"""The fairness state in an offset: the inputs that a full batch left waiting, and the turn.

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
behind that one in the order of their names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from spark_upsert.schedule import DirtySet, Schedule, Turn, Urgency
from spark_upsert.store.records import MALFORMED, text, whole
from spark_upsert.streams.offsets.offset import no_offset
from spark_upsert.streams.offsets.position import Json

SCHEDULE = "schedule"
TURN = "turn"


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
    state: Mapping[str, Json], now_ms: int, standings: Mapping[str, Urgency] | None = None
) -> dict[str, int]:
    """Return how many inputs wait after a batch, by band, ``B4`` first; empty bands are left out.

    Parameters
    ----------
    state : mapping
        The state that the batch leaves (`Offset.state`).
    now_ms : int
        In ms since 1970.
    standings : mapping of str to Urgency, optional
        The urgency of inputs, as far as it is known.
    """
    if SCHEDULE not in state:
        return {}
    counts = _read(state[SCHEDULE]).waiting(now_ms, standings)
    return {f"B{band}": count for band, count in reversed(list(enumerate(counts))) if count}


def with_schedule(state: Mapping[str, Json], schedule: Schedule) -> dict[str, Json]:
    """Return the state of an offset with a schedule; without its entry if no input waits."""
    found = without_schedule(state)
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


def without_schedule(state: Mapping[str, Json]) -> dict[str, Json]:
    """Return the state of an offset after which no input waits."""
    return {name: each for name, each in state.items() if name not in (SCHEDULE, TURN)}


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
