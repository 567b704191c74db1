"""How far a batch goes: a pure function of what lies ahead, of limits and of a state.

A batch takes whole steps, in order, as long as no limit is exceeded. The first step that has
anything in it is taken whatever its size, because a batch that takes nothing would be asked for
again for ever: of epochs, a batch is the longest prefix that fits or holds one only. Limits count
for all inputs together; inputs are served in the order of their names, so that the state decides
nothing yet and is handed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_upsert.source.input import Backlog, Piece
from spark_upsert.source.offset import Offset
from spark_upsert.source.position import Json, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a batch holds at most; None: any number."""

    rows: int | None = None
    bytes: int | None = None
    epochs: int | None = None

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
    elif limits.is_none:
        reached = {name: backlog.reach() for name, backlog in backlogs.items()}
    else:
        spent = _Spent(limits)
        reached = {name: _within(backlogs[name], spent) for name in sorted(backlogs)}
    return Offset(positions=reached, state=state)


def _within(backlog: Backlog, spent: _Spent) -> Position:
    last: tuple[Piece, int] | None = None
    for piece in backlog.pieces:
        steps = spent.take(piece)
        if steps:
            last = piece, steps
        if steps < piece.steps:
            break
    if last is None:
        return backlog.start
    piece, steps = last
    return piece.after(steps)


class _Spent:
    """What a batch holds so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rows = self._bytes = self._epochs = 0
        self._is_empty = True

    def take(self, piece: Piece) -> int:
        """Take as many steps of a piece as the limits allow; return how many."""
        if not (piece.rows or piece.bytes or piece.epochs):
            return piece.steps
        amounts = (
            (self._limits.rows, self._rows, piece.rows),
            (self._limits.bytes, self._bytes, piece.bytes),
            (self._limits.epochs, self._epochs, piece.epochs),
        )
        fitting = [
            _fitting(piece.steps, most - spent, amount)
            for most, spent, amount in amounts
            if most is not None
        ]
        steps = max(min([piece.steps, *fitting]), int(self._is_empty))
        self._rows += piece.rows * steps // piece.steps
        self._bytes += piece.bytes * steps // piece.steps
        self._epochs += piece.epochs * steps // piece.steps
        self._is_empty = False
        return steps


def _fitting(steps: int, room: int, amount: int) -> int:
    """Return how many of some steps fit, which hold an amount together."""
    if amount:
        return max(0, room) * steps // amount
    return steps if room >= 0 else 0
