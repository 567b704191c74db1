"""A position of a view: where each of its tables stands, or within the snapshot that it began with.

============  ==================================================================
``plan``      the fingerprint of the plan: another one does not go on from here
``at``        for each table that is read live ``[table id, version, token]``
``pinned``    for each ``path@version`` that is read at a fixed version the same
``snapshot``  rows of ``at`` with smaller driving hashes are delivered (16 hex
              digits); null: all of them are
``origin``    the versions that the stream began at
``begun``     what ``snapshot`` was there
============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.model.hash_range import hash_number
from spark_upsert.store.records import MALFORMED, numbers, text
from spark_upsert.streams.offsets.position import Position
from spark_upsert.table.log.kept_position import (
    KeptPosition,
    VersionsByInput,
    places_of,
    places_record,
)
from spark_upsert.table.write.moves import NOTHING
from spark_upsert.views.relation import At


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPosition:
    """A position of a view."""

    plan: str
    at: At
    origin: At
    snapshot: int | None = None
    """Below which driving hash rows are delivered; None: all are."""
    begun: int | None = None
    """The value of ``snapshot`` at the origin."""
    places: VersionsByInput = field(default_factory=dict, compare=False)
    """Which tables ``at`` is of; this follows from the rest and from the tables, as the next."""
    pinned: VersionsByInput = field(default_factory=dict, compare=False)
    """Tables that are read at fixed versions, by ``path@version``."""

    def packed(self) -> Position:
        """Return what others see."""
        return Position.of(
            {
                "at": places_record(self.places),
                "begun": _digits(self.begun),
                "origin": dict(self.origin),
                "pinned": places_record(self.pinned),
                "plan": self.plan,
                "snapshot": _digits(self.snapshot),
            }
        )

    @property
    def marker(self) -> str:
        """The text that a kept table records."""
        return NOTHING if self.snapshot == 0 else self.kept.text

    @property
    def kept(self) -> KeptPosition:
        """The position as a kept table has it; the places must be known."""
        return KeptPosition(at=self.places, pinned=self.pinned, snapshot=self.snapshot)

    @classmethod
    def of_marker(cls, marker: str, plan: str, paths: Sequence[str]) -> ViewPosition:
        """Return the position of a text that a kept table recorded.

        Raises
        ------
        OptionError
            It is none of the plan.
        """
        try:
            found = KeptPosition.read(marker)
            if set(found.at) != set(paths):
                raise ValueError("the tables of another plan")
        except ValueError as error:
            raise OptionError.invalid(
                "startingPosition", marker, f"a position of {', '.join(paths)}"
            ) from error
        at = {path: place.version for path, place in found.at.items()}
        return cls(
            plan=plan,
            at=at,
            origin=at,
            snapshot=found.snapshot,
            begun=found.snapshot,
            places=found.at,
            pinned=found.pinned,
        )

    @classmethod
    def unpacked(cls, position: Position, plan: str) -> ViewPosition:
        """Rebuild a position of a plan, by its fingerprint.

        Raises
        ------
        OptionError
            It is that of another plan or of another kind of input, or was altered.
        """
        try:
            record = position.record
            places = places_of(record["at"])
            found = cls(
                plan=text(record["plan"]),
                at={path: place.version for path, place in places.items()},
                origin=numbers(record["origin"]),
                snapshot=_cut(record["snapshot"]),
                begun=_cut(record["begun"]),
                places=places,
                pinned=places_of(record["pinned"]),
            )
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint holds {position.text:.500}, which is no position of a view.",
                hint="this checkpoint belongs to another input; give the query a new "
                "checkpointLocation.",
            ) from error
        if found.plan != plan:
            raise OptionError(
                f"the checkpoint is of another plan ({found.plan}, and this is {plan}): what it "
                "delivered cannot be retracted by this one.",
                hint="run the plan that it was begun with (if a table has gained a column since, "
                "begin with view(path).select(...) of those that it had), or give the query a new "
                "checkpointLocation.",
            )
        return found


def _digits(cut: int | None) -> str | None:
    return None if cut is None else f"{cut:016x}"


def _cut(digits: Any) -> int | None:
    return None if digits is None else hash_number(digits)
