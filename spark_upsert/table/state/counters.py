"""Row counters per epoch (`Counters`): every input row is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Row counts for one epoch, or a part of it, by outcome. Unit: rows.

        rows   = inserts + updates + deletes + absent + quarantined        (eligible)
                 + superseded + duplicates + stale + rejected + skipped    (ignored)
        output = inserts + 2 * updates + deletes + displaced + retracted + restored
        live   = live before + inserts - deletes - displaced - retracted + restored

    ``displaced`` is a subset of ``quarantined``; ``tied`` and ``late`` overlap the others. A put
    that clears an error entry is an insert, a delete that does so is ``absent``. An event that
    moves a row to another key counts as two rows. Unchanged updates count as updates.

    Source: Materialize, ``DrainStats`` in ``upsert_continual_feedback_v2.rs``.
    """

    rows: int = 0
    """Rows that came in."""
    inserts: int = 0
    """Keys that were absent and have a row after the epoch."""
    updates: int = 0
    """Keys that had a row and have one after the epoch."""
    deletes: int = 0
    """Keys that had a row and were deleted by a command."""
    absent: int = 0
    """Deletes for keys without a row."""
    superseded: int = 0
    """Superseded by another row with the same key in the same epoch, or folded into it."""
    duplicates: int = 0
    """Equal in order and content to a row in the same epoch, or to the committed entry."""
    stale: int = 0
    """Older than the key's committed entry; with `Ties.FIRST`, or tied with it."""
    rejected: int = 0
    """Left out: unknown key, and so old that its delete may be forgotten."""
    skipped: int = 0
    """Rows that are no commands: redundant to another row, or without a key."""
    retracted: int = 0
    """Rows whose keys an overwrite left out; for a restore, all previous rows."""
    restored: int = 0
    """Rows from the old version that a restore brought back; not part of the input."""
    quarantined: int = 0
    """Rows that could not be applied and became their key's error entry."""
    displaced: int = 0
    """Rows removed because a row with the same key was quarantined."""
    tied: int = 0
    """Rows that met a row with the same key and order key but another content."""
    late: int = 0
    """Rows with unknown keys, applied although deletes of their age are forgotten."""

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in _FIELDS})

    @property
    def eligible(self) -> int:
        """Commands that took effect or deleted nothing."""
        return self.inserts + self.updates + self.deletes + self.absent + self.quarantined

    @property
    def result_count(self) -> int:
        """Eligible commands for a key that had a row."""
        return self.updates + self.deletes + self.displaced

    @property
    def output_count(self) -> int:
        """Changelog row count, including unchanged pairs."""
        gone = self.deletes + self.displaced + self.retracted
        return self.inserts + 2 * self.updates + gone + self.restored

    @property
    def live_delta(self) -> int:
        """By how many rows the snapshot grew."""
        gone = self.deletes + self.displaced + self.retracted
        return self.inserts + self.restored - gone

    @property
    def is_balanced(self) -> bool:
        """Whether every row that came in is accounted for."""
        ignored = self.superseded + self.duplicates + self.stale + self.rejected + self.skipped
        return self.rows == self.eligible + ignored

    def to_json(self) -> dict[str, int]:
        """Return the log representation."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> Counters:
        """Rebuild counters from a log record; counters that it lacks are zero."""
        field_names = {f.name for f in _FIELDS}
        return cls(**{name: value for name, value in record.items() if name in field_names})


_FIELDS = fields(Counters)
EMPTY = Counters()

STALE_MIN = 10
"""Minimum rows in an epoch, or consecutive epochs, before an all-stale input is reported: a
few late rows can also arrive in small batches.
"""


def count_all_stale(counters: Counters, schema: TableSchema) -> int:
    """Return an epoch's stale row count if no row took effect for that reason, else 0.

    A duplicate among them indicates a replay of rows already in the table. With the
    merge engine ``first-row``, all rows except a key's first are stale by design.
    """
    others = counters.eligible + counters.duplicates + counters.rejected
    is_usual = schema.engine.kind is Engine.FIRST_ROW
    return 0 if others or is_usual else counters.stale
