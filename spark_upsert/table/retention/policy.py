"""The policy of what past to give up. Pure: it looks and returns a choice.

``since``, the first readable version, is the least of several bounds::

    since = min(requested retention, leases of live consumers, versions of the last hour)

and never goes back. A file is removed only if no version from ``since`` on names it, and

- a version before ``since`` named it: then it is *expired*; or
- no version ever did: then it may be an *orphan* of a crash, or belong to a writer that has
  not committed yet. It goes only if it is older than the commit of the `fence`: its writer
  had planned on a version below the fence, and will be refused.

Source of the fence: the argument is that of fencing tokens (Kleppmann, "How to do distributed
locking", 2016). Age alone, as Delta and Iceberg use it, lets a writer that is slower than the
age commit files that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from spark_upsert.model.durations import render_ms
from spark_upsert.store import ObjectInfo
from spark_upsert.table.log.entries import LogEntry
from spark_upsert.table.retention.leases import Lease

SAFETY_MS = 3_600_000
"""Versions that were the newest within the last hour are kept, whatever is asked for.

A read plans on the newest version and its tasks open the files later; a write counts against
the version that it was planned on. An hour is longer than either takes as a rule, and next to
it the clocks of a cluster agree.
"""

GRACE_MS = 24 * 3_600_000
"""The time that staged files may wait for their commit before they count as left behind: a day."""

LEASE_MS = 7 * 24 * 3_600_000
"""A consumer may be away for a week: long enough for a holiday, short enough for a dead one."""

WRITERS_MS = 90 * 24 * 3_600_000
"""A writer that was silent for a season is not expected to repeat its last epoch."""

CLOCK_SLACK_S = 300.0
"""The time by which the storage's clock may go back between two writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionBound:
    """A reason to keep all versions from ``since`` on."""

    since: int
    reason: str


def bounds(
    *,
    newest: int,
    retain_versions: int | None,
    at_age: tuple[int, int] | None,
    at_safety: tuple[int, int],
    at_row_ttl: tuple[int, int] | None = None,
    leases: Iterable[Lease],
    now_ms: int,
) -> list[RetentionBound]:
    """Return all reasons to keep versions.

    Parameters
    ----------
    newest : int
        The newest version.
    retain_versions : int, optional
        The changes of so many versions stay readable, and the state before them.
    at_age, at_safety : (int, int)
        An age in ms, and the version that was the newest so long ago.
    at_row_ttl : (int, int), optional
        The same for the age of rows that go by the time of their commit (`table.row_ttl`).
    leases : iterable of Lease
        Those that have lapsed bind nothing.
    now_ms : int
        The time, in ms since 1970.
    """
    found = [
        RetentionBound(since=at_safety[1], reason=f"versions of the last {render_ms(at_safety[0])}")
    ]
    if retain_versions is not None:
        reason = f"the retention of {retain_versions} versions"
        found.append(RetentionBound(since=newest - retain_versions, reason=reason))
    if at_age is not None:
        reason = f"the retention of {render_ms(at_age[0])}"
        found.append(RetentionBound(since=at_age[1], reason=reason))
    if at_row_ttl is not None:
        reason = f"rowTtl={render_ms(at_row_ttl[0])} by the time of commits"
        found.append(RetentionBound(since=at_row_ttl[1], reason=reason))
    found += [
        RetentionBound(since=lease.version, reason=f"the consumer '{lease.consumer}'")
        for lease in leases
        if lease.is_live(now_ms)
    ]
    return [RetentionBound(since=max(0, each.since), reason=each.reason) for each in found]


def choose_since(found: Iterable[RetentionBound]) -> RetentionBound:
    """Return the bound that keeps most."""
    return min(found, key=lambda each: each.since)


def choose_fence(entries: Iterable[LogEntry], limit_s: float) -> LogEntry | None:
    """Return the newest commit that was stored at or before a time, by the storage's clock."""
    old = [e for e in entries if not e.is_checkpoint and e.modified_s <= limit_s]
    return max(old, key=lambda entry: entry.version, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    """Files that no readable version names."""

    expired: tuple[ObjectInfo, ...]
    """An expired version named them."""
    orphans: tuple[ObjectInfo, ...]
    """No version that the log knows named them, and they are older than the grace period."""
    young_count: int
    """Younger ones: probably of writers that have not committed yet."""

    @classmethod
    def of(
        cls, files: Iterable[ObjectInfo], *, named: Set[str], past: Set[str], limit_s: float
    ) -> Unnamed:
        """Sort out a listing; ``past`` are the files of expired versions."""
        unnamed = [file for file in files if file.path not in named]
        strangers = [file for file in unnamed if file.path not in past]
        orphans = tuple(file for file in strangers if file.modified_s < limit_s)
        return cls(
            expired=tuple(file for file in unnamed if file.path in past),
            orphans=orphans,
            young_count=len(strangers) - len(orphans),
        )

    def before(self, fence: LogEntry | None) -> tuple[ObjectInfo, ...]:
        """Return the orphans that no writer can commit any more, because of the fence."""
        if fence is None:
            return ()
        limit_s = fence.modified_s - CLOCK_SLACK_S
        return tuple(file for file in self.orphans if file.modified_s < limit_s)
