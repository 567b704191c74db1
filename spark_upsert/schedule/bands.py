"""Five bands of priorities; each has a weight, by which it gets its share of service."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_upsert.schedule.priority import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Priorities from a floor up to the next one."""

    floor: int | None
    """The least priority in the band; None: it has none, and the band may be deferred."""
    weight: int
    """The number of its inputs that are served in a round."""


BANDS = (
    Band(floor=None, weight=1),
    Band(floor=0, weight=1),
    Band(floor=250, weight=2),
    Band(floor=500, weight=4),
    Band(floor=750, weight=8),
)
"""The bands, the lowest first: ``BANDS[4]`` is called B4 elsewhere."""

LOWEST = 0

WEIGHTS: Numbers = np.array([band.weight for band in BANDS])

ROUND = int(WEIGHTS.sum())
"""The most inputs that a round serves."""

_FLOORS = np.array([band.floor for band in BANDS if band.floor is not None])


def bands_of(priorities: Numbers) -> Numbers:
    """Return the band of each priority, as its index.

    >>> bands_of(np.array([-1, 0, 249, 250, 749, 2000])).tolist()
    [0, 1, 1, 2, 3, 4]
    """
    return np.searchsorted(_FLOORS, priorities, side="right").astype(np.int64)
