"""The modes of a reader of changes: which ones it is shown.

The modes of `Deduplication` are those of Spark's own change data capture (SPARK-55668).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Deduplication(Enum):
    """The rule for changes that are left out."""

    NONE = "none"
    """Every change, those included that leave all values as they were."""
    DROP_CARRYOVERS = "dropCarryovers"
    """No update that leaves all values as they were."""
    NET_CHANGES = "netChanges"
    """At most one change per key over all epochs of one read, shown at its last epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The options of a reader of changes."""

    columns: tuple[str, ...]
    deduplication: Deduplication = Deduplication.DROP_CARRYOVERS
    compute_updates: bool = True
    """Whether a retraction and an insertion of one key are called an update."""
