"""The publication of a table: its properties, and the calls of the observer (`table.observers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.properties import PUBLISH, PUBLISH_PATH, parse_publish
from spark_upsert.table.observers import commit_observer

if TYPE_CHECKING:
    from spark_upsert.table.retention.expiry import VacuumResult
    from spark_upsert.table.table import Table

DEFAULT_FOLDER = "_delta"
"""Where a mirror lies below its table, if no other place is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationResult:
    """The result of a publication."""

    place: str
    shown_before: int | None
    """The version that the mirror showed before; None if there was no mirror."""
    shown: int
    """The version that it shows now: the newest, or an older one with the same rows."""
    newest: int
    """The newest version of the table when the step began."""
    delta_version: int
    """The version of the Delta table."""
    retention_ms: int
    """How long that version can be read, at least, once another one follows."""
    has_feed: bool
    """Whether the Delta table has a change feed; it can be read as long as its versions."""

    @property
    def has_changed(self) -> bool:
        """Whether there was anything to do."""
        return self.shown != self.shown_before


def is_published(properties: Mapping[str, str]) -> bool:
    """Return whether each commit of a table is to be published."""
    return parse_publish(properties.get(PUBLISH, "none"))


def require_mirrored(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise if a table is to be published, and no Delta table can show it (`delta.types`)."""
    if is_published(properties):
        commit_observer().require_mirrored(schema, properties)


def require_place(table: Table, given: Mapping[str, str]) -> None:
    """Raise if properties that are to be set ask for a mirror where none can lie."""
    if given.keys() & {PUBLISH, PUBLISH_PATH}:
        commit_observer().require_place(table, given)


def vacuum_mirrors(table: Table, done: VacuumResult) -> VacuumResult:
    """Return what a vacuum removed, and what it removes of the mirrors of its table."""
    has_place = PUBLISH_PATH in table.log.head().properties
    if has_place or DEFAULT_FOLDER in table.store.folders(""):
        for location, vacuumed in commit_observer().vacuum(table, done.is_dry_run):
            done = done.with_those_below(vacuumed, location)
    return done
