"""When memory is short: who pauses, who spills, and when all go on. Pure: it looks and returns.

Readers pause above 0.80 of the limit and go on below 0.70, so that they do not stop and go with
every batch. One rule stands above it: an input that somebody waits for is never paused, or nobody
would ever make room (`MemoryPressure.may_read`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

PAUSE_PERCENT = 80
RESUME_PERCENT = 70

MEMORY_BYTES = 512 << 20
"""The limit, if nothing else is asked for."""


class Relief(Enum):
    """What may be done when memory is short."""

    PAUSE = "pause"
    SPILL = "spill"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressure:
    """How short memory is.

    Parameters
    ----------
    limit_bytes : int
        What may be used.
    relief : Relief
        What may be done.
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
            Whether somebody takes nothing else until that input has given more, or has ended.
        """
        return is_awaited or not self.is_paused

    def spill_bytes(self, used_bytes: int) -> int:
        """Return how much has to be spilled when so much is used: down to the mark of going on."""
        if self.relief is Relief.PAUSE or used_bytes * 100 <= self.limit_bytes * PAUSE_PERCENT:
            return 0
        return used_bytes - self.limit_bytes * RESUME_PERCENT // 100

    def is_exceeded(self, used_bytes: int) -> bool:
        """Return whether more is used than there may be."""
        return used_bytes > self.limit_bytes


class Holding(IntEnum):
    """What holds memory, in the order in which it is spilled."""

    NODE_BUFFER = 0
    GRACE_HASH = 10
    RESHAPE = 15
    SORT = 20
    SORT_MERGE_JOIN = 25
    HASH_AGGREGATE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Somebody who holds memory that could be spilled."""

    name: str
    holding: Holding = Holding.NODE_BUFFER
    bytes: int


def choose_spills(holders: Iterable[Holder], bytes_needed: int) -> tuple[Holder, ...]:
    """Return who has to spill so that so many bytes become free.

    What is cheapest to read back goes first, then whoever holds most, so that files are few; names
    decide between equals. If all together hold too little, all of them are returned.
    """
    chosen: list[Holder] = []
    for holder in sorted(holders, key=lambda each: (each.holding, -each.bytes, each.name)):
        if bytes_needed <= 0:
            break
        if holder.bytes > 0:
            chosen.append(holder)
            bytes_needed -= holder.bytes
    return tuple(chosen)
