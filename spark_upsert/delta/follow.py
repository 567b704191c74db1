"""Publication after each commit (`follow`), this process's mirrors, and a mirror's lag.

No failure here fails a commit. A mirror that lags too far waits for ``upsertflow publish``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from spark_upsert.core.durations import Fields
from spark_upsert.core.lru import LruMap
from spark_upsert.delta.deletion_vectors import files_of
from spark_upsert.delta.log import (
    AS_IT_IS,
    FOLDER,
    PublicationSettings,
    manner_of,
    place_of,
    target_of,
)
from spark_upsert.delta.parquet_files import id_of
from spark_upsert.delta.publish import Mirror, shown_of, twins_among
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
    SETTLED_FOLDER,
    keeps_groups,
    settle,
    settled_at,
    settled_below,
)

_LOGGER = logging.getLogger(__name__)

STEP_ROWS = 1 << 20
"""Entries without a twin that a step behind a commit may publish, however small the commit was."""

_TIMES = 4
"""The bound of a step as a multiple of the newest epoch, if that is more."""

_KEPT_MAX = 256
"""Mirrors that a process knows: a bit for each row of their tables."""


class KeptMirrors:
    """The mirrors that a process keeps, by the stores of table and place. Safe for threads."""

    def __init__(self, count_max: int = _KEPT_MAX) -> None:
        self._mirrors: LruMap[Hashable, Mirror] = LruMap(count_max)
        self._lock = threading.Lock()
        self.failures = 0
        """Steps of this process that failed: the tables went on without them."""

    def clear(self) -> None:
        """Keep none, as the end of the process would."""
        with self._lock:
            self._mirrors.clear()

    def of(self, table: ObservedTable, target: Store) -> Mirror:
        """Return the mirror of a table at a place, as this process knows it."""
        cache_keys = (table.store.cache_key, target.cache_key)
        if None in cache_keys:
            return Mirror(table.log, table.store, target)
        with self._lock:
            mirror = self._mirrors.get(cache_keys)
            if mirror is None:
                mirror = Mirror(table.log, table.store, target)
                self._mirrors.put(cache_keys, mirror)
            mirror.reach_by(table.log, table.store, target)
            return mirror

    def note(self, table: ObservedTable, error: Exception) -> None:
        """Count an error that is not to stop the commit that it came behind, and tell of it."""
        self.failures += 1
        reason = error.message if isinstance(error, UpsertFlowError) else f"{error!r}"
        fields = Fields(path=table.store.url, failures=self.failures)
        _LOGGER.warning("mirror not kept up: %s error=%s", fields, masked(reason))


MIRRORS = KeptMirrors()
"""The mirrors of this process."""


def publish(
    table: ObservedTable,
    to: str | None = None,
    *,
    rebuild: bool = False,
    guard: bool | None = None,
    change_feed: bool | None = None,
    retention: str | None = None,
    storage: Mapping[str, str] | None = None,
) -> PublicationResult:
    """Bring the mirror of a table to the newest version (`Table.publish`).

    All that is behind becomes one commit of the Delta table, which is made if it is not there. What
    is not asked for is as the properties of the table say, else as the Delta table is; at first it
    is guarded, has no change feed, and can be travelled for six hours.
    """
    settings = PublicationSettings(
        guard=guard,
        change_feed=change_feed,
        retention_ms=None if retention is None else parse_retention(retention),
    )
    head = table.log.seen or table.log.head()
    require_mirrored(head.schema, head.properties)
    settings = settings.or_else(head.properties)
    store = table.store
    target = target_of(store, head.properties) if to is None else place_of(store, to, storage)
    source = settle(table) if keeps_groups(head) else table
    return MIRRORS.of(source, target).publish(settings, rebuild=rebuild)


def follow(table: ObservedTable, version: int | None, prepared: Iterable[PreparedFiles]) -> None:
    """Bring the mirror of a table up to date, as far as is cheap and due; raises no error."""
    mirror: Mirror | None = None
    try:
        head = table.log.seen or table.log.head()
        shown = settled_below(table) if keeps_groups(head) else table
        mirror = MIRRORS.of(shown, target_of(table.store, head.properties))
        mirror.prepared.add(head.version if version is None else version, prepared)
        _follow(table, mirror, head)
    except Exception as error:  # noqa: BLE001 - a mirror is never worth a commit
        MIRRORS.note(table, error)
        if mirror is not None:
            mirror.give_up_ahead()


def require_place(table: ObservedTable, given: Mapping[str, str]) -> None:
    """Raise if properties that are to be set ask for a mirror where it cannot be begun, or gone on.

    A place that is the table's already is not looked at.
    """
    head = table.log.try_head()
    before = {} if head is None else dict(head.properties)
    after = {**before, **given}
    is_known = is_published(before) and before.get(PUBLISH_PATH) == after.get(PUBLISH_PATH)
    if is_published(after) and not is_known:
        mirror = Mirror(table.log, table.store, target_of(table.store, after))
        if head is not None and keeps_groups(head):
            head = settled_below(table).log.try_head()
        mirror.require_place(None if head is None else head.table_id)


def vacuum(table: ObservedTable, dry_run: bool) -> Iterator[tuple[str, VacuumResult]]:
    """Remove what is of no use to the mirrors of a table, and yield what it was, by their places.

    They are the one below the table, if there is one, and that of its properties. An error is
    counted and told: a mirror is not worth the upkeep of its table.
    """
    default_target = place_of(table.store, None)
    targets = {
        target.url: target
        for target in (default_target, target_of(table.store, table.log.head().properties))
    }
    source = table
    if keeps_groups(table.log.head()):
        source = settled = settled_below(table)
        if settled.log.try_head() is not None:
            yield SETTLED_FOLDER, settled.vacuum(dry_run=dry_run)
    for url, target in targets.items():
        try:
            done = MIRRORS.of(source, target).vacuum(dry_run=dry_run)
        except Exception as error:  # noqa: BLE001 - a mirror is never worth a vacuum
            MIRRORS.note(table, error)
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
    # A clock that went back does not make the interval longer.
    if 0 <= table.log.now_ms() - (mirror.published_ms or 0) < interval_ms:
        return
    if keeps_groups(head):
        # A kept table that was large before it was published is settled as a whole.
        begins = settled_at(table, head) is None
        rows = sum(file.rows for file in files_of(head).values()) if begins else 0
    else:
        rows = _rows_without_twin(mirror, head, mirror.twins_ahead(head))
    newest = max((slice_.epochs.lower for slice_ in head.slices), default=0)
    written = sum(s.file.rows for s in head.slices if s.epochs.lower == newest)
    if rows > max(STEP_ROWS, _TIMES * written):
        fields = Fields(path=table.store.url, place=mirror.place, rows=rows)
        _LOGGER.warning("mirror left behind, run 'upsertflow publish': %s", fields)
        mirror.give_up_ahead()
        return
    if keeps_groups(head):
        settle(table)
    mirror.publish(AS_IT_IS.or_else(head.properties))


def _rows_without_twin(mirror: Mirror, head: Manifest, ahead: Collection[str]) -> int:
    """Return how many entries are in runs that the mirror does not have, as it was seen last."""
    state = mirror.seen or mirror.state()
    twins = {*ahead, *(() if state is None else twins_among(state.live))}
    return sum(file.rows for path, file in files_of(head).items() if id_of(path) not in twins)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """A mirror in a few numbers."""

    place: str
    shown: int
    """The version of the table that it shows."""
    versions_behind: int
    """Versions of the table behind that one, those that change no row among them."""
    ms_behind: int
    """How long ago the first of them that is an epoch was committed; 0 if there is none."""
    delta_version: int
    twins: int
    rows: int
    """Rows of all twins, dead or not."""
    dead_rows: int
    bytes: int
    """Bytes of the live twins."""
    vector_bytes: int
    """Bytes of their deletion vectors."""
    log_bytes: int
    """Bytes of commits and checkpoints."""
    retention_ms: int
    """How long its versions, and its change feed, can be read."""
    has_feed: bool
    is_guarded: bool
    """Whether writers that keep to the protocol are kept out."""
    failures: int
    """Steps of this process that failed, of whatever mirror."""
    changed_by: str | None
    """What somebody else did to it, if it is no copy any more."""


def default_mirror(table: ObservedTable) -> Mirror:
    """Return the mirror of a table where its properties say, whether or not it is there."""
    head = table.log.head()
    shown = settled_below(table) if keeps_groups(head) else table
    return Mirror(shown.log, shown.store, target_of(table.store, head.properties))


def facts_below(table: ObservedTable) -> MirrorFacts | None:
    """Return what there is to say of the mirror of a table, or of its groups; None without one."""
    head = table.log.head()
    if not keeps_groups(head):
        return facts_of(default_mirror(table))
    at = settled_at(table, head)
    facts = None if at is None else facts_of(default_mirror(table))
    if at is None or facts is None:
        return None
    lag = facts.versions_behind, facts.ms_behind
    versions, ms = _with_unsettled(lag, table, head, at)
    return replace(facts, versions_behind=versions, ms_behind=ms)


def facts_of(mirror: Mirror) -> MirrorFacts | None:
    """Return what there is to say of a mirror; None if there is none of this table."""
    state, head = mirror.state(), mirror.log.head()
    shown = None if state is None else shown_of(state, head.table_id)
    if state is None or shown is None:
        return None
    manner = manner_of(state)
    stats = [json.loads(add["stats"]) for add in state.live.values() if "stats" in add]
    vectors = [add["deletionVector"] for add in state.live.values() if "deletionVector" in add]
    return MirrorFacts(
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
        retention_ms=manner.retention_ms,
        has_feed=manner.change_feed,
        is_guarded=manner.guard,
        failures=MIRRORS.failures,
        changed_by=None if state.foreign is None else state.foreign.operation,
    )


def lag_below(table: ObservedTable) -> tuple[int, int] | None:
    """Return how many versions the mirror of a table, or of its groups, is behind, and for how many
    ms the first that changed rows has waited; None without a mirror.
    """
    head = table.log.head()
    shown = settled_below(table) if keeps_groups(head) else table
    if shown is table:
        return _lag_of(MIRRORS.of(table, target_of(table.store, head.properties)))
    at = settled_at(table, head)
    if at is None:
        return None
    lag = _lag_of(MIRRORS.of(shown, target_of(table.store, head.properties)))
    return None if lag is None else _with_unsettled(lag, table, head, at)


def _with_unsettled(
    found: tuple[int, int], table: ObservedTable, head: Manifest, at: int
) -> tuple[int, int]:
    """Add what a kept table has and its settled one has not to the lag of their mirror."""
    if at >= head.version:
        return found
    ms = max(0, table.log.now_ms() - head.timestamp_ms)
    return found[0] + head.version - at, max(found[1], ms)


def _lag_of(mirror: Mirror) -> tuple[int, int] | None:
    state, head = mirror.state(), mirror.log.head()
    shown = None if state is None else shown_of(state, head.table_id)
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
