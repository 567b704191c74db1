"""Memory pressure: which readers pause, which holders spill, and when all go on. Pure decisions.

Readers pause above 0.80 of the limit and go on below 0.70 (hysteresis), so that they do not stop
and go with every batch. One rule stands above that: an input that the merge waits for is never
paused, or no room would ever be made (`MemoryPressure.may_read`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

PAUSE_PERCENT = 80
RESUME_PERCENT = 70

MEMORY_BYTES = 512 << 20
"""The default limit."""


class Relief(Enum):
    """The means that are allowed when memory is short."""

    PAUSE = "pause"
    SPILL = "spill"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressure:
    """The state of memory: its limit, and whether readers are paused.

    Parameters
    ----------
    limit_bytes : int
        The most that may be used.
    relief : Relief
        The means that are allowed.
    is_paused : bool
        Whether readers are paused.
    """

    limit_bytes: int = MEMORY_BYTES
    relief: Relief = Relief.BOTH
    is_paused: bool = False

    def __post_init__(self) -> None:
        if self.limit_bytes < 1:
            raise ValueError(f"limit_bytes is at least 1, found {self.limit_bytes}")

    def after(self, used_bytes: int) -> MemoryPressure:
        """Return the pressure when so much is used."""
        if self.relief is Relief.SPILL:
            return self
        if used_bytes * 100 > self.limit_bytes * PAUSE_PERCENT:
            is_paused = True
        elif used_bytes * 100 < self.limit_bytes * RESUME_PERCENT:
            is_paused = False
        else:
            return self
        return self if is_paused is self.is_paused else replace(self, is_paused=is_paused)

    def may_read(self, *, is_awaited: bool) -> bool:
        """Return whether an input is read on.

        Parameters
        ----------
        is_awaited : bool
            Whether the merge can take nothing else until this input has given more, or has ended.
        """
        return is_awaited or not self.is_paused

    def spill_bytes(self, used_bytes: int) -> int:
        """Return how many bytes to spill when so much is used: down to 0.70 of the limit."""
        if self.relief is Relief.PAUSE or used_bytes * 100 <= self.limit_bytes * PAUSE_PERCENT:
            return 0
        return used_bytes - self.limit_bytes * RESUME_PERCENT // 100

    def is_exceeded(self, used_bytes: int) -> bool:
        """Return whether more is used than there may be."""
        return used_bytes > self.limit_bytes


class Holding(IntEnum):
    """Kinds of holders of memory, in the order in which they are spilled."""

    NODE_BUFFER = 0
    GRACE_HASH = 10
    RESHAPE = 15
    SORT = 20
    SORT_MERGE_JOIN = 25
    HASH_AGGREGATE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A part of a merge that holds memory which could be spilled."""

    name: str
    holding: Holding = Holding.NODE_BUFFER
    bytes: int


def choose_spills(holders: Iterable[Holder], bytes_needed: int) -> tuple[Holder, ...]:
    """Return the holders that have to spill so that so many bytes become free.

    The kind that is cheapest to read back goes first, then the holder of most bytes, so that files
    are few; names decide between equals. If all together hold too little, all are returned.
    """
    chosen: list[Holder] = []
    for holder in sorted(holders, key=lambda each: (each.holding, -each.bytes, each.name)):
        if bytes_needed <= 0:
            break
        if holder.bytes > 0:
            chosen.append(holder)
            bytes_needed -= holder.bytes
    return tuple(chosen)
