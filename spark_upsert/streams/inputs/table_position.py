"""A position in a table: in the snapshot that a stream began with, or in the changes behind it.

==========  ====================================================================
``hash``    rows of the snapshot with smaller hashes are delivered (16 hex digits,
            or ``1`` and 16 zeros: all of them)
``origin``  the version that the stream began at
``place``   the version that the stream stands at, as ``[table id, version, token]``:
            a stream that goes on from here must find this very version in the table's log
``upper``   changes of smaller versions are delivered
==========  ====================================================================

A stream without a start delivers the snapshot of ``origin`` range by range of the hash, and
then the changes from ``origin + 1`` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_upsert.errors import OptionError
from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.hashing import HASH_END
from spark_upsert.store.records import MALFORMED, text, whole
from spark_upsert.streams.offsets.position import Position
from spark_upsert.table.log.manifest import TableVersion

_END = f"{HASH_END:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePosition:
    """A position in the snapshot of ``origin`` or in the changes behind it."""

    origin: int
    hash: int
    upper: int
    place: TableVersion | None = field(default=None, compare=False)
    """It follows from the rest and from the table; None for what is only reported."""

    @classmethod
    def at_changes(cls, origin: int, upper: int) -> TablePosition:
        """Return the position before the changes of version ``upper``."""
        return cls(origin=origin, hash=HASH_END, upper=upper)

    @classmethod
    def in_snapshot(cls, origin: int, hash_: int) -> TablePosition:
        """Return a position in a snapshot; at its end the changes begin."""
        return cls(origin=origin, hash=hash_, upper=origin + 1)

    @property
    def is_in_snapshot(self) -> bool:
        """Whether rows of version ``origin`` are still to be delivered."""
        return self.hash < HASH_END

    @property
    def version(self) -> int:
        """The oldest version that is needed to go on from here."""
        return self.origin if self.is_in_snapshot else max(0, self.upper - 1)

    def packed(self) -> Position:
        """Return the position in the form that offsets keep."""
        place = self.place
        return Position.of(
            {
                "hash": f"{self.hash:016x}",
                "origin": self.origin,
                "place": place and [place.table_id, place.version, place.token],
                "upper": self.upper,
            }
        )

    @classmethod
    def unpacked(cls, position: Position) -> TablePosition:
        """Rebuild a position.

        Raises
        ------
        OptionError
            It is that of another kind of input, or was altered.
        """
        try:
            record = position.record
            place = None
            if record["place"] is not None:
                table_id, version, token = record["place"]
                place = TableVersion(
                    table_id=text(table_id), version=whole(version), token=text(token)
                )
            return cls(
                origin=whole(record["origin"]),
                hash=HashRange.from_json([record["hash"], _END]).first,
                upper=whole(record["upper"]),
                place=place,
            )
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint holds {position.text:.500}, which is no position in a table.",
                hint="this checkpoint belongs to another input; give the query a new "
                "checkpointLocation.",
            ) from error
