"""Exact orders of rows from several inputs, as pure functions over row counts (docs/adr/0024).

`advance` gives each next row's input. A cut changes nothing: ``m + n`` rows equal ``m`` rows, then
``n`` rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""64-bit unsigned numbers."""

SEED_END = 1 << 64
"""Exclusive upper bound for seeds and states."""

_MASK = SEED_END - 1
_STEP = 0x2D358DCCAA6C78A5
_STEPS = np.uint64(_STEP)
_MIXER = np.uint64(0x8BB84B93962EACC9)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFF_FFFF)


def raw_numbers(state: int, count: int) -> tuple[Words, int]:
    """Return the next raw numbers and the new state.

    WyRand from fastrand 2.3.0, fixed here because checkpoints contain its state (modulo 2**64)::

        state += 0x2d358dccaa6c78a5
        t      = state * (state XOR 0x8bb84b93962eacc9)      all 128 bits
        raw    = low(t) XOR high(t)
    """
    # Arrays wrap around silently, where numbers of numpy would warn.
    states = np.arange(1, count + 1, dtype=np.uint64)
    states *= _STEPS
    states += np.uint64(state)
    high, low = _product(states, states ^ _MIXER)
    low ^= high
    return low, (state + count * _STEP) & _MASK


def draws(state: int, bound: int, count: int) -> tuple[Words, int]:
    """Return the next draws below ``bound`` and the new state.

    A draw below ``n`` takes raw numbers ``r`` until ``low(r * n) >= (2**64 - n) mod n`` and is
    ``high(r * n)``. It consumes at least one, even with the bound 1, where the outcome is certain.
    """
    if not 0 < bound < SEED_END:
        raise ValueError(f"no draw is below {bound}")
    if bound == 1:
        return np.zeros(count, dtype=np.uint64), (state + count * _STEP) & _MASK
    threshold = np.uint64((SEED_END - bound) % bound)
    drawn: list[Words] = []
    missing = count
    while missing > 0:
        # Missing draws consume numbers in any case, so no state must be rolled back.
        numbers, state = raw_numbers(state, missing)
        high, low = _product(numbers, np.uint64(bound))
        taken = high[low >= threshold]
        drawn.append(taken)
        missing -= len(taken)
    return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.uint64), state


def _product(left: Words, right: Any) -> tuple[Words, Words]:
    """Return the products' high and low words; ``right`` may be a single number."""
    left_low, left_high = left & _LOW_HALF, left >> _HALF
    right_low, right_high = right & _LOW_HALF, right >> _HALF
    middle = left_high * right_low
    # None of these sums exceeds 2**64 - 1, which is (2**32 - 1)**2 + 2 * (2**32 - 1).
    carried = (left_low * right_low >> _HALF) + (middle & _LOW_HALF) + left_low * right_high
    high = left_high * right_high + (middle >> _HALF) + (carried >> _HALF)
    return high, left * right


Counts = npt.NDArray[np.int64]
"""Rows per input, in the order of the inputs' declaration."""

Picks = npt.NDArray[np.int64]
"""Input index for each output row."""

PICKS_AT_ONCE = 1 << 16
"""Maximum array length for a long order: 512 KiB each."""

_FEWEST_DRAWS = 64
"""Minimum draws in one step; the number doubles until an input runs dry."""


@dataclass(frozen=True, slots=True)
class Concat:
    """Input 0 to its end, then input 1, and so on. Its only state is the remaining rows."""

    def to_json(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """One row per input in turn; inputs without rows are skipped.

    Parameters
    ----------
    cursor : int
        Index of the first input, modulo the input count.
    """

    cursor: int = 0

    def __post_init__(self) -> None:
        if type(self.cursor) is not int or self.cursor < 0:
            raise ValueError(f"a cursor counts from 0, found {self.cursor!r}")

    def to_json(self) -> dict[str, Any]:
        return {"cursor": self.cursor}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """One random draw per row among the inputs with rows, even if only one has rows.

    Parameters
    ----------
    state : int
        Generator state (`raw_numbers`), initially the seed. From 0 up to 2**64 - 1.
    """

    state: int

    def __post_init__(self) -> None:
        if type(self.state) is not int or not 0 <= self.state < SEED_END:
            raise ValueError(f"a generator's state is from 0 up to 2**64 - 1, found {self.state!r}")

    def to_json(self) -> dict[str, Any]:
        # As text, because readers of JSON may take numbers for doubles.
        return {"random": str(self.state)}


Order = Concat | RoundRobin | Seeded
"""State of an exact order; its JSON form may be part of a checkpoint."""


def order_from_json(record: Mapping[str, Any]) -> Order:
    """Rebuild an order from its ``to_json`` form.

    Raises
    ------
    ValueError
        The record is not a valid order state.
    """
    fields = dict(record)
    match fields:
        case {"cursor": int(cursor)} if len(fields) == 1:
            return RoundRobin(cursor=cursor)
        case {"random": str(text)} if len(fields) == 1 and text.isascii() and text.isdigit():
            return Seeded(state=int(text))
    if not fields:
        return Concat()
    raise ValueError(f"{fields!r} is no state of an order")


def advance(
    order: Order, remaining: Sequence[int] | Counts, limit: int | None = None
) -> tuple[Picks, Order]:
    """Return the input for each of the next rows, and the new order state.

    Parameters
    ----------
    remaining : sequence of int, shape (n,)
        Remaining rows per input. With a limit, ``min(rows, limit)`` is enough.
    limit : int or None
        Maximum rows; None: all rows, in one array.

    Returns
    -------
    picks : array of int64, shape (min(limit, sum(remaining)),)
        Input indices. Each input occurs at most as often as it has rows.
    order : Order
        State for the next call, with the remaining rows less the picked ones.
    """
    counts = np.asarray(remaining, dtype=np.int64)
    if counts.ndim != 1 or (counts < 0).any() or (limit is not None and limit < 0):
        raise ValueError(f"rows are counted from 0, found {remaining!r} and the limit {limit!r}")
    if limit is not None:
        counts = np.minimum(counts, limit)
    rows = int(counts.sum())
    rows = rows if limit is None else min(rows, limit)
    if rows == 0:
        return np.zeros(0, dtype=np.int64), order
    match order:
        case Concat():
            return _concat(counts, rows), order
        case RoundRobin():
            return _round_robin(order, counts, rows)
        case Seeded():
            return _seeded(order, counts, rows)
        case _:
            assert_never(order)


def iter_picks(
    order: Order, remaining: Sequence[int] | Counts, limit: int | None = None
) -> Iterator[tuple[Picks, Order]]:
    """Yield the result of `advance` in pieces, with bounded memory for any counts.

    Yields
    ------
    picks : array of int64
        At most `PICKS_AT_ONCE`, never empty.
    order : Order
        State after these picks.
    """
    left = np.array(remaining, dtype=np.int64)
    rows = int(left.sum()) if limit is None else limit
    while rows > 0:
        picks, order = advance(order, left, min(rows, PICKS_AT_ONCE))
        if not len(picks):
            return
        left -= rows_of_inputs(picks, len(left))
        rows -= len(picks)
        yield picks, order


def spend(
    order: Order, remaining: Sequence[int] | Counts, limit: int | None = None
) -> tuple[Counts, Order]:
    """Return the next rows' count per input, and the new order state.

    Planners use it instead of `advance`, because it takes bounded memory.
    """
    taken = np.zeros(len(remaining), dtype=np.int64)
    for picks, next_state in iter_picks(order, remaining, limit):
        taken += rows_of_inputs(picks, len(taken))
        order = next_state
    return taken, order


def rows_of_inputs(picks: Picks, inputs: int) -> Counts:
    """Return how often each input is picked."""
    return np.bincount(picks, minlength=inputs).astype(np.int64, copy=False)


def _concat(counts: Counts, rows: int) -> Picks:
    before = np.cumsum(counts) - counts
    return np.repeat(np.arange(len(counts)), np.clip(rows - before, 0, counts))


def _round_robin(order: RoundRobin, counts: Counts, rows: int) -> tuple[Picks, Order]:
    # The k-th row of an input is in round k, and a round goes once around, from the cursor on.
    cursor = order.cursor % len(counts)
    around = np.roll(np.arange(len(counts)), -cursor)
    # Only so many rounds as the rows need: inputs may be many, and each of them long.
    rounds = bisect_left(range(rows), rows, key=lambda most: int(np.minimum(counts, most).sum()))
    counts = np.minimum(counts, rounds)[around]
    ends = np.cumsum(counts)
    round_of_row = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    picks = np.repeat(around, counts)[np.argsort(round_of_row, kind="stable")[:rows]]
    return picks, RoundRobin(cursor=(int(picks[-1]) + 1) % len(counts))


def _seeded(order: Seeded, counts: Counts, rows: int) -> tuple[Picks, Order]:
    state = order.state
    ready = np.flatnonzero(counts)
    left = counts[ready]
    picked: list[Picks] = []
    at_once = _FEWEST_DRAWS
    while rows > 0:
        # As long as no input runs dry, the bound stays, and draws are made many at once.
        count = min(rows, at_once if len(ready) > 1 else rows)
        words, next_state = draws(state, len(ready), count)
        drawn = words.astype(np.int64)
        rows_by_input = np.bincount(drawn, minlength=len(ready))
        at_once *= 2
        if (rows_by_input >= left).any():
            length = _until_one_is_dry(drawn, rows_by_input, left)
            if length < count:
                drawn, at_once = drawn[:length], max(_FEWEST_DRAWS, length)
                rows_by_input = np.bincount(drawn, minlength=len(ready))
                next_state = draws(state, len(ready), length)[1]
        state = next_state
        picked.append(ready[drawn])
        rows -= len(drawn)
        left = left - rows_by_input
        ready, left = ready[left > 0], left[left > 0]
    return np.concatenate(picked), Seeded(state=state)


def _until_one_is_dry(drawn: Picks, taken_counts: Counts, left: Counts) -> int:
    """Return the number of draws until the first input has no rows left."""
    draw_order = np.argsort(drawn, kind="stable")
    begins = np.cumsum(taken_counts) - taken_counts
    dry = np.flatnonzero(taken_counts >= left)
    return int(draw_order[begins[dry] + left[dry] - 1].min()) + 1
