"""What a publication of a table comes to; the mirror itself is `spark_upsert.mirror`."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def has_changed(self) -> bool:
        """Whether there was anything to do."""
        return self.shown != self.shown_before
