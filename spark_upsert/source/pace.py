"""How far a batch goes: a pure function of what lies ahead, of limits and of a state.

A batch takes whole steps, in order, as long as no limit is exceeded. The first step that has
anything in it is taken whatever its size, because a batch that takes nothing would be asked for
again for ever: of epochs of one input, a batch is the longest prefix that fits or holds one only.

Limits count for all inputs together. These are served in turn, in the order of their names: each
may take its share of what is left, or one step that is larger, round after round.
The next batch begins with the first input whose next step did not fit, and ``turn`` in the state
remembers it. So nobody starves: an input that has something is served by this batch, or it is the
one that the next begins with, or it has come closer to that; hence within as many batches as there
are inputs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from spark_upsert.options.query import QueryOptions
from spark_upsert.source.input import Backlog, Piece
from spark_upsert.source.offset import Offset
from spark_upsert.source.position import Json, Position

TURN = "turn"
"""In the state of an offset: the input that the next batch begins with, or the one behind it."""

_NO_BOUND = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a batch holds at most; None: any number."""

    rows: int | None = None
    bytes: int | None = None
    epochs: int | None = None

    @classmethod
    def of(cls, options: QueryOptions) -> Limits:
        """Return the limits that options mean."""
        return cls(rows=options.rows_max, bytes=options.bytes_max, epochs=options.epochs_max)

    @property
    def is_none(self) -> bool:
        """Whether nothing is limited."""
        return self.rows is self.bytes is self.epochs is None


def pace(
    backlogs: Mapping[str, Backlog],
    limits: Limits | None,
    state: Mapping[str, Json],
) -> Offset:
    """Return where a batch ends.

    Parameters
    ----------
    backlogs : mapping of str to Backlog
        What lies before each input.
    limits : Limits or None
        None: the batch takes all there is, even what would be batches of their own.
    state : mapping
        What the batch before left (`Offset.state`).
    """
    if limits is None:
        reached = {name: backlog.end() for name, backlog in backlogs.items()}
        return Offset(positions=reached, state=state)
    if limits.is_none:
        reached = {name: backlog.reach() for name, backlog in backlogs.items()}
        return Offset(positions=reached, state=state)
    turn = state.get(TURN)
    ways = [_Way(name, backlogs[name]) for name in sorted(backlogs)]
    first = bisect_left([way.name for way in ways], turn) if isinstance(turn, str) else 0
    refused = _serve([*ways[first:], *ways[:first]], limits)
    if refused is not None and len(ways) > 1:
        state = {**state, TURN: refused}
    return Offset(positions={way.name: way.position() for way in ways}, state=state)


def _serve(ways: list[_Way], limits: Limits) -> str | None:
    """Let inputs take in turn; return the first whose next step did not fit."""
    room = _Room(limits)
    refused: str | None = None
    while ways:
        again: list[_Way] = []
        for index, way in enumerate(ways):
            if way.take(room, room.share(len(ways) - index)):
                again.append(way)
            elif way.has_more:
                refused = refused or way.name
        ways = again
    return refused


_Amounts = tuple[int, int, int]
"""Rows, bytes and epochs."""


def _behind(piece: Piece, steps: int) -> _Amounts:
    """Return what some steps of a piece hold."""
    held = (piece.rows, piece.bytes, piece.epochs)
    rows, size, epochs = (amount * steps // piece.steps for amount in held)
    return rows, size, epochs


class _Way:
    """How far a batch has come in one input."""

    def __init__(self, name: str, backlog: Backlog) -> None:
        self.name = name
        self._start = backlog.start
        self._pieces = iter(backlog.pieces)
        self._piece = next(self._pieces, None)
        self._steps = 0
        self._reached: tuple[Piece, int] | None = None

    @property
    def has_more(self) -> bool:
        """Whether something lies ahead."""
        return self._piece is not None

    def position(self) -> Position:
        """Return the position that it has reached."""
        if self._reached is None:
            return self._start
        piece, steps = self._reached
        return piece.after(steps)

    def take(self, room: _Room, share: _Amounts) -> bool:
        """Take what fits into a share, but at least one step if there is room for it.

        Returns whether there was something to take that counts.
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

    def _advance(self, piece: Piece, steps: int) -> None:
        self._steps += steps
        self._reached = piece, self._steps
        if self._steps == piece.steps:
            self._piece, self._steps = next(self._pieces, None), 0


class _Room:
    """What a batch may hold, and what it holds so far."""

    def __init__(self, limits: Limits) -> None:
        bounds = (limits.rows, limits.bytes, limits.epochs)
        rows, size, epochs = (_NO_BOUND if most is None else most for most in bounds)
        self.most: _Amounts = rows, size, epochs
        self._spent: _Amounts = 0, 0, 0
        self._is_empty = True

    def share(self, count: int) -> _Amounts:
        """Return the bounds of one of so many who may each have as much of the rest."""
        rows, size, epochs = (
            min(most, spent - (spent - most) // count)
            for spent, most in zip(self._spent, self.most, strict=True)
        )
        return rows, size, epochs

    def fitting(self, piece: Piece, behind: int, bounds: _Amounts) -> int:
        """Return how many steps behind those taken fit into bounds."""
        left = piece.steps - behind
        whole, taken = _behind(piece, piece.steps), _behind(piece, behind)
        if not any(whole):
            return left
        steps = min(
            _fitting(piece.steps, most - spent + held, amount) - behind
            for most, spent, held, amount in zip(bounds, self._spent, taken, whole, strict=True)
        )
        return max(min(left, steps), int(self._is_empty))

    def spend(self, piece: Piece, behind: int, steps: int) -> bool:
        """Take some steps behind those taken; return whether they count."""
        before, after = _behind(piece, behind), _behind(piece, behind + steps)
        rows, size, epochs = (
            spent + then - now for spent, now, then in zip(self._spent, before, after, strict=True)
        )
        self._spent = rows, size, epochs
        counts = any((piece.rows, piece.bytes, piece.epochs))
        self._is_empty &= not counts
        return counts


def _fitting(steps: int, room: int, amount: int) -> int:
    """Return how many of some steps fit, which hold an amount together."""
    if amount:
        return max(0, room) * steps // amount
    return steps if room >= 0 else 0
