"""The urgency of an input: its set priority, or how lately it was read, and how long it waits.

::

    manual = a set priority, from -1000 up to 1000
    auto   = 500 * 2 ** (-idle / 30 s), none from 300 s on          if no priority is set
    age    = 100 a second of waiting, 1000 at most
    P      = manual or auto, plus age, rounded half away from zero

All numbers are whole, so that every process finds the same: a point is `SCALE` units, and a
millisecond of waiting is worth a tenth of a point. Each whole half-life is a shift by one bit, and
the decay within a half-life is looked up in a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from spark_upsert.errors import OptionError

PROPERTY = "priority"
"""The name of the write option and of the table's property."""

PRIORITY_MIN = -1000
PRIORITY_MAX = 1000

WAITED_MAX_MS = 10_000
"""The wait from which on an input grows no more urgent."""

IDLE_MAX_MS = 300_000
"""The time without a read after which an input counts as never read."""

HALF_LIFE_MS = 30_000

SCALE = 10 << 20
"""Units in a point: the number halves twenty times without a remainder, and a tenth is whole."""

_AUTO_MAX = 500 * SCALE
_AGE_PER_MS = SCALE // 10

Numbers = npt.NDArray[np.int64]

_WHOLE = re.compile(r"\s*([+-]?\d{1,9})\s*", re.ASCII)


def parse_priority(text: str, *, option: str = PROPERTY) -> int:
    """Parse a priority.

    Parameters
    ----------
    option : str, optional
        The option that an error names.

    Raises
    ------
    OptionError
        The text is no whole number, or out of bounds.
    """
    found = _WHOLE.fullmatch(text)
    if found is None or not PRIORITY_MIN <= int(found[1]) <= PRIORITY_MAX:
        expected = f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}"
        raise OptionError.invalid(option, text, expected)
    return int(found[1])


def priority_in(properties: Mapping[str, str]) -> int | None:
    """Return the priority that a table's properties set, None if they set none."""
    own = properties.get(PROPERTY)
    return None if own is None else parse_priority(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """An input's set priority and last read, from which its base priority follows."""

    manual: int | None = None
    """The set priority; beyond the bounds it counts as the bound."""
    read_ms: int | None = None
    """The time at which it was last read; None: never, or reads are not asked for."""

    def base(self, now_ms: int) -> int:
        """Return the priority without its age, in units."""
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
    """Return the priorities of inputs, in points.

    Parameters
    ----------
    bases : numpy.ndarray of int64, shape (n,)
        The priorities without their age, in units (`Urgency.base`).
    waited_ms : numpy.ndarray of int64, shape (n,)
        How long each waits. A negative time counts as 0: a clock went back.
    """
    units = bases + np.clip(waited_ms, 0, WAITED_MAX_MS) * _AGE_PER_MS
    # Half away from zero, which is not what `round` does.
    rounded: Numbers = np.sign(units) * ((2 * np.abs(units) + SCALE) // (2 * SCALE))
    return rounded


def priority_of(standing: Urgency, *, now_ms: int, waited_ms: int) -> int:
    """Return the priority of one input, in points.

    >>> priority_of(Urgency(manual=-1000), now_ms=0, waited_ms=7_500)
    -250
    >>> priority_of(Urgency(read_ms=0), now_ms=90_000, waited_ms=0)
    63
    """
    found = priorities(np.array([standing.base(now_ms)]), np.array([waited_ms]))
    return int(found[0])


@cache
def _decay() -> Numbers:
    """Return the units that are left after each millisecond of one half-life."""
    share = np.exp2(np.arange(HALF_LIFE_MS) / -HALF_LIFE_MS)
    found: Numbers = np.rint(_AUTO_MAX * share).astype(np.int64)
    return found
