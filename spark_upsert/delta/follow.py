"""Publication after each commit (`follow`), this process's mirrors, and a mirror's lag.

No failure here fails a commit. A mirror lagging too far waits for ``upsertflow publish``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from spark_upsert.core.durations import Fields
from spark_upsert.core.lru import LruMap
from spark_upsert.delta.deletion_vectors import run_files
from spark_upsert.delta.log import (
    FOLDER,
    NO_CHANGES,
    PublicationSettings,
    mirror_settings,
    open_mirror_store,
    open_published_mirror,
)
from spark_upsert.delta.parquet_files import run_id
from spark_upsert.delta.publish import Mirror, data_files_by_run, shown_version
from spark_upsert.delta.types import require_mirrored as require_mirrored
from spark_upsert.errors import DataLossError, UpsertFlowError, masked
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.properties import (
    PUBLISH_INTERVAL,
    PUBLISH_PATH,
    parse_interval,
    parse_retention,
)
from spark_upsert.table.observers import ObservedTable, PublicationResult
from spark_upsert.table.published import DEFAULT_FOLDER, is_published
from spark_upsert.table.retention.expiry import VacuumResult
from spark_upsert.table.state.prepared import PreparedFiles
from spark_upsert.views.materialized import (
    RESULT_FOLDER,
    is_grouped,
    open_result_table,
    read_result_version,
    update_result_table,
)

_LOGGER = logging.getLogger(__name__)

STEP_ROWS = 1 << 20
"""Maximum rows without a Parquet copy for one automatic publication."""

_TIMES = 4
"""Alternative limit: a multiple of the newest epoch's rows. The larger limit applies."""

VECTOR_BYTES_PER_ROW = 2
"""Maximum bytes of deletion vectors per written row, averaged, with ``publishInterval=auto``: each
publication writes those of all changed files again."""

FREE_VECTOR_BYTES = 1 << 16
"""Deletion vectors up to this size are always published: they cost less than the requests."""

DEFERRED_MS_MAX = 600_000
"""Maximum age of the shown version at a commit, whatever the deletion vectors cost."""

_KEPT_MAX = 256
"""Maximum mirrors cached per process; each takes a bit per table row."""


class MirrorCache:
    """A process's mirrors, by the stores for table and mirror. Safe for threads."""

    def __init__(self, count_max: int = _KEPT_MAX) -> None:
        self._mirrors: LruMap[Hashable, Mirror] = LruMap(count_max)
        self._lock = threading.Lock()
        self.failures = 0
        """Failed publications and cleanups in this process; their tables continued without them."""

    def clear(self) -> None:
        """Drop all mirrors, as a process end would."""
        with self._lock:
            self._mirrors.clear()

    def of(self, table: ObservedTable, target: Store) -> Mirror:
        """Return the cached mirror for a table and location, or a new one."""
        cache_keys = (table.store.cache_key, target.cache_key)
        if None in cache_keys:
            return Mirror(table.log, table.store, target)
        with self._lock:
            mirror = self._mirrors.get(cache_keys)
            if mirror is None:
                mirror = Mirror(table.log, table.store, target)
                self._mirrors.put(cache_keys, mirror)
            mirror.use_store(table.log, table.store, target)
            return mirror

    def record_failure(self, table: ObservedTable, error: Exception) -> None:
        """Count and log an error without failing the preceding commit."""
        self.failures += 1
        reason = error.message if isinstance(error, UpsertFlowError) else f"{error!r}"
        fields = Fields(path=table.store.url, failures=self.failures)
        _LOGGER.warning("mirror not kept up: %s error=%s", fields, masked(reason))


MIRRORS = MirrorCache()
"""This process's mirrors."""


def publish(
    table: ObservedTable,
    to: str | None = None,
    *,
    rebuild: bool = False,
    guard: bool | None = None,
    change_feed: bool | None = None,
    retention: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> PublicationResult:
    """Bring a table's mirror to the newest version (`Table.publish`).

    All newer versions become one Delta commit, which creates a missing Delta table. Settings left
    None come from the table's properties, else from the Delta table. By default a new mirror is
    guarded, has no change feed, and keeps versions for six hours.
    """
    settings = PublicationSettings(
        guard=guard,
        change_feed=change_feed,
        retention_ms=None if retention is None else parse_retention(retention),
    )
    head = table.log.cached_head or table.log.head()
    require_mirrored(head.schema, head.properties)
    settings = settings.with_defaults(head.properties)
    store = table.store
    target = (
        open_published_mirror(store, head.properties)
        if to is None
        else open_mirror_store(store, to, storage_options)
    )
    source = update_result_table(table) if is_grouped(head) else table
    return MIRRORS.of(source, target).publish(settings, rebuild=rebuild)


def follow(
    table: ObservedTable, version: int | None, prepared_files: Iterable[PreparedFiles]
) -> None:
    """Bring a table's mirror up to date if due and cheap; raises no error."""
    mirror: Mirror | None = None
    try:
        head = table.log.cached_head or table.log.head()
        shown = open_result_table(table) if is_grouped(head) else table
        mirror = MIRRORS.of(shown, open_published_mirror(table.store, head.properties))
        mirror.prepared.add(head.version if version is None else version, prepared_files)
        _follow(table, mirror, head)
    except Exception as error:  # noqa: BLE001 - a mirror is never worth a commit
        MIRRORS.record_failure(table, error)
        if mirror is not None:
            mirror.discard_prepared()


def require_place(table: ObservedTable, given: Mapping[str, str]) -> None:
    """Raise if new properties request a mirror at an unusable location.

    A location already used by the table is not checked.
    """
    head = table.log.try_head()
    before = {} if head is None else dict(head.properties)
    after = {**before, **given}
    is_known = is_published(before) and before.get(PUBLISH_PATH) == after.get(PUBLISH_PATH)
    if is_published(after) and not is_known:
        mirror = Mirror(table.log, table.store, open_published_mirror(table.store, after))
        if head is not None and is_grouped(head):
            head = open_result_table(table).log.try_head()
        mirror.require_place(None if head is None else head.table_id)


def vacuum(table: ObservedTable, dry_run: bool) -> Iterator[tuple[str, VacuumResult]]:
    """Remove files no longer needed by a table's mirrors; yield the results by location.

    These mirrors are in the default folder and at the location in the table's properties. Errors
    are counted and logged: a mirror must not fail the table's vacuum.
    """
    default_target = open_mirror_store(table.store, None)
    targets = {
        target.url: target
        for target in (
            default_target,
            open_published_mirror(table.store, table.log.head().properties),
        )
    }
    source = table
    if is_grouped(table.log.head()):
        source = settled = open_result_table(table)
        if settled.log.try_head() is not None:
            yield RESULT_FOLDER, settled.vacuum(dry_run=dry_run)
    for url, target in targets.items():
        try:
            done = MIRRORS.of(source, target).vacuum(dry_run=dry_run)
        except Exception as error:  # noqa: BLE001 - a mirror is never worth a vacuum
            MIRRORS.record_failure(table, error)
            continue
        yield (
            DEFAULT_FOLDER if url == default_target.url else url,
            VacuumResult(
                expired=(),
                orphans=done.files,
                leftovers=(),
                foreign=(),
                log=done.log,
                waiting_count=0,
                is_dry_run=dry_run,
            ),
        )


def _follow(table: ObservedTable, mirror: Mirror, head: Manifest) -> None:
    interval_ms = parse_interval(head.properties.get(PUBLISH_INTERVAL, "0 seconds"))
    # A clock set back does not make the interval longer.
    age_ms = table.log.now_ms() - (mirror.published_ms or 0)
    if interval_ms is not None and 0 <= age_ms < interval_ms:
        return
    if is_grouped(head):
        # A materialized view, large before its publication, is settled as a whole.
        begins = read_result_version(table, head) is None
        rows = sum(file.rows for file in run_files(head).values()) if begins else 0
    else:
        rows = _count_rows_without_data_file(mirror, head, mirror.prepared_data_files(head))
    newest = max((slice_.epochs.lower for slice_ in head.slices), default=0)
    written = sum(s.file.rows for s in head.slices if s.epochs.lower == newest)
    if interval_ms is None and 2 * rows <= STEP_ROWS and _is_deferred(mirror, head):
        return
    if rows > max(STEP_ROWS, _TIMES * written):
        fields = Fields(path=table.store.url, place=mirror.place, rows=rows)
        _LOGGER.warning("mirror left behind, run 'upsertflow publish': %s", fields)
        mirror.discard_prepared()
        return
    if is_grouped(head):
        update_result_table(table)
    mirror.publish(NO_CHANGES.with_defaults(head.properties))


def _is_deferred(mirror: Mirror, head: Manifest) -> bool:
    """Return whether the deletion vectors would cost too much for the rows written so far.

    A mirror with a change feed shows each epoch.
    """
    state = mirror.seen or mirror.state()
    shown = None if state is None else shown_version(state, head.table_id)
    if state is None or shown is None or is_grouped(head):
        return False
    settings = mirror_settings(state)
    is_changed = NO_CHANGES.with_defaults(head.properties).applied_to(settings) != settings
    is_recent = 0 <= mirror.log.now_ms() - state.time_ms < DEFERRED_MS_MAX
    if is_changed or settings.change_feed or not is_recent:
        return False
    try:
        pending = mirror.pending(shown, head)
    except DataLossError:
        return False
    vector_bytes = pending.vector_bytes(state.live.values())
    return pending.is_countable and vector_bytes > max(
        FREE_VECTOR_BYTES, VECTOR_BYTES_PER_ROW * pending.written
    )


def _count_rows_without_data_file(mirror: Mirror, head: Manifest, ahead: Collection[str]) -> int:
    """Return the entry count in runs neither prepared nor in the last seen mirror."""
    state = mirror.seen or mirror.state()
    twins = {*ahead, *(() if state is None else data_files_by_run(state.live))}
    return sum(file.rows for path, file in run_files(head).items() if run_id(path) not in twins)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """A mirror's status."""

    place: str
    shown: int
    """The shown table version."""
    versions_behind: int
    """Number of newer table versions, including those without changed rows."""
    ms_behind: int
    """Age of the first newer epoch; 0 if no row has changed since the shown version."""
    delta_version: int
    twins: int
    rows: int
    """Rows in all Parquet copies, including deleted ones."""
    dead_rows: int
    bytes: int
    """Bytes in the live Parquet copies."""
    vector_bytes: int
    """Bytes in their deletion vectors."""
    log_bytes: int
    """Bytes in the log folder."""
    retention_ms: int
    """Retention for versions and the change feed."""
    has_feed: bool
    is_guarded: bool
    """Whether conforming writers reject the mirror."""
    failures: int
    """Failures in this process, for all mirrors."""
    changed_by: str | None
    """Operation in the first external commit; None if the mirror is intact."""


def default_mirror(table: ObservedTable) -> Mirror:
    """Return the mirror at the location in a table's properties, even if it does not exist yet."""
    head = table.log.head()
    shown = open_result_table(table) if is_grouped(head) else table
    return Mirror(shown.log, shown.store, open_published_mirror(table.store, head.properties))


def status_of_mirror(table: ObservedTable) -> MirrorStatus | None:
    """Return the mirror's status for a table or a materialized view; None without a mirror."""
    head = table.log.head()
    if not is_grouped(head):
        return mirror_status(default_mirror(table))
    at = read_result_version(table, head)
    facts = None if at is None else mirror_status(default_mirror(table))
    if at is None or facts is None:
        return None
    lag = facts.versions_behind, facts.ms_behind
    versions, ms = _add_unsettled(lag, table, head, at)
    return replace(facts, versions_behind=versions, ms_behind=ms)


def mirror_status(mirror: Mirror) -> MirrorStatus | None:
    """Return a mirror's status; None if the location has no mirror for this table."""
    state, head = mirror.state(), mirror.log.head()
    shown = None if state is None else shown_version(state, head.table_id)
    if state is None or shown is None:
        return None
    settings = mirror_settings(state)
    stats = [json.loads(add["stats"]) for add in state.live.values() if "stats" in add]
    vectors = [add["deletionVector"] for add in state.live.values() if "deletionVector" in add]
    return MirrorStatus(
        place=mirror.place,
        shown=shown,
        versions_behind=max(0, head.version - shown),
        ms_behind=_ms_behind(mirror, shown),
        delta_version=state.version,
        twins=len(state.live),
        rows=sum(stat["numRecords"] for stat in stats),
        dead_rows=sum(vector["cardinality"] for vector in vectors),
        bytes=sum(add["size"] for add in state.live.values()),
        vector_bytes=sum(vector["sizeInBytes"] for vector in vectors),
        log_bytes=sum(info.bytes for info in mirror.target.list(FOLDER)),
        retention_ms=settings.retention_ms,
        has_feed=settings.change_feed,
        is_guarded=settings.guard,
        failures=MIRRORS.failures,
        changed_by=None if state.foreign is None else state.foreign.operation,
    )


def measure_mirror_lag(table: ObservedTable) -> tuple[int, int] | None:
    """Return the mirror's lag for a table or a materialized view: version count and milliseconds.

    The time is the first newer epoch's age (`MirrorStatus.ms_behind`). None without a mirror.
    """
    head = table.log.head()
    shown = open_result_table(table) if is_grouped(head) else table
    if shown is table:
        return _measure_lag(MIRRORS.of(table, open_published_mirror(table.store, head.properties)))
    at = read_result_version(table, head)
    if at is None:
        return None
    lag = _measure_lag(MIRRORS.of(shown, open_published_mirror(table.store, head.properties)))
    return None if lag is None else _add_unsettled(lag, table, head, at)


def _add_unsettled(
    found: tuple[int, int], table: ObservedTable, head: Manifest, at: int
) -> tuple[int, int]:
    """Add a materialized view's unsettled versions to its mirror's lag."""
    if at >= head.version:
        return found
    ms = max(0, table.log.now_ms() - head.timestamp_ms)
    return found[0] + head.version - at, max(found[1], ms)


def _measure_lag(mirror: Mirror) -> tuple[int, int] | None:
    state, head = mirror.state(), mirror.log.head()
    shown = None if state is None else shown_version(state, head.table_id)
    return None if shown is None else (max(0, head.version - shown), _ms_behind(mirror, shown))


def _ms_behind(mirror: Mirror, shown: int) -> int:
    head = mirror.log.head()
    if head.changed <= shown:
        return 0
    try:
        later_commits = mirror.log.commits(shown + 1, head.upper)
        first = next(commit for commit in later_commits if commit.is_epoch)
    except DataLossError:
        return mirror.log.now_ms() - head.timestamp_ms
    return max(0, mirror.log.now_ms() - head.time_ms(first.version, first.timestamp_ms))
