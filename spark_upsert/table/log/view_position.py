"""The position of a materialized view or history: the version of each input table.

Positions contain table identities and tokens, because a recreated table has the same version
numbers with other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.core.key_hash import HASH_END
from spark_upsert.errors import DataError
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.store.records import text as text_in
from spark_upsert.table.log.manifest import TableVersion

VersionsByInput = Mapping[str, TableVersion]

VIEW_PROPERTIES = VIEW_PLAN, VIEW_RESULT = ("viewPlan", "viewResult")
"""Properties of a table that keeps a view: its plan, and its result (`views`)."""


HISTORY_OF = "historyOf"
"""The property of a table that keeps the history of another one: which history it is."""

KEPT_PROPERTIES = (*VIEW_PROPERTIES, HISTORY_OF)
"""Properties of tables that are made of others, and that no user sets."""

HISTORY = "history:"
"""The prefix of the name of a writer that keeps a history; the id of the source follows."""


def keeps_rows(properties: Mapping[str, str]) -> bool:
    """Return whether a table keeps the rows of a view, and not what groups are made of."""
    return VIEW_PLAN in properties and VIEW_RESULT not in properties


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPosition:
    """A position of a materialized view; equal positions have equal texts."""

    at: VersionsByInput
    pinned: VersionsByInput = field(default_factory=dict)
    snapshot: int | None = None

    @property
    def text(self) -> str:
        """The text of the marker: a JSON object.

        ``at`` has ``[table id, version, token]`` per input, ``pinned`` the same per
        ``path@version``. ``snapshot``: only rows with smaller driving hashes are in the table yet.
        """
        record: dict[str, Any] = {"at": places_record(self.at)}
        if self.pinned:
            record["pinned"] = places_record(self.pinned)
        if self.snapshot is not None:
            record["snapshot"] = self.snapshot
        return json.dumps(record, separators=(",", ":"), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> KeptPosition:
        """Return the position of a text."""
        try:
            record = json.loads(text)
            snapshot = record.get("snapshot")
            return cls(
                at=places_of(record["at"]),
                pinned=places_of(record.get("pinned", {})),
                snapshot=None if snapshot is None else whole(snapshot, most=HASH_END),
            )
        except MALFORMED as error:
            raise DataError(
                "expected a position of a view, such as "
                f'{{"at":{{"input":["id",3,"token"]}}}}, found {text!r:.100}.',
                hint="let the query of the view write the marker ('keep').",
            ) from error

    def has(self, other: KeptPosition) -> bool:
        """Return whether a table that is here has all that is up to another position.

        It has not if one of both is of other tables, or of another past of the same.
        """
        if other.pinned != self.pinned or other.at.keys() != self.at.keys():
            return False
        if not all(
            _is_behind(other.at[path], version_ref) for path, version_ref in self.at.items()
        ):
            return False
        # Of one position the snapshot grows until it is whole, and is told no more.
        if other.at != self.at or self.snapshot is None:
            return True
        return other.snapshot is not None and other.snapshot <= self.snapshot


def _is_behind(place: TableVersion, newer: TableVersion) -> bool:
    """Return whether a place is another, or may lie before it."""
    is_before = place.table_id == newer.table_id and place.version < newer.version
    return is_before or place == newer


def places_record(places: VersionsByInput) -> dict[str, list[Any]]:
    """Return places as JSON holds them (`places_of`)."""
    return {
        name: [version_ref.table_id, version_ref.version, version_ref.token]
        for name, version_ref in places.items()
    }


def places_of(record: Any) -> dict[str, TableVersion]:
    """Return the places that JSON holds."""
    return {
        text_in(name): TableVersion(
            table_id=text_in(id_), version=whole(version), token=text_in(token)
        )
        for name, (id_, version, token) in record.items()
    }
