"""A position of a view: where each of its tables stands, or within the snapshot that it began with.

============  ==================================================================
``plan``      the fingerprint of the plan: another one does not go on from here
``at``        for each table that is read live ``[table id, version, token]``
``snapshot``  rows of ``at`` with smaller driving hashes are delivered (16 hex
              digits); null: all of them are
``origin``    the versions that the stream began at
``begun``     what ``snapshot`` was there
============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.model.hash_range import hash_number
from spark_upsert.model.hashing import HASH_END
from spark_upsert.source.position import Position
from spark_upsert.state.log.manifest import Place
from spark_upsert.store.records import numbers, text, whole
from spark_upsert.upsert.moves import NOTHING, position_text, read_position
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
    """What ``snapshot`` was at the origin."""
    places: Mapping[str, Place] = field(default_factory=dict, compare=False)
    """They follow from the rest and from the tables."""

    def packed(self) -> Position:
        """Return what others see."""
        return Position.of(
            {
                "at": {
                    path: [place.table_id, place.version, place.token]
                    for path, place in self.places.items()
                },
                "begun": _digits(self.begun),
                "origin": dict(self.origin),
                "plan": self.plan,
                "snapshot": _digits(self.snapshot),
            }
        )

    @property
    def marker(self) -> str:
        """The text that a kept table records (`upsert.moves`)."""
        if self.snapshot == 0:
            return NOTHING
        return position_text(self.at, self.snapshot)

    @classmethod
    def of_marker(cls, marker: str, plan: str, paths: Sequence[str]) -> ViewPosition:
        """Return the position of a text that a kept table recorded.

        Raises
        ------
        OptionError
            It is none of the plan.
        """
        try:
            at, cut = read_position(marker)
            if set(at) != set(paths) or not (cut is None or 0 <= cut <= HASH_END):
                raise ValueError("the tables of another plan")
        except ValueError as error:
            raise OptionError.invalid(
                "startingPosition", marker, f"a position of {', '.join(paths)}"
            ) from error
        return cls(plan=plan, at=at, origin=at, snapshot=cut, begun=cut)

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
            places = {
                text(path): Place(table_id=text(id_), version=whole(version), token=text(token))
                for path, (id_, version, token) in record["at"].items()
            }
            found = cls(
                plan=text(record["plan"]),
                at={path: place.version for path, place in places.items()},
                origin=numbers(record["origin"]),
                snapshot=_cut(record["snapshot"]),
                begun=_cut(record["begun"]),
                places=places,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OptionError(
                f"the checkpoint holds {position.text:.500}, which is no position of a view.",
                hint="this checkpoint belongs to another input; give the query a new "
                "checkpointLocation.",
            ) from error
        if found.plan != plan:
            raise OptionError(
                f"the checkpoint is of another plan ({found.plan}, and this is {plan}): what it "
                "delivered cannot be retracted by this one.",
                hint="run the plan that it was begun with, or give the query a new "
                "checkpointLocation.",
            )
        return found


def _digits(cut: int | None) -> str | None:
    return None if cut is None else f"{cut:016x}"


def _cut(digits: Any) -> int | None:
    return None if digits is None else hash_number(digits)
