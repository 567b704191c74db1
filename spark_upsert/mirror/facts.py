"""How far a mirror is behind its table, and what it holds, from the two logs alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from spark_upsert.errors import DataLossError
from spark_upsert.mirror.delta_log import FOLDER
from spark_upsert.mirror.follow import MIRRORS
from spark_upsert.mirror.manner import manner_of
from spark_upsert.mirror.place import target_of
from spark_upsert.mirror.publish import Mirror, shown_of
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.table import Table
from spark_upsert.views.groups.settled import keeps_groups, settled_at, settled_below


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


def default_mirror(table: Table) -> Mirror:
    """Return the mirror of a table where its properties say, whether or not it is there."""
    head = table.log.head()
    shown = settled_below(table) if keeps_groups(head) else table
    return Mirror(shown.log, shown.store, target_of(table.store, head.properties))


def facts_below(table: Table) -> MirrorFacts | None:
    """Return what there is to say of the mirror of a table, or of its groups; None without one."""
    head = table.log.head()
    if not keeps_groups(head):
        return facts_of(default_mirror(table))
    at = settled_at(table, head)
    found = None if at is None else facts_of(default_mirror(table))
    if at is None or found is None:
        return None
    lag = found.versions_behind, found.ms_behind
    versions, ms = _with_unsettled(lag, table, head, at)
    return replace(found, versions_behind=versions, ms_behind=ms)


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
        rows=sum(each["numRecords"] for each in stats),
        dead_rows=sum(each["cardinality"] for each in vectors),
        bytes=sum(add["size"] for add in state.live.values()),
        vector_bytes=sum(each["sizeInBytes"] for each in vectors),
        log_bytes=sum(info.bytes for info in mirror.target.list(FOLDER)),
        retention_ms=manner.retention_ms,
        has_feed=manner.change_feed,
        is_guarded=manner.guard,
        failures=MIRRORS.failures,
        changed_by=None if state.foreign is None else state.foreign.operation,
    )


def lag_below(table: Table) -> tuple[int, int] | None:
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
    found = _lag_of(MIRRORS.of(shown, target_of(table.store, head.properties)))
    return None if found is None else _with_unsettled(found, table, head, at)


def _with_unsettled(
    found: tuple[int, int], table: Table, head: Manifest, at: int
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
        behind = mirror.log.commits(shown + 1, head.upper)
        first = next(commit for commit in behind if commit.is_epoch)
    except DataLossError:
        return mirror.log.now_ms() - head.timestamp_ms
    return max(0, mirror.log.now_ms() - head.time_ms(first.version, first.timestamp_ms))
