"""Row TTL: an expiry commits deletes for all rows older than its *cutoff* (docs/adr/0011).

The cutoff is the epoch's transaction, so a repeated expiry finds nothing to do. Deletes are
committed only if no row changed since the look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.names import find_column
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import ContentionError, OptionError, SchemaError, UpsertFlowError
from spark_upsert.plan.join_keys import is_among
from spark_upsert.table.arguments import deletes_of, require_deletes_win
from spark_upsert.table.changelog.changes import Changes, cut_into_ranges
from spark_upsert.table.changelog.read import changes_by_piece
from spark_upsert.table.log.manifest import KEPT_PROPERTIES, Commit, Manifest, Transaction
from spark_upsert.table.log.properties import (
    COMMITTED,
    ROW_TTL,
    ROW_TTL_BY,
    ages_ms,
    parse_ttl,
)
from spark_upsert.table.log.storage import require_clock
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.commands import GONE
from spark_upsert.table.write.group_commit import WritableTable, commands_of
from spark_upsert.table.write.guards import UnchangedRowsGuard
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet

KEYS_MAX = 1 << 20
"""Approximate maximum deletes per epoch: their keys are in memory together."""

TRIES_MAX = 16
"""Maximum attempts to commit deletes without a concurrent change to their rows."""

_DAY_MS = 86_400_000

_WRITER = "rowTtl:"
"""Prefix for the writer names of row expiries; a 30-day period's number follows."""

_WRITER_MS = 30 * _DAY_MS
"""Time for which one writer name is used: shorter than the retention for idle writers."""

_UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTtl:
    """A table's row TTL."""

    ttl_ms: int
    column: str | None
    """The time column; None: rows age from their last commit."""

    @classmethod
    def of(cls, schema: TableSchema, properties: Mapping[str, str]) -> RowTtl | None:
        """Return the row TTL in a table's properties; None if rows never expire."""
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
        return cls(ttl_ms=ttl_ms, column=column)

    def expired(self, rows: pa.RecordBatch, cutoff_ms: int) -> pa.RecordBatch:
        """Return a batch's expired rows; a null time never expires."""
        assert self.column is not None, "rows do not know their commits"
        times = rows.column(self.column)
        limit = pa.scalar(_in_unit(cutoff_ms, times.type), times.type)
        return rows.filter(pc.less_equal(times, limit))


def _time_column(schema: TableSchema, name: str) -> str:
    """Return the named column; raise unless its type is a timestamp or a date."""
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
    """Return the last value in a column's type that is not after a time."""
    if pa.types.is_date32(type_):
        return time_ms // _DAY_MS
    return time_ms * _UNITS_PER_S[type_.unit] // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredRows:
    """The result of a row expiry."""

    cutoff_ms: int
    """Rows up to this time, in ms since 1970, are deleted."""
    deletes: int
    versions: tuple[int, ...]
    """The epochs with the deletes; the last one records the cutoff."""


def last_cutoff_ms(head: Manifest) -> int:
    """Return the cutoff of the newest recorded row expiry, 0 without one."""
    numbers = (n for writer, n in head.transactions.items() if writer.startswith(_WRITER))
    return max(numbers, default=0)


def expire_rows(table: WritableTable) -> ExpiredRows | None:
    """Delete the expired rows (`Table.expire_rows`); return None if the table has no row TTL."""
    head = table.log.head()
    ttl = RowTtl.of(head.schema, head.properties)
    if ttl is None:
        return None
    # By a clock far ahead, all rows would be expired.
    require_clock(table.store, table.log.now_ms())
    now_ms = max(table.log.now_ms(), head.timestamp_ms)
    cutoff_ms = max(0, now_ms - ttl.ttl_ms, last_cutoff_ms(head))
    pieces = _expired_key_batches(table, Snapshot(table.store, head), ttl, cutoff_ms)
    piece, deletes, versions = next(pieces, None), 0, []
    while piece is not None:
        following = next(pieces, None)
        recorded = _transaction(cutoff_ms) if following is None else None
        done = _delete(table, ttl, piece, head.version, cutoff_ms, recorded)
        if done is not None:
            deletes += done.counters.get("deletes", 0)
            versions.append(done.version)
        piece = following
    return ExpiredRows(cutoff_ms=cutoff_ms, deletes=deletes, versions=tuple(versions))


def _transaction(cutoff_ms: int) -> Transaction:
    return Transaction(writer=f"{_WRITER}{cutoff_ms // _WRITER_MS}", number=cutoff_ms)


def _expired_key_batches(
    table: WritableTable, snapshot: Snapshot, ttl: RowTtl, cutoff_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of expired rows, about `KEYS_MAX` at a time."""
    held: list[pa.RecordBatch] = []
    count = 0
    for expired in _find_expired(table, snapshot, ttl, cutoff_ms):
        if expired.num_rows:
            held.append(expired)
            count += expired.num_rows
        if count >= KEYS_MAX:
            yield _join(held)
            held, count = [], 0
    if held:
        yield _join(held)


def _find_expired(
    table: WritableTable, snapshot: Snapshot, ttl: RowTtl, cutoff_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of all rows expired at a version."""
    manifest = snapshot.manifest
    keys = list(manifest.schema.keys)
    if ttl.column is not None:
        for batch in snapshot.read(list(dict.fromkeys((*keys, ttl.column)))):
            yield ttl.expired(batch, cutoff_ms).select(keys)
        return
    last = table.log.version_at(cutoff_ms)
    # Commit times before the first readable version are unknown.
    if last < 0 or last < manifest.since:
        return
    for piece in snapshot.chunks():
        if held := list(snapshot.read(keys, hash_range=piece)):
            yield _drop_written(table, _join(held), last + 1, manifest, piece)


def _drop_written(
    table: WritableTable,
    keys: pa.RecordBatch,
    lower: int,
    head: Manifest,
    hash_range: HashRange = ALL_HASHES,
) -> pa.RecordBatch:
    """Return the keys written by no epoch from ``lower`` to the head."""

    def written(changes: Changes) -> list[pa.Array]:
        rows = changes.new[changes.new != ABSENT]
        return changes.rows.take(head.schema.keys, rows)

    for epoch_range in cut_into_ranges(table.log, lower, head.upper, head.schema):
        for others in changes_by_piece(
            table.store, epoch_range, written, net=False, hash_range=hash_range
        ):
            keys = keys.filter(pa.array(~is_among(keys.columns, others)))
    return keys


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    [joined] = pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=None)
    return joined


def _still_expired(
    table: WritableTable,
    snapshot: Snapshot,
    ttl: RowTtl,
    keys: pa.RecordBatch,
    version: int,
    cutoff_ms: int,
) -> pa.RecordBatch:
    """Return the keys whose rows are still expired at a later version."""
    if ttl.column is None:
        return _drop_written(table, keys, version + 1, snapshot.manifest)
    key_names = list(snapshot.manifest.schema.keys)
    matches = snapshot.look_up(keys.columns, list(dict.fromkeys((*key_names, ttl.column))))
    return ttl.expired(matches.rows, cutoff_ms).select(key_names)


def _delete(
    table: WritableTable,
    ttl: RowTtl,
    keys: pa.RecordBatch,
    version: int,
    cutoff_ms: int,
    recorded: Transaction | None,
) -> Commit | None:
    """Delete the rows expired at version ``version`` and still expired, as one epoch.

    Returns None if there is nothing to delete, or another expiry has recorded this cutoff.
    """
    for _ in range(TRIES_MAX):
        snapshot = Snapshot(table.store, table.log.head())
        if recorded is not None and snapshot.manifest.has(recorded):
            return None
        rows = deletes_of(snapshot, _still_expired(table, snapshot, ttl, keys, version, cutoff_ms))
        if not rows.num_rows:
            return None
        commands = commands_of(snapshot.manifest, rows, GONE)
        staged = stage(snapshot, commands, threads=table.threads)
        guard = UnchangedRowsGuard(snapshot.manifest)
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
            table.discard(epoch.staged)  # No commit was attempted.
        except UpsertFlowError:
            table.discard(epoch.staged)
            raise
    raise ContentionError(
        f"others changed the rows of '{table.store.url}' {TRIES_MAX} times between a look and a "
        "commit. No row was expired.",
        hint="try again when fewer write; the next expiry does.",
    )
