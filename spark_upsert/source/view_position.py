"""A position of a view: where each of its tables stands, or within the snapshot that it began with.

============  ==================================================================
``plan``      the fingerprint of the plan: another one does not go on from here
``at``        for each table that is read live ``[table id, version, token]``
``snapshot``  rows of ``at`` with smaller driving hashes are delivered (16 hex
              digits); null: all of them are
``origin``    the versions that the stream began at
============  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_upsert.errors import OptionError
from spark_upsert.model.hash_range import hash_number
from spark_upsert.source.position import Position
from spark_upsert.state.log.manifest import Place
from spark_upsert.store.records import numbers, text, whole
from spark_upsert.views.relation import At


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPosition:
    """A position of a view."""

    plan: str
    at: At
    origin: At
    snapshot: int | None = None
    """Below which driving hash rows are delivered; None: all are."""
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
                "origin": dict(self.origin),
                "plan": self.plan,
                "snapshot": None if self.snapshot is None else f"{self.snapshot:016x}",
            }
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
            places = {
                text(path): Place(table_id=text(id_), version=whole(version), token=text(token))
                for path, (id_, version, token) in record["at"].items()
            }
            cut = record["snapshot"]
            found = cls(
                plan=text(record["plan"]),
                at={path: place.version for path, place in places.items()},
                origin=numbers(record["origin"]),
                snapshot=None if cut is None else hash_number(cut),
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
