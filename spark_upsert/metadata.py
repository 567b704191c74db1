"""Metadata of a table as Arrow rows: epochs, files, versions, consumers, indexes, pressure, mirror.

Rows come from log and leases; no run is opened. They cover ``since`` to the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import islice
from typing import Any

import pyarrow as pa

from spark_upsert.options.read import Metadata
from spark_upsert.table.log.manifest import Commit, Manifest, apply
from spark_upsert.table.log.properties import Caps
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.retention.lag import BacklogCounter
from spark_upsert.table.retention.leases import readable_leases
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table

_BATCH_ROWS = 4096
_TIME = pa.timestamp("us", tz="UTC")
_DERIVED = ("eligible", "result_count", "output_count")

Row = dict[str, Any]


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, type_) for name, type_ in types.items()])


_VERSION = {
    "version": pa.int64(),
    "kind": pa.string(),
    "timestamp": _TIME,
    "transactions": pa.map_(pa.string(), pa.int64()),
}

_TABLE = {
    "live_rows": pa.int64(),
    "runs": pa.int64(),
    "table_files": pa.int64(),
    "table_bytes": pa.int64(),
}

EPOCHS = _schema(
    **_VERSION,
    **{field.name: pa.int64() for field in fields(Counters)},
    **dict.fromkeys(_DERIVED, pa.int64()),
    files=pa.int64(),
    bytes=pa.int64(),
    **_TABLE,
)
"""One row per version that wrote changes: its transactions, its `Counters`, its ``files`` and
``bytes``, and the table state after it."""

FILES = _schema(
    path=pa.string(),
    epoch_lower=pa.int64(),
    epoch_upper=pa.int64(),
    index=pa.int64(),
    hash_lower=pa.string(),
    hash_upper=pa.string(),
    rows=pa.int64(),
    tombstones=pa.int64(),
    errors=pa.int64(),
    bytes=pa.int64(),
)
"""One row per live slice; a file has two slices if a compaction took its middle. ``rows`` to
``bytes`` count the complete file. Hash bounds are hexadecimal; the upper bound is exclusive."""

HISTORY = _schema(
    **_VERSION,
    files=pa.int64(),
    bytes=pa.int64(),
    ranges_taken=pa.int64(),
    restored=pa.int64(),
    since=pa.int64(),
    fence=pa.int64(),
    **_TABLE,
)
"""One row per version: written, removed and restored data, and the table state after it."""

CONSUMERS = _schema(
    consumer=pa.string(),
    version=pa.int64(),
    versions_behind=pa.int64(),
    renewed=_TIME,
    lapses=_TIME,
    is_live=pa.bool_(),
)
"""One row per lease."""

INDEXES = _schema(
    column=pa.string(),
    path=pa.string(),
    shows_version=pa.int64(),
    versions_behind=pa.int64(),
    entries=pa.int64(),
    runs=pa.int64(),
    files=pa.int64(),
    bytes=pa.int64(),
)
"""One row per ``indexBy`` column: the table version that its index covers (null: the index is
unusable and must be built), and its size (null: there is no index)."""

PRESSURE = _schema(
    consumer=pa.string(),
    backlog_epochs=pa.int64(),
    backlog_bytes=pa.int64(),
    epochs_max=pa.int64(),
    bytes_max=pa.int64(),
    rung=pa.int64(),
    pressure=pa.float64(),
    refuses=pa.bool_(),
    retry_after_ms=pa.int64(),
    reported=_TIME,
    expires=_TIME,
)
"""One row per live consumer: its lag against the table's caps (null: no cap), and its own report
(null: no report, or an expired one)."""


def versions(table: Table) -> Iterator[tuple[Commit, Manifest]]:
    """Yield the commits from ``since`` on, each with the table state after it."""

    def oldest() -> tuple[LogSnapshot, Commit, Manifest]:
        look = table.log.refresh()
        since = look.head().since
        return look, look.commit(since), look.at(since)

    look, commit, manifest = retry_after_expiry(oldest, table.store.url)
    yield commit, manifest
    for commit in look.commits(manifest.version + 1, look.head().upper):
        manifest = apply(manifest, commit)
        yield commit, manifest


def _epochs(table: Table) -> Iterator[Row]:
    for commit, manifest in versions(table):
        if commit.is_epoch:
            counters = Counters.from_json(commit.counters)
            derived = {name: getattr(counters, name) for name in _DERIVED}
            yield {
                **_commit_fields(commit),
                **asdict(counters),
                **derived,
                **_size_fields(commit),
                **_table_fields(manifest),
            }


def _history(table: Table) -> Iterator[Row]:
    for commit, manifest in versions(table):
        frontiers = {"since": manifest.since, "fence": manifest.fence}
        taken = {"ranges_taken": len(commit.taken), "restored": commit.restored}
        yield {
            **_commit_fields(commit),
            **_size_fields(commit),
            **taken,
            **frontiers,
            **_table_fields(manifest),
        }


def _commit_fields(commit: Commit) -> Row:
    return {
        "version": commit.version,
        "kind": commit.kind.value,
        "timestamp": commit.timestamp_ms * 1000,
        "transactions": [
            (transaction.writer, transaction.number) for transaction in commit.transactions
        ],
    }


def _size_fields(commit: Commit) -> Row:
    # A restore reuses files that older versions have written.
    files = [] if commit.restored is not None else [slice_.file for slice_ in commit.slices()]
    return {"files": len(files), "bytes": sum(file.bytes for file in files)}


def _table_fields(manifest: Manifest) -> Row:
    return {
        "live_rows": manifest.live_rows,
        "runs": manifest.run_count,
        "table_files": len({slice_.file.path for slice_ in manifest.slices}),
        "table_bytes": manifest.bytes,
    }


def _files(table: Table) -> Iterator[Row]:
    for slice_ in table.log.head().slices:
        live = slice_.live.to_json()
        yield {
            "path": slice_.file.path,
            "epoch_lower": slice_.epochs.lower,
            "epoch_upper": slice_.epochs.upper,
            "index": slice_.index,
            "hash_lower": live[0],
            "hash_upper": live[1],
            "rows": slice_.file.rows,
            "tombstones": slice_.file.tombstones,
            "errors": slice_.file.errors,
            "bytes": slice_.file.bytes,
        }


MIRROR = _schema(
    place=pa.string(),
    shows_version=pa.int64(),
    versions_behind=pa.int64(),
    ms_behind=pa.int64(),
    delta_version=pa.int64(),
    twins=pa.int64(),
    rows=pa.int64(),
    dead_rows=pa.int64(),
    bytes=pa.int64(),
    vector_bytes=pa.int64(),
    log_bytes=pa.int64(),
    retention_ms=pa.int64(),
    has_feed=pa.bool_(),
    is_guarded=pa.bool_(),
    failures=pa.int64(),
    changed_by=pa.string(),
)
"""One row if the table has a mirror at the location in its properties: its lag and its content
(`delta.follow`). ``changed_by`` names external changes; the mirror is no copy then."""


def _consumers(table: Table) -> Iterator[Row]:
    head, now_ms = table.log.head(), table.log.now_ms()
    for lease in table.consumers():
        yield {
            "consumer": lease.consumer,
            "version": lease.version,
            "versions_behind": head.version - lease.version,
            "renewed": lease.renewed_ms * 1000,
            "lapses": lease.lapses_ms * 1000,
            "is_live": lease.is_live(now_ms),
        }


def _pressure(table: Table) -> Iterator[Row]:
    head, now_ms = table.log.head(), table.log.now_ms()
    caps = Caps.of(head.properties)
    # As for the caps: an unreadable lease only logs a warning; the others are shown.
    leases = {e.consumer: e for e in readable_leases(table.store) if e.is_live(now_ms)}
    report_by_consumer = {report.consumer: report for report in table.pressure()}
    for consumer in sorted({*leases, *report_by_consumer}):
        lease, report = leases.get(consumer), report_by_consumer.get(consumer)
        backlog = lease and BacklogCounter().count(lease, table.log, head, Caps())
        yield {
            "consumer": consumer,
            "backlog_epochs": backlog and backlog.epochs,
            "backlog_bytes": backlog and backlog.bytes,
            "epochs_max": caps.epochs,
            "bytes_max": caps.bytes,
            "rung": report and report.rung,
            "pressure": report and report.pressure,
            "refuses": report and report.refuses,
            "retry_after_ms": report and report.retry_after_ms,
            "reported": report and report.reported_ms * 1000,
            "expires": report and (report.reported_ms + report.ttl_ms) * 1000,
        }


def _indexes(table: Table) -> Iterator[Row]:
    head = table.log.head()
    for index in table.indexes():
        index_head = index.log.try_head()
        usable = None if index_head is None else index.usable(index_head)
        state = {} if index_head is None else _table_fields(index_head)
        yield {
            "column": index.column,
            "path": index.folder,
            "shows_version": usable and usable.version,
            "versions_behind": usable and head.version - usable.version,
            "entries": state.get("live_rows"),
            "runs": state.get("runs"),
            "files": state.get("table_files"),
            "bytes": state.get("table_bytes"),
        }


def _mirror(table: Table) -> Iterator[Row]:
    # Imported lazily, so that reading other metadata does not load the mirror.
    facts = import_module("spark_upsert.delta.follow").status_of_mirror(table)
    if facts is not None:
        row = asdict(facts)
        yield {"shows_version": row.pop("shown"), **row}


@dataclass(frozen=True, slots=True)
class MetadataView:
    """Metadata table: its columns and its row source."""

    schema: pa.Schema
    rows: Callable[[Table], Iterator[Row]]

    def read(self, table: Table) -> Iterator[pa.RecordBatch]:
        """Yield a table's metadata rows in batches with bounded row count."""
        rows = self.rows(table)
        while chunk := list(islice(rows, _BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(chunk, schema=self.schema)


VIEWS: Mapping[Metadata, MetadataView] = {
    Metadata.EPOCHS: MetadataView(EPOCHS, _epochs),
    Metadata.FILES: MetadataView(FILES, _files),
    Metadata.HISTORY: MetadataView(HISTORY, _history),
    Metadata.CONSUMERS: MetadataView(CONSUMERS, _consumers),
    Metadata.PRESSURE: MetadataView(PRESSURE, _pressure),
    Metadata.INDEXES: MetadataView(INDEXES, _indexes),
    Metadata.MIRROR: MetadataView(MIRROR, _mirror),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Key figures for a table. Write figures cover the versions from ``since`` on."""

    version: int
    since: int
    fence: int
    timestamp_ms: int
    live_rows: int
    runs: int
    files: int
    bytes: int
    epochs: int
    rows_in: int
    bytes_appended: int
    bytes_merged: int
    consumers: int

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte of new data; None before the first write."""
        if not self.bytes_appended:
            return None
        return (self.bytes_appended + self.bytes_merged) / self.bytes_appended


def summary(table: Table) -> Summary:
    """Return a table's key figures."""
    epochs = rows_in = appended = merged = 0
    head = table.log.head()
    for commit in table.log.commits(head.first_changes, head.upper):
        size = _size_fields(commit)["bytes"]
        if commit.is_epoch:
            epochs += 1
            rows_in += Counters.from_json(commit.counters).rows
            appended += size
        else:
            merged += size
    state = _table_fields(head)
    return Summary(
        version=head.version,
        since=head.since,
        fence=head.fence,
        timestamp_ms=head.timestamp_ms,
        live_rows=head.live_rows,
        runs=state["runs"],
        files=state["table_files"],
        bytes=state["table_bytes"],
        epochs=epochs,
        rows_in=rows_in,
        bytes_appended=appended,
        bytes_merged=merged,
        consumers=len(table.consumers()),
    )
