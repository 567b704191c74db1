"""Mirror errors. They never fail the table itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from spark_upsert.errors import OtherTableError, SchemaError, UpsertFlowError


class MirroredTypeError(SchemaError):
    """A column has a type, or a name, that Delta has not."""

    code = "MIRRORED_TYPE"

    @classmethod
    def of(cls, column: str, found: str, cast: str) -> Self:
        return cls(
            f"the column '{column}' is of type {found}, which Delta has not; nothing was "
            "published.",
            hint=f"write the values as {cast}, in a column of another name or in a new table; or "
            "end the publication with publish=none.",
            column=column,
        )


class MirrorChangedError(UpsertFlowError):
    """Somebody else has written into the mirror: it is no copy any more."""

    code = "MIRROR_CHANGED"

    @classmethod
    def by(cls, place: str, version: int, operation: str) -> Self:
        return cls(
            f"the mirror at '{place}' was changed by others: its version {version} is "
            f"'{operation}'. The mirror stands where it was; the table goes on.",
            hint="rebuild it (publish(rebuild=True), or 'upsertflow publish PATH --rebuild'): "
            "one commit makes it a copy again, and readers keep their place.",
            version=version,
            operation=operation,
        )


class NotMirroredError(UpsertFlowError):
    """A table of this kind has no mirror."""

    code = "NOT_MIRRORED"

    @classmethod
    def contributions(cls, keys: Sequence[str]) -> Self:
        groups = ", ".join(f"'{name}'" for name in keys)
        return cls(
            f"the table keeps what the groups of a view (by {groups}) are made of, and not their "
            "rows, so that no file of it can be mirrored; nothing was published.",
            hint="publish a table with rows of its own: write the changes of the view into one.",
        )


def other_table(place: str, expected: str, found: str) -> OtherTableError:
    """Return the error of a place that holds something else than this table's mirror."""
    return OtherTableError(
        f"'{place}' is to hold the mirror of {expected}, but holds {found}. Nothing was written.",
        hint="publish to another place, or, if what is there is to be replaced, rebuild it "
        "(publish(rebuild=True), or 'upsertflow publish PATH --rebuild').",
    )


def occupied(place: str, found: str) -> OtherTableError:
    """Return the error of a place that holds what is no Delta table."""
    return OtherTableError(
        f"'{place}' is to hold a mirror, but holds '{found}'. Nothing was written.",
        hint="publish to an empty place.",
    )


def within_another(place: str, found: str) -> OtherTableError:
    """Return the error of a place in the folder of another tool's table, which may clean it."""
    return OtherTableError(
        f"'{place}' is to hold a mirror, but {found}. Nothing was written.",
        hint="publish to a place outside of that folder.",
    )
