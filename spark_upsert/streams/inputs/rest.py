"""The rest of the snapshot that a stream begins with, in equal steps: a batch ends after any step.

    steps of about the same number of entries; after a step all smaller hashes are delivered

Hashes of whole keys are uniform, so that a step is a 65 536th of them. Where keys that begin alike
lie together (`TableSchema.hash_prefix`), the log says how wide a step may be: the rows of one
common value are many steps. The offset tells where a batch ended; nothing else depends on where
steps are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.streams.reads.steps import SNAPSHOT_STEPS
from spark_upsert.table.entries.cuts import Spread
from spark_upsert.table.log.manifest import Manifest

_STEP = HASH_END // SNAPSHOT_STEPS


@dataclass(frozen=True, slots=True)
class Rest:
    """The part of a snapshot with hashes from some number on."""

    first: int
    steps: int
    """The number of steps, at least one."""
    share: Fraction
    """The share of the rest in all entries of the snapshot."""
    spread: Spread | None
    """The spread of the hashes in the rest; None: it is uniform."""

    @classmethod
    def of(cls, manifest: Manifest | None, first: int) -> Rest:
        """Return the rest of a version of a table; no file is opened."""
        if manifest is None or not manifest.schema.hash_prefix:
            steps = -(-(HASH_END - first) // _STEP)
            return cls(first, steps, Fraction(steps, SNAPSHOT_STEPS), None)
        spread = Spread(HashRange(first, HASH_END), manifest.slices)
        whole = Spread(ALL_HASHES, manifest.slices)
        steps = min(SNAPSHOT_STEPS, max(1, spread.rows))
        return cls(first, steps, Fraction(spread.rows, max(1, whole.rows)), spread)

    def of_all(self, amount: int) -> int:
        """Return what is left of an amount that all entries have."""
        return int(amount * self.share)

    def hash_behind(self, steps: int) -> int:
        """Return the hash below which all is delivered behind so many steps."""
        if self.spread is None:
            return min(HASH_END, self.first + steps * _STEP)
        # Each step goes on, whatever is known of it.
        return max(self.first + steps, self.spread.hash_at(steps, self.steps))
