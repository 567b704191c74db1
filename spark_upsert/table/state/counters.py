"""Row accounting: nothing is dropped without a number.

For every epoch, with the counters of `Counters`::

    rows   = inserts + updates + deletes + absent + quarantined  (applied, "eligible")
             + superseded + duplicates + stale + rejected + skipped      (ignored, by reason)
    output = inserts + 2 * updates + deletes + displaced + retracted     (of the changelog)
                                                              + restored
    live   = live before + inserts - deletes - displaced - retracted + restored

A row that cannot be applied goes, if the table has a quarantine, into ``quarantined``. The
row of its key, if there was one, is retracted: that is ``displaced``, a part of
``quarantined``. A put that clears an error entry is an insert, a delete that does so is
``absent``: neither meets a row.

A row that is no command is ``skipped``: it says nothing that another row does not say, or
nothing of a key. In a feed of changes these are preimages with the key of their postimage; among
change events the record without a value behind a delete, and a truncate. An event that takes a row
from one key to another is two commands, and counts as two rows.

Two numbers cut across these: each of their rows is counted under what became of it, too.
``tied`` are rows that met one of their key with an equal order key and another content
(`table.state.content`), and ``late`` are rows that were applied below the low-water mark.

An update that leaves the values as they are counts as an update; the changelog shows it
only if asked to (``emitUnchanged``).

Source: Materialize, ``DrainStats`` of ``upsert_continual_feedback_v2.rs``; the reasons for
ignored rows are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """How the rows of one epoch, or a part of it, were used. Unit: rows."""

    rows: int = 0
    """Rows that came in."""
    inserts: int = 0
    """Keys that were absent and have a row after the epoch."""
    updates: int = 0
    """Keys that had a row and have one after the epoch."""
    deletes: int = 0
    """Keys that had a row and were deleted by a command."""
    absent: int = 0
    """Deletes of keys that had no row."""
    superseded: int = 0
    """Beaten by another row of the same key in the same epoch, or folded into it."""
    duplicates: int = 0
    """Equal in order and content to a row of the same epoch, or to the committed entry."""
    stale: int = 0
    """Older than the committed entry of the key; with `Ties.FIRST`, or tied with it."""
    rejected: int = 0
    """Left out: of an unknown key, and so old that its delete may be forgotten."""
    skipped: int = 0
    """Are no commands: another row says what they say, or they are of no key."""
    retracted: int = 0
    """Rows of keys that an overwrite left out; of a restore, all rows that there were."""
    restored: int = 0
    """Rows of the old version that a restore brought back. They did not come in."""
    quarantined: int = 0
    """Could not be applied, and became the error entry of their key."""
    displaced: int = 0
    """Rows that a quarantined one of their key took away."""
    tied: int = 0
    """Rows that met one of their key with an equal order key and another content."""
    late: int = 0
    """Rows of unknown keys that were applied although deletes so young are forgotten."""

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
        """Rows of the changelog, unchanged pairs included."""
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
        """Return the form that stands in the log."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> Counters:
        """Rebuild counters; those that an older release did not know are zero."""
        field_names = {f.name for f in _FIELDS}
        return cls(**{name: value for name, value in record.items() if name in field_names})


_FIELDS = fields(Counters)
EMPTY = Counters()

STALE_MIN = 10
"""The rows of an epoch, or the epochs in a row, from which on it is reported that all are stale: a
few late rows come in small batches, too."""


def count_all_stale(counters: Counters, schema: TableSchema) -> int:
    """Return the stale rows of an epoch if no row of it took effect for being stale, else 0.

    A duplicate among them is the sign of a replay: what the table holds has come again. With the
    merge engine ``first-row`` all rows but the first of a key are stale, as they should be.
    """
    others = counters.eligible + counters.duplicates + counters.rejected
    is_usual = schema.engine.kind is Engine.FIRST_ROW
    return 0 if others or is_usual else counters.stale
