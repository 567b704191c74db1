"""The size of a batch (`plan_limited_batch`) and the turns of inputs (`Urgencies`), pure functions of state.

A batch takes complete steps; the first one always. An input that does not fit keeps its turn and
begins the next batch, so each batch serves an input in its turn (docs/adr/0029).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from spark_upsert.core.durations import Fields
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import about
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.read import QueryOptions
from spark_upsert.scheduler.scheduler import DirtySet, Schedule, Turn, Urgency
from spark_upsert.store.records import MALFORMED, UNREADABLE, text, whole
from spark_upsert.streams.inputs.inputs import Inputs
from spark_upsert.streams.inputs.protocol import Backlog, ReadPiece
from spark_upsert.streams.offsets.offset import Json, Offset, Position, no_offset, without

_LOGGER = logging.getLogger(__name__)

SCHEDULE = "schedule"
TURN = "turn"

READ_TIME_REQUESTS_MAX = 16
"""Maximum concurrent last-read requests per planned batch."""

REST_MS = 30_000
"""Minimum time between two last-read requests to one input: a read's weight halves within it."""

_KEPT_MIN = 1_000
"""Cached entries allowed beyond the waiting inputs; above it, all others are dropped."""


class Urgencies:
    """The inputs' urgencies, as far as known.

    An urgency is the query's priority for the input, else the input's own; with ``autoPriority`` an
    input without one is more urgent the later another query read it. That costs requests, so few
    inputs are queried at a time.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        self._query = query
        self._read_times: dict[str, tuple[int, int | None]] = {}
        """Request time and last read time by input, oldest request first."""

    def of(self, names: Collection[str], now_ms: int) -> dict[str, Urgency]:
        """Return the inputs' urgencies, as far as known; called right after `backlog`."""
        urgency_by_name: dict[str, Urgency] = {}
        without_priority: list[str] = []
        for name in names:
            priority = self._priority(name)
            if priority is None:
                without_priority.append(name)
            else:
                urgency_by_name[name] = Urgency(manual=priority)
        if self._query.auto_priority:
            self._refresh_cached_read_times(without_priority, now_ms)
            for name in without_priority:
                _, read_ms = self._read_times.get(name, (0, None))
                urgency_by_name[name] = Urgency(read_ms=read_ms)
        return urgency_by_name

    def _priority(self, name: str) -> int | None:
        """Return the query's priority for an input, else the input's own; None without both."""
        explicit = self._query.priority_by_input.get(name)
        if explicit is not None:
            return explicit
        with about("input", name):
            return self._inputs[name].priority()

    # -- when other queries read an input ---------------------------------------------

    def _refresh_cached_read_times(self, names: Collection[str], now_ms: int) -> None:
        """Refresh the cached last read times of these inputs that are at least `REST_MS` old.

        At most `READ_TIME_REQUESTS_MAX` inputs, the oldest cache entries first. A cache much larger
        than ``names`` is reduced to them.
        """
        due = [name for name in names if self._is_due(name, now_ms)]
        due.sort(key=lambda name: self._read_times.get(name, (-1, None))[0])
        due = due[:READ_TIME_REQUESTS_MAX]
        for name, read_ms in zip(due, map_in_order(self._last_read_ms, due, len(due)), strict=True):
            self._read_times[name] = now_ms, read_ms
        if len(self._read_times) > len(names) + _KEPT_MIN:
            self._read_times = {
                name: self._read_times[name] for name in names if name in self._read_times
            }

    def _is_due(self, name: str, now_ms: int) -> bool:
        """Return whether an input's last request is absent, old, or in the clock's future."""
        entry = self._read_times.get(name)
        if entry is None:
            return True
        requested_ms, _ = entry
        return not requested_ms <= now_ms < requested_ms + REST_MS

    def _last_read_ms(self, name: str) -> int | None:
        """Request when another query last read an input; None if unknown."""
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
    """Return the schedule with the waiting inputs and the turn.

    `TURN`, from an older release, names the first input; the others follow by name.
    """
    schedule = _read(state[SCHEDULE]) if SCHEDULE in state else Schedule()
    gone = set(schedule.dirty) - set(dirty)
    waiting = schedule.dirty.without_served(gone, (), now_ms)
    names = sorted(dirty)
    turn = state.get(TURN)
    first = bisect_left(names, turn) if isinstance(turn, str) else 0
    fresh = [*names[first:], *names[:first]]
    return Schedule(dirty=waiting.with_changed(fresh, now_ms), turn=schedule.turn)


def waiting_count(state: Mapping[str, Json]) -> int:
    """Return how many inputs wait after a batch, from its end's state."""
    return len(_read(state[SCHEDULE]).dirty) if SCHEDULE in state else 0


def waiting_by_band(
    state: Mapping[str, Json], now_ms: int, urgencies: Mapping[str, Urgency] | None = None
) -> dict[str, int]:
    """Return the waiting input count by band, ``B4`` first, without empty bands."""
    if SCHEDULE not in state:
        return {}
    counts = _read(state[SCHEDULE]).waiting(now_ms, urgencies)
    return {f"B{band}": count for band, count in reversed(list(enumerate(counts))) if count}


def with_schedule(state: Mapping[str, Json], schedule: Schedule) -> dict[str, Json]:
    """Return an offset state with a schedule; without its entry if no input waits.

    ``band`` has the turn, ``credit`` counts the inputs it may still serve in this round, and
    ``dirty`` lists ``[since_ms, name, ...]`` in waiting order.
    """
    remaining = without(state, SCHEDULE, TURN)
    if len(schedule.dirty):
        remaining[SCHEDULE] = {
            "band": schedule.turn.band,
            "credit": schedule.turn.credit,
            "dirty": [
                [since_ms, *(name for name, _ in group)]
                for since_ms, group in groupby(schedule.dirty.items(), itemgetter(1))
            ],
        }
    return remaining


def _read(record: Any) -> Schedule:
    try:
        waiting = [name for group in record["dirty"] for name in _group(*group)]
        turn = Turn(band=whole(record["band"]), credit=whole(record["credit"]))
        return Schedule(dirty=DirtySet(waiting), turn=turn)
    except MALFORMED as error:
        raise no_offset({SCHEDULE: record}) from error


def _group(since_ms: Any, first: Any, *others: Any) -> list[tuple[str, int]]:
    """Return the inputs in one ``dirty`` list, at least one, each with its time."""
    since_ms = whole(since_ms)
    return [(text(name), since_ms) for name in (first, *others)]


_NO_BOUND = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A batch's limits; None: unlimited."""

    rows: int | None = None
    bytes: int | None = None
    epochs: int | None = None

    @classmethod
    def of(cls, options: QueryOptions) -> Limits:
        """Return the limits in the options."""
        return cls(rows=options.rows_max, bytes=options.bytes_max, epochs=options.epochs_max)

    @property
    def is_none(self) -> bool:
        """Whether no limit is set."""
        return self.rows is self.bytes is self.epochs is None


def plan_limited_batch(
    backlogs: Mapping[str, Backlog],
    limits: Limits | None,
    state: Mapping[str, Json],
    *,
    now_ms: int = 0,
    urgencies: Mapping[str, Urgency] | None = None,
    defers_lowest: bool = False,
) -> Offset:
    """Return a batch's end offset, with these inputs' positions.

    In each round an input takes its share in the remaining limit by band weight, or one larger
    step. An input with more data then waits after all unvisited inputs.
    """
    if limits is None:
        reached = {name: backlog.end() for name, backlog in backlogs.items()}
        return Offset(positions=reached, state=without(state, SCHEDULE, TURN))
    if limits.is_none:
        reached = {name: backlog.reach() for name, backlog in backlogs.items()}
        return Offset(positions=reached, state=without(state, SCHEDULE, TURN))
    progress_by_name = {name: _InputProgress(backlog) for name, backlog in backlogs.items()}
    if UNNAMED in progress_by_name:
        # One input alone is always first: its position says all, so no schedule is kept.
        _serve([(UNNAMED, 1)], progress_by_name, limits)
        return Offset(
            positions={UNNAMED: progress_by_name[UNNAMED].position()},
            state=without(state, SCHEDULE, TURN),
        )
    schedule = schedule_of(
        state, [name for name, progress in progress_by_name.items() if progress.has_more], now_ms
    )
    service = schedule.plan_service(now_ms, urgencies, defers_lowest=defers_lowest)
    count, served = _serve(list(service), progress_by_name, limits)
    left = [name for name in served if progress_by_name[name].has_more]
    next_schedule = schedule.after_service(service, count, served, left, now_ms)
    reached = {name: progress.position() for name, progress in progress_by_name.items()}
    return Offset(positions=reached, state=with_schedule(state, next_schedule))


_Visit = tuple[str, int]
"""An input's name and weight."""


def _serve(
    visits: list[_Visit], progress_by_input: Mapping[str, _InputProgress], limits: Limits
) -> tuple[int, list[str]]:
    """Let inputs take steps, in this order.

    Returns how many inputs were served in turn before the first miss, and all served names.
    """
    room = _Room(limits)
    served, count = _visit(visits, progress_by_input, room)
    again = served
    while again := [visit for visit in again if progress_by_input[visit[0]].has_more]:
        again, _ = _visit(again, progress_by_input, room)
    return count, [name for name, _ in served]


def _visit(
    visits: list[_Visit], progress_by_input: Mapping[str, _InputProgress], room: _Room
) -> tuple[list[_Visit], int]:
    """Let each input take its share; return the served, and how many before the first miss."""
    served: list[_Visit] = []
    count: int | None = None
    weight_left = sum(weight for _, weight in visits)
    for name, weight in visits:
        if room.is_full:
            break
        progress = progress_by_input[name]
        if progress.take(room, room.share(weight, weight_left)) or not progress.has_more:
            served.append((name, weight))
        elif count is None:
            count = len(served)
        weight_left -= weight
    return served, len(served) if count is None else count


_Amounts = tuple[int, int, int]
"""Rows, bytes and epochs."""


def _first_amounts(piece: ReadPiece, steps: int) -> _Amounts:
    """Return the amounts in a piece's first steps."""
    held = (piece.rows, piece.bytes, piece.epochs)
    rows, size, epochs = (amount * steps // piece.steps for amount in held)
    return rows, size, epochs


class _InputProgress:
    """A batch's progress in one input."""

    def __init__(self, backlog: Backlog) -> None:
        self._start = backlog.start
        self._pieces = iter(backlog.pieces)
        self._piece = next(self._pieces, None)
        self._steps = 0
        self._reached: tuple[ReadPiece, int] | None = None

    @property
    def has_more(self) -> bool:
        """Whether data is left."""
        return self._piece is not None

    def position(self) -> Position:
        """Return the reached position."""
        if self._reached is None:
            return self._start
        piece, steps = self._reached
        return piece.after(steps)

    def take(self, room: _Room, share: _Amounts) -> bool:
        """Take the steps fitting into a share, or one step if the limits have room for it.

        Returns whether a step with rows, bytes or epochs was taken.
        """
        has_taken = False
        while self._piece is not None:
            steps = room.fitting(self._piece, self._steps, share)
            if not (steps or has_taken):
                steps = min(1, room.fitting(self._piece, self._steps, room.most))
            if not steps:
                break
            has_taken |= room.spend(self._piece, self._steps, steps)
            self._advance(self._piece, steps)
        return has_taken

    def _advance(self, piece: ReadPiece, steps: int) -> None:
        self._steps += steps
        self._reached = piece, self._steps
        if self._steps == piece.steps:
            self._piece, self._steps = next(self._pieces, None), 0


class _Room:
    """A batch's limits, and its amounts so far."""

    def __init__(self, limits: Limits) -> None:
        bounds = (limits.rows, limits.bytes, limits.epochs)
        rows, size, epochs = (_NO_BOUND if most is None else most for most in bounds)
        self.most: _Amounts = rows, size, epochs
        self._spent: _Amounts = 0, 0, 0
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached by a non-empty batch."""
        return not self._is_empty and any(
            spent >= most for spent, most in zip(self._spent, self.most, strict=True)
        )

    def share(self, weight: int, of_weights: int) -> _Amounts:
        """Return the bounds for an input with this weight in the remaining limits."""
        rows, size, epochs = (
            min(most, spent + (most - spent) * weight // of_weights)
            for spent, most in zip(self._spent, self.most, strict=True)
        )
        return rows, size, epochs

    def fitting(self, piece: ReadPiece, skipped: int, bounds: _Amounts) -> int:
        """Return how many steps after the first ``skipped`` ones fit into bounds."""
        left = piece.steps - skipped
        complete, taken = _first_amounts(piece, piece.steps), _first_amounts(piece, skipped)
        if not any(complete):
            return left
        steps = min(
            _fitting(piece.steps, most - spent + held, amount) - skipped
            for most, spent, held, amount in zip(bounds, self._spent, taken, complete, strict=True)
        )
        return max(min(left, steps), int(self._is_empty))

    def spend(self, piece: ReadPiece, skipped: int, steps: int) -> bool:
        """Take steps after the first ``skipped`` ones; return whether they hold any amount."""
        before, after = _first_amounts(piece, skipped), _first_amounts(piece, skipped + steps)
        rows, size, epochs = (
            spent + then - now for spent, now, then in zip(self._spent, before, after, strict=True)
        )
        self._spent = rows, size, epochs
        counts = any((piece.rows, piece.bytes, piece.epochs))
        self._is_empty &= not counts
        return counts


def _fitting(steps: int, room: int, amount: int) -> int:
    """Return how many steps fit, if all steps together hold an amount."""
    if amount:
        return max(0, room) * steps // amount
    return steps if room >= 0 else 0
