"""Expiry (`expire`) and vacuum (`vacuum`): policy, order of steps, and overtaken reads.

Two frontiers are committed before a removal: ``since``, the first readable version, and the
*fence*, the first version on which a writer may have staged (docs/adr/0011).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_upsert.core.durations import render_ms, render_time
from spark_upsert.core.schema import Scope
from spark_upsert.errors import (
    ClockError,
    ContentionError,
    CorruptionError,
    DataLossError,
    OptionError,
    VersionNotFoundError,
)
from spark_upsert.store import ObjectInfo, Store
from spark_upsert.store.protocol import new_token
from spark_upsert.table.log.codec import LogEntry
from spark_upsert.table.log.log import COMMIT_TRIES_MAX, Log, cut
from spark_upsert.table.log.manifest import Draft, Kind, Manifest
from spark_upsert.table.log.properties import DEFAULT, PROPERTY, TombstoneRetention, ages_ms
from spark_upsert.table.log.storage import AHEAD_MS, require_clock
from spark_upsert.table.retention.lag import FOLDER as _PRESSURE
from spark_upsert.table.retention.leases import FOLDER as _LEASES
from spark_upsert.table.retention.leases import Lease, leases
from spark_upsert.table.run.file import is_run_path

T = TypeVar("T")

_ATTEMPTS_MAX = 100
"""Maximum attempts. An expiry takes longer than an attempt, so a hundred in a row are a fault."""


def retry_after_expiry(attempt: Callable[[], T], url: str) -> T:
    """Return the attempt's result; repeat the attempt if an expiry overtakes it.

    An attempt pins a table version, then leases it or begins to read. An expiry may come in
    between; the next attempt then pins another version. The same error twice in a row is final.
    """
    before = ""
    for _ in range(_ATTEMPTS_MAX):
        try:
            return attempt()
        except DataLossError as error:
            if str(error) == before:
                raise
            before = str(error)
    raise ContentionError(
        f"{_ATTEMPTS_MAX} expiries of '{url}' came between two reads of its log.",
        hint="run fewer expiries at once, then try again.",
    )


@contextmanager
def translate_expired_files(store: Store, version: int) -> Iterator[None]:
    """Report a missing file as an expired version if a vacuum has overtaken the read."""
    try:
        yield
    except CorruptionError as error:
        head = Log(store).head()
        if version >= head.since:
            raise
        raise VersionNotFoundError.expired(
            f"version {version}, read while an expiry removed it,",
            since=head.since,
            newest=head.version,
        ) from error


SAFETY_MS = 3_600_000
"""Minimum time for which versions stay readable after they were the newest.

A read plans on the newest version and its tasks open the files later; a write counts against its
planning version. Both usually take less than an hour, and clock differences in a cluster are small
next to it.
"""

GRACE_MS = 24 * 3_600_000
"""Time for staged files to wait for their commit before they count as orphans: a day."""

LEASE_MS = 7 * 24 * 3_600_000
"""Default lease duration: covers a consumer's absence for a week."""

WRITERS_MS = 90 * 24 * 3_600_000
"""Time without commits after which a writer's last epoch is forgotten."""

CLOCK_SLACK_S = 300.0
"""Maximum backward step of the storage's clock between two writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionBound:
    """A reason to retain all versions from ``since`` on."""

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
    """Return all reasons to retain versions."""
    retention_bounds = [
        RetentionBound(since=at_safety[1], reason=f"versions of the last {render_ms(at_safety[0])}")
    ]
    if retain_versions is not None:
        reason = f"the retention of {retain_versions} versions"
        retention_bounds.append(RetentionBound(since=newest - retain_versions, reason=reason))
    if at_age is not None:
        reason = f"the retention of {render_ms(at_age[0])}"
        retention_bounds.append(RetentionBound(since=at_age[1], reason=reason))
    if at_row_ttl is not None:
        reason = f"rowTtl={render_ms(at_row_ttl[0])} by the time of commits"
        retention_bounds.append(RetentionBound(since=at_row_ttl[1], reason=reason))
    retention_bounds += [
        RetentionBound(since=lease.version, reason=f"the consumer '{lease.consumer}'")
        for lease in leases
        if lease.is_live(now_ms)
    ]
    return [
        RetentionBound(since=max(0, bound.since), reason=bound.reason) for bound in retention_bounds
    ]


def choose_bound(found: Iterable[RetentionBound]) -> RetentionBound:
    """Return the bound retaining most versions."""
    return min(found, key=lambda each: each.since)


def choose_fence(entries: Iterable[LogEntry], limit_s: float) -> LogEntry | None:
    """Return the newest commit stored at or before a time, by the storage's clock."""
    old = [e for e in entries if not e.is_checkpoint and e.modified_s <= limit_s]
    return max(old, key=lambda entry: entry.version, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFiles:
    """Files without a reference in any readable version."""

    expired: tuple[ObjectInfo, ...]
    """Files referenced by an expired version."""
    orphans: tuple[ObjectInfo, ...]
    """Files referenced by no version in the log, older than the grace period."""
    young_count: int
    """Number of younger files, probably from writers before their commit."""

    @classmethod
    def of(
        cls, files: Iterable[ObjectInfo], *, named: Set[str], past: Set[str], limit_s: float
    ) -> UnreferencedFiles:
        """Classify a listing; ``past`` are the expired versions' files."""
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


_DATA = "data"
_LOG = "_log"
_RANGES = "_leases"
"""Leases for compactions (`table.maintenance`)."""

_PASSING = re.compile(r"(?:[^/]+/)?(?:\.tmp-[0-9a-f]{32}|[0-9a-f]{32}\.now)")
"""Temporary names, renamed or removed by their writers and vacuums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """An expiry's result."""

    before: int
    """``since`` before the expiry."""
    since: int
    """``since`` after the expiry."""
    newest: int
    """The newest version when ``since`` was chosen."""
    bound_by: str
    """The bound limiting ``since``."""
    rows_deleted: int = 0
    """Number of rows older than the property ``rowTtl``."""

    @property
    def has_advanced(self) -> bool:
        return self.since > self.before


def expire(
    store: Store,
    log: Log,
    *,
    retain_versions: int | None = None,
    retain_ms: int | None = None,
    safety_ms: int = SAFETY_MS,
    writers_ms: int = WRITERS_MS,
) -> Expiry:
    """Advance ``since`` as far as the retention and the live leases allow.

    A writer whose last epoch is older than ``writers_ms`` is forgotten. Its committed transactions
    are unknown from then on, so it is refused if it returns.
    """
    if retain_versions is None and retain_ms is None:
        raise OptionError.missing("retain", "how much of the past to keep")
    outcome: list[Expiry] = []
    # By a clock far ahead, all leases would have lapsed.
    require_clock(store, log.now_ms())

    def propose(head: Manifest) -> Draft | None:
        now_ms = log.now_ms()
        if head.timestamp_ms > now_ms + AHEAD_MS:
            raise ClockError.in_log(store.url, head.version, render_time(head.timestamp_ms))
        row_ttl_ms = ages_ms(head.properties)
        choice = choose_bound(
            bounds(
                newest=head.version,
                retain_versions=retain_versions,
                at_age=None
                if retain_ms is None
                else (retain_ms, log.version_at(now_ms - retain_ms)),
                at_safety=(safety_ms, log.version_at(now_ms - safety_ms)),
                at_row_ttl=None
                if row_ttl_ms is None
                else (row_ttl_ms, log.version_at(now_ms - row_ttl_ms)),
                leases=leases(store),
                now_ms=now_ms,
            )
        )
        since = max(head.since, choice.since)
        # Otherwise each expiry in an idle table would commit a version to expire the last one.
        passed = log.commits(head.since + 1, since + 1)
        if all(commit.kind is Kind.EXPIRE for commit in passed):
            since = head.since
        outcome.append(
            Expiry(before=head.since, since=since, newest=head.version, bound_by=choice.reason)
        )
        writers_before_ms = max(0, now_ms - writers_ms)
        if not any(time < writers_before_ms for time in head.written_ms.values()):
            writers_before_ms = 0
        if since == head.since and not writers_before_ms:
            return None
        return _propose_frontiers(head, since=since, writers_before_ms=writers_before_ms)

    # A concurrent expiry may remove the versions read by this one.
    retry_after_expiry(lambda: log.append(propose), store.url)
    return outcome[-1]


def _propose_frontiers(
    head: Manifest, *, since: int = 0, fence: int = 0, writers_before_ms: int = 0
) -> Draft:
    """Return a draft to advance frontiers only."""
    return Draft(
        kind=Kind.EXPIRE,
        live_rows=head.live_rows,
        since=max(head.since, since),
        fence=max(head.fence, fence),
        writers_before_ms=writers_before_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    """The files removed, or to be removed, by a vacuum."""

    expired: tuple[ObjectInfo, ...]
    """Run files referenced only by expired versions."""
    orphans: tuple[ObjectInfo, ...]
    """Run files left by crashed writers."""
    leftovers: tuple[ObjectInfo, ...]
    """Temporary files left by killed writers."""
    foreign: tuple[str, ...]
    """Foreign files in the table's folders, by name or because of a link; never removed."""
    log: tuple[str, ...]
    """Log objects."""
    waiting_count: int
    """Number of unreferenced files too young to be removed."""
    is_dry_run: bool

    @property
    def bytes(self) -> int:
        """Total size without log objects."""
        return sum(file.bytes for file in (*self.expired, *self.orphans, *self.leftovers))

    def with_subfolder(self, other: VacuumResult, folder: str) -> VacuumResult:
        """Add the result for a table in a subfolder; paths get the folder as a prefix."""

        def below(files: tuple[ObjectInfo, ...]) -> tuple[ObjectInfo, ...]:
            return tuple(replace(file, path=f"{folder}/{file.path}") for file in files)

        return replace(
            self,
            expired=self.expired + below(other.expired),
            orphans=self.orphans + below(other.orphans),
            leftovers=self.leftovers + below(other.leftovers),
            foreign=self.foreign + tuple(f"{folder}/{path}" for path in other.foreign),
            log=self.log + tuple(f"{folder}/{path}" for path in other.log),
            waiting_count=self.waiting_count + other.waiting_count,
        )


def vacuum(
    store: Store, log: Log, *, grace_ms: int = GRACE_MS, dry_run: bool = False
) -> VacuumResult:
    """Remove files needed by no readable version, and leftovers from crashes.

    Order: list ``data/``; commit the fence if there are orphans; read the files referenced by
    readable versions, after the listing and the fence; remove expired files, orphans older than the
    fence and temporary files; truncate the log last, because it names the expired files. A crash
    between steps leaves a valid table. Foreign files and links are reported and stay.
    """
    # Files of versions after a gap are in use.
    log.require_no_gap(log.head())
    listing = _list_files(store)
    limit_s = listing.now_s - grace_ms / 1000
    past, entries = log.stored.files_before(log.head().since), log.stored.entries()
    unnamed = UnreferencedFiles.of(
        listing.runs, named=_referenced_files(log), past=past, limit_s=limit_s
    )
    fence = choose_fence(entries, limit_s)
    if unnamed.orphans and not dry_run:
        _raise_fence(log, entries, fence, unnamed)
        # A writer may have committed since; the fence refuses the writers of all other orphans.
        unnamed = UnreferencedFiles.of(
            listing.runs, named=_referenced_files(log), past=past, limit_s=limit_s
        )
    orphans = unnamed.before(fence)
    leftovers = tuple(file for file in listing.passing if file.modified_s < limit_s)
    if not dry_run:
        for file in (*unnamed.expired, *orphans, *leftovers):
            store.delete(file.path)
    return VacuumResult(
        expired=unnamed.expired,
        orphans=orphans,
        leftovers=leftovers,
        foreign=listing.foreign,
        log=tuple(
            cut(store, log, now_s=listing.now_s, seconds_min=_times_needed_s(log), dry_run=dry_run)
        ),
        waiting_count=unnamed.young_count + len(unnamed.orphans) - len(orphans),
        is_dry_run=dry_run,
    )


def _times_needed_s(log: Log) -> float:
    """Return how long commit times are needed: a time-based tombstone retention reads them."""
    head = log.head()
    retention = TombstoneRetention.parse(head.properties.get(PROPERTY, DEFAULT))
    if head.schema.scope is not Scope.TABLE or retention.milliseconds is None:
        return 0.0
    return retention.milliseconds / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """A vacuum's listing, by file type."""

    now_s: float
    """Storage time, in seconds since 1970."""
    runs: tuple[ObjectInfo, ...]
    passing: tuple[ObjectInfo, ...]
    """Temporary files, which live writers rename or remove."""
    foreign: tuple[str, ...]


def _list_files(store: Store) -> _Listing:
    """List the table's files; read the storage's time from a probe file."""
    probe = f"{_DATA}/{new_token()}.now"
    store.put(probe, b"")
    try:
        files = {info.path: info for info in store.list(_DATA)}
    finally:
        store.delete(probe)
    clock = files.pop(probe, None)
    infos = [info for info in files.values() if not info.is_link]
    runs = [info for info in infos if is_run_path(info.path)]
    # If the listing misses the probe, an older time only makes files appear younger.
    now_s = (
        max((info.modified_s for info in runs), default=0.0) if clock is None else clock.modified_s
    )
    others = [*files.values()]
    for folder in (_DATA, _LOG, _LEASES, _PRESSURE, _RANGES):
        others += store.temporaries(folder)
    passing = [info for info in others if _PASSING.fullmatch(info.path) and not info.is_link]
    known_paths = {info.path for info in (*runs, *passing)}
    return _Listing(
        now_s=now_s,
        runs=tuple(runs),
        passing=tuple(passing),
        foreign=tuple(sorted(info.path for info in others if info.path not in known_paths)),
    )


def _referenced_files(log: Log) -> set[str]:
    """Return the files referenced by the versions from ``since`` to the newest."""
    for _ in range(COMMIT_TRIES_MAX):
        head = log.head()
        try:
            files = {slice_.file.path for slice_ in log.at(head.since).slices}
            for commit in log.commits(head.since + 1, head.upper):
                files |= {slice_.file.path for slice_ in commit.slices()}
        except DataLossError:
            continue  # A concurrent expiry: read its `since`.
        return files
    raise ContentionError(
        f"{COMMIT_TRIES_MAX} expiries came between two reads of the log.",
        hint="run fewer expiries at once, then try again.",
    )


def _raise_fence(
    log: Log, entries: list[LogEntry], fence: LogEntry | None, unnamed: UnreferencedFiles
) -> None:
    """Commit a fence, unless it exists and some version is younger than all orphans.

    In a table without writers, this version serves a later fence.
    """
    version = 0 if fence is None else fence.version
    newest = max(entries, key=lambda entry: entry.modified_s)
    is_marked = len(unnamed.before(newest)) == len(unnamed.orphans)

    def propose(head: Manifest) -> Draft | None:
        if version <= head.fence and is_marked:
            return None
        return _propose_frontiers(head, fence=version)

    log.append(propose)
