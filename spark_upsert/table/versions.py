"""Version arguments: a number, a time or a word becomes a version or ``lower <= v < upper``."""

from __future__ import annotations

import logging

from spark_upsert.core.durations import Fields
from spark_upsert.errors import OptionError, VersionNotFoundError
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.snapshot import Versions

_LOGGER = logging.getLogger(__name__)

LATEST = "latest"
"""Start option for future changes only."""

EARLIEST = "earliest"
"""The start at the first version with changes that can still be read."""


def manifest_at(
    log: Versions, *, version: int | None = None, time_ms: int | None = None
) -> Manifest:
    """Return the table at a version or at a time, by default the newest."""
    if version is not None:
        return log.at(version)
    return log.head() if time_ms is None else log.at_timestamp(time_ms)


def first_wanted(
    log: Versions,
    *,
    version: int | str | None = None,
    time_ms: int | None = None,
    is_inclusive: bool = True,
    name: str = "startingVersion",
) -> int | None:
    """Return the first requested change version; None if no option specifies one."""
    if time_ms is not None:
        log.require_past(time_ms)
        return log.version_at(time_ms - int(is_inclusive)) + 1
    head = log.head()
    if version == LATEST:
        return head.upper
    if version == EARLIEST:
        return head.first_changes
    if not isinstance(version, int):
        return None
    require_bound(version, head, name=name)
    return version + int(not is_inclusive)


def upper_wanted(
    log: Versions,
    *,
    version: int | None = None,
    time_ms: int | None = None,
    is_inclusive: bool = True,
    name: str = "endingVersion",
) -> int:
    """Return the exclusive end version for the requested changes, by default after the newest.

    Parameters are those in `first_wanted`.
    """
    if time_ms is not None:
        log.require_past(time_ms)
        return log.version_at(time_ms - int(not is_inclusive)) + 1
    head = log.head()
    if version is None:
        return head.upper
    if version > head.version:
        raise VersionNotFoundError.future(name, version, since=head.since, newest=head.version)
    return version + int(is_inclusive)


def require_bound(version: int, head: Manifest, *, name: str) -> None:
    """Raise unless changes can begin, or end, before a version: one that is there, or the next."""
    if not 0 <= version <= head.upper:
        raise VersionNotFoundError.future(
            name, version, since=head.first_changes, newest=head.version, last=head.upper
        )


def require_ordered(
    lower: int, upper: int, *, name: str = "endingVersion", may_be_empty: bool = True
) -> None:
    """Raise if the changes for ``lower <= v < upper`` end before they begin."""
    if lower > upper - int(not may_be_empty):
        raise OptionError(
            f"the changes begin at version {lower} and end before version {upper}.",
            hint="let the changes end at their first version or later, or leave out their end.",
            option=name,
        )


def readable_from(newest: Manifest, lower: int, *, path: str, fail_on_data_loss: bool) -> int:
    """Return the version at which a read of changes from ``lower`` on begins.

    Notes
    -----
    If the requested changes are expired, ``fail_on_data_loss`` decides: the plan will raise, or
    the read continues at `Manifest.first_changes`. The skipped changes may have altered rows,
    so that a later retraction may name a row that the reader does not have: folding such
    changes no longer reproduces the table.
    """
    if fail_on_data_loss or lower >= newest.first_changes:
        return lower
    _LOGGER.warning(
        "changes are expired and left out: %s",
        Fields(
            path=path,
            gap_from=lower,
            gap_to=newest.first_changes - 1,
            reason="expired",
            hint="what is folded from this read is not the table; read it anew",
        ),
    )
    return newest.first_changes
