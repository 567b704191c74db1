"""Row TTL: rows that are older than the table keeps them are deleted, each by one epoch.

A row is as old as the time in one of its columns says, or the commit that wrote it last. An expiry
has a *cutoff*: all rows whose time is at or before it go, by deletes like any others, so that the
changelog has each of them as a retraction, once. No compaction ever leaves a row out.

Runs do not know when each of their rows came. So by the time of commits the rows go that no epoch
has written since the last version at the cutoff: these epochs are still there, because retention
keeps the versions of a TTL (`ages_ms`).

The cutoff of an expiry behind a commit is the recorded time of that commit less the TTL, and the
epoch of the expiry records it as its transaction: which rows went follows from the log alone, and
an expiry that is repeated finds nothing to do. Rows that come meanwhile are judged, too: deletes
are put only behind a version whose rows are those that were looked at.

A row stays at most its TTL, the interval of expiries and the time to the next commit long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import ContentionError, OptionError, SchemaError, UpsertFlowError, masked
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.names import find_column
from spark_upsert.model.schema import TableSchema
from spark_upsert.plan.kernels.equal_keys import is_among
from spark_upsert.table.appends import commands_of
from spark_upsert.table.changes.changes import Changes
from spark_upsert.table.changes.read import changes_by_piece
from spark_upsert.table.changes.stretches import cut_into_stretches
from spark_upsert.table.deletes import deletes_of, require_deletes_win
from spark_upsert.table.entries.found import ABSENT
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.clock import require_clock
from spark_upsert.table.log.kept_position import KEPT_PROPERTIES
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.log.properties import (
    COMMITTED,
    ROW_TTL,
    ROW_TTL_BY,
    ROW_TTL_INTERVAL,
    ages_ms,
    parse_ttl,
)
from spark_upsert.table.write.commands import GONE
from spark_upsert.table.write.guards import Unchanged
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet

if TYPE_CHECKING:
    from spark_upsert.table.table import Table

_LOGGER = logging.getLogger(__name__)

KEYS_MAX = 1 << 20
"""Rows that one epoch deletes at most: their keys are in memory together."""

TRIES_MAX = 16
"""Attempts to put the deletes behind a version that has not changed meanwhile."""

_INTERVALS = 24
"""An expiry is due after this part of the TTL, `_INTERVAL_MS_MAX` at most, unless it is told."""

_DAY_MS = 86_400_000
_INTERVAL_MS_MAX = _DAY_MS

_WRITER = "rowTtl:"
"""The prefix of the names of writers that are expiries; a month of cutoffs follows."""

_WRITER_MS = 30 * _DAY_MS
"""A name is used for so long: less than it takes until an idle writer is forgotten."""

_UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTtl:
    """How long a table keeps its rows."""

    ttl_ms: int
    interval_ms: int
    column: str | None
    """None: rows age from the commit that wrote them last."""

    @classmethod
    def of(cls, schema: TableSchema, properties: Mapping[str, str]) -> RowTtl | None:
        """Return what the properties of a table say; None if its rows stay.

        Raises
        ------
        OptionError
            No column is named, or rows of such a table cannot be deleted by it.
        SchemaError
            The column is not there, or holds no time.
        """
        ttl_ms = parse_ttl(ROW_TTL, properties.get(ROW_TTL, "none"))
        if ttl_ms is None:
            return None
        if ROW_TTL_BY not in properties:
            raise OptionError.missing(
                ROW_TTL_BY, f"the column with the time from which rows age, or '{COMMITTED}'"
            )
        is_by_commit = ages_ms(properties) is not None
        column = None if is_by_commit else _time_column(schema, properties[ROW_TTL_BY])
        if not schema.engine.takes_deletes or any(name in properties for name in KEPT_PROPERTIES):
            raise OptionError(
                f"option '{ROW_TTL}' is of a table whose rows can be deleted; this one holds what "
                "a view or an engine makes of others.",
                hint=f"set '{ROW_TTL}' on the tables that it is made of.",
                option=ROW_TTL,
            )
        require_deletes_win(schema)
        told_ms = parse_ttl(ROW_TTL_INTERVAL, properties.get(ROW_TTL_INTERVAL, "none"))
        own_ms = max(1, min(ttl_ms // _INTERVALS, _INTERVAL_MS_MAX))
        return cls(ttl_ms=ttl_ms, interval_ms=told_ms or own_ms, column=column)

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the time at or before which rows are too old."""
        return max(0, now_ms - self.ttl_ms)

    def is_due(self, head: Manifest) -> bool:
        """Return whether the last expiry is an interval ago, by the times of the log."""
        cutoff_ms = self.cutoff_ms(head.timestamp_ms)
        return cutoff_ms > 0 and cutoff_ms - last_cutoff_ms(head) >= self.interval_ms

    def expired(self, rows: pa.RecordBatch, cutoff_ms: int) -> pa.RecordBatch:
        """Return the rows of a batch that are too old; null is never too old."""
        assert self.column is not None, "rows do not know their commits"
        times = rows.column(self.column)
        limit = pa.scalar(_in_unit(cutoff_ms, times.type), times.type)
        return rows.filter(pc.less_equal(times, limit))


def _time_column(schema: TableSchema, name: str) -> str:
    """Return the column of some name, which must hold a time."""
    column = find_column(name, schema.columns.names, role=f"column of '{ROW_TTL_BY}'")
    type_ = schema.columns.field(column).type
    if not (pa.types.is_timestamp(type_) or pa.types.is_date32(type_)):
        raise SchemaError(
            f"the column '{column}' of '{ROW_TTL_BY}' has type {type_}, expected a timestamp "
            "or a date.",
            hint="name a column that says since when a row counts, or add one; or "
            f"'{COMMITTED}', the time of the commit that wrote a row last.",
            column=column,
        )
    return column


def _in_unit(time_ms: int, type_: pa.DataType) -> int:
    """Return the last value of a column's type that is not behind a time."""
    if pa.types.is_date32(type_):
        return time_ms // _DAY_MS
    return time_ms * _UNITS_PER_S[type_.unit] // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredRows:
    """The result of an expiry of rows."""

    cutoff_ms: int
    """Rows with this time, in ms since 1970, or one before it are gone."""
    deletes: int
    versions: tuple[int, ...]
    """The epochs that deleted them; the last one records the cutoff."""


def last_cutoff_ms(head: Manifest) -> int:
    """Return the cutoff of the newest expiry that the log remembers, 0 without one."""
    own = (n for writer, n in head.transactions.items() if writer.startswith(_WRITER))
    return max(own, default=0)


def expire_rows(table: Table) -> ExpiredRows | None:
    """Delete the rows that are too old by now (`Table.expire_rows`)."""
    # By a clock that is far ahead all rows would be too old.
    require_clock(table.store, table.log.now_ms())
    head = table.log.head()
    return _expire(table, head, max(table.log.now_ms(), head.timestamp_ms))


def follow(table: Table) -> None:
    """Delete the rows that are too old behind a commit, if that is due; raises no error."""
    try:
        head = table.log.seen or table.log.head()
        ttl = RowTtl.of(head.schema, head.properties)
        if ttl is not None and ttl.is_due(head):
            _expire(table, head, head.timestamp_ms)
    except Exception as error:  # noqa: BLE001 - the commit stands, and the next one tries again
        told = error.message if isinstance(error, UpsertFlowError) else f"{error!r}"
        fields = Fields(path=table.store.url)
        _LOGGER.warning("rows not expired: %s error=%s", fields, masked(told))


def _expire(table: Table, head: Manifest, now_ms: int) -> ExpiredRows | None:
    ttl = RowTtl.of(head.schema, head.properties)
    if ttl is None:
        return None
    cutoff_ms = max(ttl.cutoff_ms(now_ms), last_cutoff_ms(head))
    pieces = _keys(table, Snapshot(table.store, head), ttl, cutoff_ms)
    piece, deletes, versions = next(pieces, None), 0, []
    while True:
        following = None if piece is None else next(pieces, None)
        recorded = None if following is not None else _transaction(cutoff_ms)
        done = _delete(table, ttl, piece, head.version, cutoff_ms, recorded)
        if done is not None:
            deletes += done.counters.get("deletes", 0)
            versions.append(done.version)
        if following is None:
            return ExpiredRows(cutoff_ms=cutoff_ms, deletes=deletes, versions=tuple(versions))
        piece = following


def _transaction(cutoff_ms: int) -> Transaction:
    return Transaction(writer=f"{_WRITER}{cutoff_ms // _WRITER_MS}", number=cutoff_ms)


def _keys(
    table: Table, snapshot: Snapshot, ttl: RowTtl, cutoff_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of the rows that are too old, `KEYS_MAX` or a few more at a time."""
    held: list[pa.RecordBatch] = []
    count = 0
    for expired in _expired(table, snapshot, ttl, cutoff_ms):
        if expired.num_rows:
            held.append(expired)
            count += expired.num_rows
        if count >= KEYS_MAX:
            yield _joined(held)
            held, count = [], 0
    if held:
        yield _joined(held)


def _expired(
    table: Table, snapshot: Snapshot, ttl: RowTtl, cutoff_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of all rows that are too old at a version."""
    manifest = snapshot.manifest
    keys = list(manifest.schema.keys)
    if ttl.column is not None:
        for batch in snapshot.read(list(dict.fromkeys((*keys, ttl.column)))):
            yield ttl.expired(batch, cutoff_ms).select(keys)
        return
    last = table.log.version_at(cutoff_ms)
    # Of what came before the first version that can be read no row is known to be that old.
    if last < 0 or last < manifest.since:
        return
    for piece in snapshot.chunks():
        if held := list(snapshot.read(keys, hash_range=piece)):
            yield _not_written(table, _joined(held), last + 1, manifest, piece)


def _not_written(
    table: Table,
    keys: pa.RecordBatch,
    lower: int,
    head: Manifest,
    hash_range: HashRange = ALL_HASHES,
) -> pa.RecordBatch:
    """Return the keys of which no epoch from ``lower`` to a version has written a row."""

    def written(changes: Changes) -> list[pa.Array]:
        rows = changes.new[changes.new != ABSENT]
        return changes.rows.take(head.schema.keys, rows)

    for stretch in cut_into_stretches(table.log, lower, head.upper, head.schema):
        for others in changes_by_piece(
            table.store, stretch, written, net=False, hash_range=hash_range
        ):
            keys = keys.filter(pa.array(~is_among(keys.columns, others)))
    return keys


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=None)
    return joined


def _still(
    table: Table,
    snapshot: Snapshot,
    ttl: RowTtl,
    keys: pa.RecordBatch,
    seen: int,
    cutoff_ms: int,
) -> pa.RecordBatch:
    """Return those of some keys whose rows are too old at a later version, too."""
    if ttl.column is None:
        return _not_written(table, keys, seen + 1, snapshot.manifest)
    own = list(snapshot.manifest.schema.keys)
    found = snapshot.look_up(keys.columns, list(dict.fromkeys((*own, ttl.column))))
    return ttl.expired(found.rows, cutoff_ms).select(own)


def _delete(
    table: Table,
    ttl: RowTtl,
    keys: pa.RecordBatch | None,
    seen: int,
    cutoff_ms: int,
    recorded: Transaction | None,
) -> Commit | None:
    """Delete those of some rows, too old at the version ``seen``, that still are, as one epoch.

    None if there is nothing to delete or to record, or another expiry has recorded this cutoff.
    """
    for _ in range(TRIES_MAX):
        snapshot = Snapshot(table.store, table.log.head())
        if recorded is not None and snapshot.manifest.has(recorded):
            return None
        commands: Iterator[pa.RecordBatch] = iter(())
        if keys is not None:
            rows = deletes_of(snapshot, _still(table, snapshot, ttl, keys, seen, cutoff_ms))
            if not rows.num_rows and recorded is None:
                return None
            commands = commands_of(snapshot.manifest, rows, GONE, None)
        staged = stage(snapshot, commands, threads=table.threads)
        guard = Unchanged(snapshot.manifest)
        epoch = WriteSet(
            base=snapshot,
            staged=(staged,),
            transactions=() if recorded is None else (recorded,),
        )
        try:
            return table.commit(epoch, admission=table.admission(0, guard=guard))
        except ContentionError:
            if not guard.has_changed:
                raise
            table.discard(epoch.staged)  # It was not tried.
        except UpsertFlowError:
            table.discard(epoch.staged)
            raise
    raise ContentionError(
        f"others changed the rows of '{table.store.url}' {TRIES_MAX} times between a look and a "
        "commit. No row was expired.",
        hint="try again when fewer write; the next commit that is due does.",
    )
