"""Where a stream stands: the canonical text that Spark keeps in its checkpoint.

Spark compares offsets as JSON text, and may replay a batch from two of them alone, in a
process that has seen nothing else. So an offset is one value with one text, and the *end* of
a batch carries all that is needed to plan it again:

=============  ====================================================================
``origin``     the version that the stream began at; null before its first batch
``snapshot``   whether rows of version ``origin`` are still to be delivered
``hash``       rows of the snapshot with smaller hashes are delivered (16 hex digits,
               or ``1`` and 16 zeros: all of them)
``upper``      changes of smaller versions are delivered
``place``      the version that the stream stands at, as ``[table id, version, token]``:
               who goes on from here must find this very version in the table's log
=============  ====================================================================

A stream without a start delivers the snapshot of ``origin`` range by range of the hash, and
then the changes from ``origin + 1`` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.model.hashing import HASH_END
from spark_upsert.state.log.manifest import Place

_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """A position in the snapshot of ``origin`` or in the changes behind it."""

    origin: int | None = None
    snapshot: bool = False
    hash: int = 0
    upper: int = 0
    place: Place | None = field(default=None, compare=False)
    """It follows from the rest and from the table."""

    @property
    def is_initial(self) -> bool:
        """Whether the stream has not begun."""
        return self.origin is None

    @property
    def version(self) -> int:
        """The oldest version whose state is needed to go on from here."""
        assert self.origin is not None
        return self.origin if self.snapshot else max(0, self.upper - 1)

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: the same keys in the same order, always."""
        return {
            "format": _FORMAT,
            "hash": f"{self.hash:016x}",
            "origin": self.origin,
            "place": self.place and [self.place.table_id, self.place.version, self.place.token],
            "snapshot": self.snapshot,
            "upper": self.upper,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> StreamOffset:
        """Rebuild an offset from the checkpoint's form."""
        if record.get("format") != _FORMAT:
            raise OptionError(
                f"the checkpoint holds an offset {record!r}, expected format {_FORMAT}.",
                hint="this checkpoint belongs to another source or to a newer release; give the "
                "query a new checkpointLocation.",
            )
        place = None
        if record["place"] is not None:
            table_id, version, token = record["place"]
            place = Place(table_id=table_id, version=version, token=token)
        return cls(
            origin=record["origin"],
            snapshot=record["snapshot"],
            hash=int(record["hash"], 16),
            upper=record["upper"],
            place=place,
        )

    @classmethod
    def at_changes(cls, origin: int, upper: int) -> StreamOffset:
        """Return the position before the changes of version ``upper``."""
        return cls(origin=origin, snapshot=False, hash=HASH_END, upper=upper)

    @classmethod
    def in_snapshot(cls, origin: int, hash_: int) -> StreamOffset:
        """Return a position in a snapshot; at its end the changes begin."""
        if hash_ >= HASH_END:
            return cls.at_changes(origin, origin + 1)
        return cls(origin=origin, snapshot=True, hash=hash_, upper=origin + 1)
