"""What a table knows of its publication; the mirror itself is `spark_upsert.mirror`.

The modules of the mirror are imported by their names: what opens a table does not load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from spark_upsert.model.schema import TableSchema
from spark_upsert.table.log.properties import PUBLISH, PUBLISH_PATH, parse_publish

if TYPE_CHECKING:
    from spark_upsert.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
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
    """Raise if a table is to be published, and no Delta table can show it.

    Raises
    ------
    MirroredTypeError, NotMirroredError
        Delta lacks the type of a column, or the table is of a kind without rows of its own.
    """
    if is_published(properties):
        import_module("spark_upsert.mirror.types").require_mirrored(schema)


def require_place(table: Table, given: Mapping[str, str]) -> None:
    """Raise if properties that are to be set ask for a mirror where it cannot lie.

    A place that is the table's already is not looked at.

    Raises
    ------
    OptionError, OtherTableError
        It is among the table's own files, or something else lies there.
    """
    if not given.keys() & {PUBLISH, PUBLISH_PATH}:
        return
    head = table.log.try_head()
    before = {} if head is None else dict(head.properties)
    after = {**before, **given}
    is_known = is_published(before) and before.get(PUBLISH_PATH) == after.get(PUBLISH_PATH)
    if is_published(after) and not is_known:
        import_module("spark_upsert.mirror.follow").require_place(table, after)
