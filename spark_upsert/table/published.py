"""Publication checks for a table, by its properties and the observer in `table.observers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.properties import PUBLISH, PUBLISH_PATH, parse_publish
from spark_upsert.table.observers import ObservedTable, commit_observer

if TYPE_CHECKING:
    from spark_upsert.table.retention.expiry import VacuumResult

DEFAULT_FOLDER = "_delta"
"""The default folder for a mirror, in its table's folder."""


def is_published(properties: Mapping[str, str]) -> bool:
    """Return whether a table's commits are published."""
    return parse_publish(properties.get(PUBLISH, "none"))


def require_mirrored(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise if a published table has no representation as a Delta table (`delta.types`)."""
    if is_published(properties):
        commit_observer().require_mirrored(schema, properties)


def require_place(table: ObservedTable, given: Mapping[str, str]) -> None:
    """Raise if new properties ask for a mirror at a location where none is possible."""
    if given.keys() & {PUBLISH, PUBLISH_PATH}:
        commit_observer().require_place(table, given)


def vacuum_mirrors(table: ObservedTable, done: VacuumResult) -> VacuumResult:
    """Vacuum a table's mirrors; return the table's result with theirs added."""
    has_place = PUBLISH_PATH in table.log.head().properties
    if has_place or DEFAULT_FOLDER in table.store.folders(""):
        for location, vacuumed in commit_observer().vacuum(table, done.is_dry_run):
            done = done.with_subfolder(vacuumed, location)
    return done
