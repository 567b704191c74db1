"""The random numbers of the seeded order: WyRand, as exact as a file format.

The state is one 64-bit number, at first the seed, and all arithmetic is modulo 2**64:

    state += 0x2d358dccaa6c78a5
    t      = state * (state XOR 0x8bb84b93962eacc9)      all 128 bits
    raw    = low(t) XOR high(t)

A draw below a bound n takes raw numbers r until low(r * n) >= (2**64 - n) mod n, and is
high(r * n): every outcome is equally likely. States go up by a constant, so that any number of
raw numbers is computed at once, and the state behind them is known beforehand.

Source: fastrand 2.3.0, ``Rng::u64`` and ``Rng::usize`` on a 64-bit machine. That package promises
the same numbers for no other version; here the algorithm is fixed, because checkpoints hold its
state. Rejected: numpy's own generators, because their bounded draws may change between versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""An array of 64-bit numbers."""

SEED_END = 1 << 64
"""Seeds and states are below."""

_MASK = SEED_END - 1
_STEP = 0x2D358DCCAA6C78A5
_STEPS = np.uint64(_STEP)
_MIXER = np.uint64(0x8BB84B93962EACC9)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFF_FFFF)


def raw_numbers(state: int, count: int) -> tuple[Words, int]:
    """Return the next raw numbers, and the state behind them.

    Parameters
    ----------
    state : int
        From 0 up to 2**64 - 1.
    count : int
        How many numbers.
    """
    # Arrays wrap around silently, where numbers of numpy would warn.
    states = np.arange(1, count + 1, dtype=np.uint64)
    states *= _STEPS
    states += np.uint64(state)
    high, low = _product(states, states ^ _MIXER)
    low ^= high
    return low, (state + count * _STEP) & _MASK


def draws(state: int, bound: int, count: int) -> tuple[Words, int]:
    """Return the next draws, and the state behind the last one.

    A draw consumes at least one raw number, also below the bound 1, where the outcome is certain.

    Parameters
    ----------
    state : int
        From 0 up to 2**64 - 1.
    bound : int
        From 1 up to 2**64 - 1; draws are below it.
    count : int
        How many draws.
    """
    if not 0 < bound < SEED_END:
        raise ValueError(f"no draw is below {bound}")
    if bound == 1:
        return np.zeros(count, dtype=np.uint64), (state + count * _STEP) & _MASK
    threshold = np.uint64((SEED_END - bound) % bound)
    drawn: list[Words] = []
    missing = count
    while missing > 0:
        # What is missing is consumed in any case, so that no state must be taken back.
        numbers, state = raw_numbers(state, missing)
        high, low = _product(numbers, np.uint64(bound))
        taken = high[low >= threshold]
        drawn.append(taken)
        missing -= len(taken)
    return np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.uint64), state


def _product(left: Words, right: Any) -> tuple[Words, Words]:
    """Return the high and the low words of products; ``right`` may be one number."""
    left_low, left_high = left & _LOW_HALF, left >> _HALF
    right_low, right_high = right & _LOW_HALF, right >> _HALF
    middle = left_high * right_low
    # None of these sums exceeds 2**64 - 1, which is (2**32 - 1)**2 + 2 * (2**32 - 1).
    carried = (left_low * right_low >> _HALF) + (middle & _LOW_HALF) + left_low * right_high
    high = left_high * right_high + (middle >> _HALF) + (carried >> _HALF)
    return high, left * right
