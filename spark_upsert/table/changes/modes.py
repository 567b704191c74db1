"""The modes of a reader of changes: which ones it is shown, or which history they make.

The modes of `Deduplication` are those of Spark's own change data capture (SPARK-55668).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_upsert.model.names import names_of


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", names_of(self.columns, "columns"))


VALID_NAMES = ("valid_from", "valid_to", "is_current")
"""The columns that a history has behind those of the table."""


class ValidBy(Enum):
    """The axis on which the validity of rows is told."""

    TIME = "time"
    """The time of the commit."""
    VERSION = "version"
    """The version that was committed."""
    ORDER = "order"
    """The order key of the row, and of the delete that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """The options of a history."""

    columns: tuple[str, ...]
    """Columns of the table."""
    by: ValidBy = ValidBy.TIME
    tracked: tuple[str, ...] = ()
    """Those of ``columns`` that open a row when they change; none: all of them."""
    untracked: tuple[str, ...] = ()
    """Those of ``columns`` that open none, where all others do; none beside ``tracked``."""
