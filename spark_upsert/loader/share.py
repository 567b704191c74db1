"""The share of one rank in each epoch, cut into batches: arithmetic.

Each of W ranks gets one piece of the N rows of an epoch, in their order, and reads no piece of
another rank. `Remainder` is the rule for rows that do not come out even:

=========  ======================================  =========================================
remainder  rows of rank r, in batches of B         over all ranks
=========  ======================================  =========================================
keep       N // W, and one more if r < N % W       each row exactly once
drop       N // (W * B) * B                        each row at most once; the last are left out
repeat     ceil(N / (W * B)) * B                   each row at least once; the first come again
=========  ======================================  =========================================

With ``drop`` and ``repeat`` all ranks have equally many batches, all of B rows. With ``keep`` the
last batch of a rank may be shorter, and ranks may differ by one batch.

**Lanes.** A rank's piece is cut into K lanes, and batch i is the next one of lane ``i % K``. So K
processes can each read a lane of their own, and what they give in turn is the same sequence that
one process gives. Lanes are as long as each other, or one batch longer, so that their turns never
end early; they stand in the piece so that its last batch is also the last one that is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Remainder(Enum):
    """The rule for rows that cannot be dealt out evenly."""

    KEEP = "keep"
    """Each row exactly once: ranks differ by a row, and last batches may be short."""

    DROP = "drop"
    """Equal numbers of whole batches: the last rows of the epoch are left out."""

    REPEAT = "repeat"
    """Equal numbers of whole batches: the first rows of the epoch come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """The rows of one rank: ``first <= position < first + rows``, in batches."""

    first: int
    rows: int
    batch_rows: int
    lanes: int

    @classmethod
    def of(
        cls,
        rows: int,
        *,
        rank: int,
        world: int,
        batch_rows: int,
        remainder: Remainder,
        lanes: int = 1,
    ) -> RankShare:
        """Return what a rank gets of an epoch of so many rows."""
        match remainder:
            case Remainder.KEEP:
                own = rows // world + (rank < rows % world)
                first = rank * (rows // world) + min(rank, rows % world)
            case Remainder.DROP:
                own = rows // (world * batch_rows) * batch_rows
                first = rank * own
            case Remainder.REPEAT:
                own = -(-rows // (world * batch_rows)) * batch_rows
                first = rank * own
        return cls(first=first, rows=own, batch_rows=batch_rows, lanes=lanes)

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return -(-self.rows // self.batch_rows)

    def batch(self, index: int) -> tuple[int, int]:
        """Return the positions ``[first, end)`` of a batch; the end may be behind the epoch's."""
        shorter, longer_count = divmod(self.batches, self.lanes)
        lane, turn = index % self.lanes, index // self.lanes
        # The longer lanes, which are the first to be served, stand behind the shorter ones.
        place = (lane - longer_count) % self.lanes
        before = place * shorter + max(0, place - (self.lanes - longer_count))
        first = self.first + (before + turn) * self.batch_rows
        return first, min(first + self.batch_rows, self.first + self.rows)
