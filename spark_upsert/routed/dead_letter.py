"""Dead-letter rows: the rows for a failing table, in ``ROOT/_parked`` (docs/adr/0044).

A batch's rows for a table are stored all or none, and later rows follow them, so that `replay`
applies them in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, TypeGuard

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataError,
    DataLossError,
    EarlierFormatError,
    NewerFormatError,
    OptionError,
    OtherTableError,
    SchemaError,
    TableExistsError,
    UpsertFlowError,
    as_flag,
    setting,
)
from spark_upsert.options.routed import option_of_table
from spark_upsert.routed.router import Route
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.manifest import Draft, Manifest, Transaction
from spark_upsert.table.retention.lag import BacklogCounter
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.guards import Admission
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet

TRIES_MAX = 100
"""Maximum commit attempts; each failed attempt means another writer succeeded."""


def commit_if_unchanged(
    table: Table, stage_runs: Callable[[], Sequence[StagedRuns]]
) -> Sequence[StagedRuns]:
    """Commit the runs returned by `stage_runs` as the version right after the one it has seen.

    Calls `stage_runs` again after each lost race. Returns the committed runs; empty if there are none.
    """
    for _ in range(TRIES_MAX):
        head = table.log.head()
        staged = stage_runs()
        if not staged:
            return ()
        with table.log.cached_snapshot() as look:
            base = look.at(min(runs.base_version for runs in staged))
        write_set = WriteSet(base=Snapshot(table.store, base), staged=tuple(staged))
        guard = _VersionAdmission(table, head)
        try:
            table.commit(write_set, admission=guard)
        except ContentionError:
            if not guard.has_moved:
                raise
            continue
        return staged
    raise ContentionError(
        f"others changed the table at '{table.store.url}' {TRIES_MAX} times between a look and a "
        "commit.",
        hint="try again when fewer write.",
    )


class _VersionAdmission(Admission):
    """Admits a commit only directly after one expected version."""

    def __init__(self, table: Table, head: Manifest) -> None:
        super().__init__(table.log, table.store, BacklogCounter())
        self._expected = head.version_ref
        self.has_moved = False
        """Whether another version was committed in between."""

    def refusal(self, head: Manifest, draft: Draft | None = None) -> ContentionError | None:
        self.has_moved = head.version_ref != self._expected
        return ContentionError("another version came between.") if self.has_moved else None


FOLDER = "_parked"
"""Dead-letter folder below the root. No table folder begins with it."""

NAMELESS = ""
"""Folder value for rows without a table name."""

COLUMNS = pa.schema(
    [
        pa.field("folder", pa.string()),
        pa.field("query", pa.string()),
        pa.field("batch", pa.int64()),
        pa.field("task", pa.int64()),
        pa.field("chunk", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("values", pa.list_(pa.string())),
        pa.field("planned", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("error", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("options", pa.string()),
        pa.field("parked", pa.timestamp("us", "UTC")),
        pa.field("ipc", pa.binary()),
    ]
)

KEYS = ("folder", "query", "batch", "task", "chunk")

SCHEMA = TableSchema.of(COLUMNS, keys=list(KEYS), hash_prefix=1)

CHUNK_BYTES = 4 << 20
"""Target chunk size: large enough for few chunks, small compared with task memory."""

_METADATA_COLUMNS = [name for name in COLUMNS.names if name != "ipc"]

_REASON_CHARS = 2000

_HINT = "\n\nHint: "
"""Separates reason and hint in the column ``reason``."""

_PERMANENT_ERRORS = (
    SchemaError,
    OptionError,
    DataError,
    CorruptionError,
    NewerFormatError,
    EarlierFormatError,
    OtherTableError,
    TableExistsError,
    DataLossError,
)


_OUTAGES = (OSError, MemoryError)
"""Machine or storage errors, which no single table causes."""


def is_permanent_error(error: BaseException) -> TypeGuard[UpsertFlowError]:
    """Return whether an error is permanent for one table: no outage and no full table."""
    return isinstance(error, _PERMANENT_ERRORS)


def as_dead_letter_error(error: Exception) -> UpsertFlowError | None:
    """Return an error sending the table's rows to the dead-letter table; None stops the write.

    An unexpected exception is a bug triggered by this table's rows. It recurs on every retry and
    must not block other tables, so it is wrapped in a `DataError`.
    """
    if is_permanent_error(error):
        return error
    if isinstance(error, (UpsertFlowError, *_OUTAGES)):
        return None
    last = extract_tb(error.__traceback__)[-1]
    kind = f"{type(error).__name__} in {PurePath(last.filename).name}, line {last.lineno}"
    data_error = DataError(
        f"the rows cannot be written ({kind}: {error}).",
        hint="report it: that is a fault of upsertflow. Upgrade to a version without it, and run "
        "'upsertflow replay'.",
        told=f"the rows cannot be written ({kind}).",
    )
    data_error.__cause__ = error
    return data_error


class DeadLetterKind(Enum):
    """Content type of a dead-letter chunk."""

    ROWS = "rows"
    COMMANDS = "commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterMetadata:
    """Dead-letter metadata shared by all chunks for one table and batch."""

    route: Route
    transaction: Transaction
    """The table's uncommitted transaction."""
    planned: int
    """Group version when the batch was planned; orders the batches."""
    error: UpsertFlowError | None
    """None if the table already had dead-letter rows."""
    options: Mapping[str, str]
    """Write options for the rows (`RoutedOptions.given`)."""

    @property
    def folder(self) -> str:
        return self.route.folder or NAMELESS

    @property
    def reason(self) -> str:
        """Cause and remedy, without row values."""
        if self.error is None:
            return "rows before these are parked"
        hint = self.error.hint_as(as_flag)
        option = self.error.fields.get("option")
        if isinstance(self.error, OptionError) and option:
            option_name = option_of_table(str(option))
            hint += (
                f" For what is parked, give --set {option_name}=... with what holds, "
                f"or --unset {option_name}."
            )
        reason = self.error.message_without_values[:_REASON_CHARS]
        return f"{reason}{_HINT}{hint}" if hint else reason

    def to_row(self) -> dict[str, Any]:
        """Return the column values shared by all chunks."""
        error = self.error
        return {
            "folder": self.folder,
            "query": self.transaction.writer,
            "batch": self.transaction.number,
            "name": _escape_surrogates(self.route.name),
            "values": [value and _escape_surrogates(value) for value in self.route.values],
            "planned": self.planned,
            "error": "PARKED" if error is None else error.code,
            "reason": _escape_surrogates(self.reason),
            "options": json.dumps(dict(self.options), sort_keys=True),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRows:
    """Dead-letter rows for one table from one batch."""

    folder: str
    name: str
    values: tuple[str | None, ...]
    query: str
    batch: int
    planned: int
    rows: int
    error: str
    """Error code."""
    reason: str
    """Cause, without row values."""
    hint: str
    """Remedy, as options for `upsertflow replay`; empty if unknown."""
    options: Mapping[str, str]
    parked_ms: int
    pieces: tuple[tuple[int, int], ...]
    """Task and chunk numbers, in order."""

    @property
    def transaction(self) -> Transaction:
        """Transaction under which the rows are replayed."""
        return Transaction(writer=self.query, number=self.batch)


class DeadLetterTable:
    """The dead-letter table below a root.

    Parameters
    ----------
    root : Store
        The folder containing all tables.
    clock : callable, optional
        Returns seconds since 1970.
    """

    def __init__(self, root: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.table = Table(PrefixStore(root, FOLDER), clock=clock)

    def __repr__(self) -> str:
        return f"DeadLetterTable({self.root.url!r})"

    # -- reading -----------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return dead-letter row counts by folder; `NAMELESS` counts rows without a table name."""
        head = self.table.log.try_head()
        if head is None or not head.live_rows:
            return {}
        counts: dict[str, int] = {}
        for batch in Snapshot(self.table.store, head).read(["folder", "rows"]):
            for folder, rows in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                counts[folder] = counts.get(folder, 0) + rows
        return counts

    def list_batches(self, folder: str | None = None) -> list[DeadLetterRows]:
        """List dead-letter batches for one folder or all, sorted by folder and batch order."""
        if self.table.log.try_head() is None:
            return []
        snapshot = self.table.at()
        batches = (
            snapshot.read(_METADATA_COLUMNS)
            if folder is None
            else snapshot.having_prefix([pa.array([folder], pa.string())], _METADATA_COLUMNS)
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        rows.sort(key=lambda row: (row["folder"], *_batch_order(row), row["task"], row["chunk"]))
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["folder"], row["query"], row["batch"]), []).append(row)
        return [_combine_pieces(group) for group in groups.values()]

    def read(self, parked: DeadLetterRows) -> Iterator[tuple[DeadLetterKind, pa.RecordBatch]]:
        """Yield a batch's rows in task order; holds one chunk in memory at a time."""
        snapshot = self.table.at()
        for task, chunk in parked.pieces:
            values = (parked.folder, parked.query, parked.batch, task, chunk)
            key_columns = [
                pa.array([value], COLUMNS.field(name).type)
                for name, value in zip(KEYS, values, strict=True)
            ]
            for stored_rows in snapshot.having_prefix(key_columns, ["kind", "ipc"]):
                for kind, ipc in zip(*stored_rows.columns, strict=True):
                    with pa.ipc.open_stream(ipc.as_buffer()) as reader:
                        for batch in reader:
                            yield DeadLetterKind(kind.as_py()), batch

    # -- writing -----------------------------------------------------------------------

    def ensure(self) -> None:
        """Create the table if it does not exist."""
        self.table.ensure(SCHEMA, allow_non_empty_path=True)

    def stage(
        self,
        metadata: DeadLetterMetadata,
        task: int,
        batches: Iterable[pa.RecordBatch],
        *,
        kind: DeadLetterKind = DeadLetterKind.ROWS,
    ) -> StagedRuns:
        """Write a task's rows for one table durably, to be made visible by `commit`."""
        head = self.table.log.head()
        shared = metadata.to_row() | {"task": task, "kind": kind.value}
        shared["parked"] = self.table.log.now_ms() * 1000
        rows = (
            pa.RecordBatch.from_pylist(
                [shared | {"chunk": chunk, "rows": count, "ipc": ipc}], schema=COLUMNS
            )
            for chunk, (count, ipc) in enumerate(_iter_pieces(batches))
        )
        envelope = envelope_of_rows(head.schema, COLUMNS)
        return stage(Snapshot(self.table.store, head), map(envelope.commands, rows))

    def commit(self, staged: Mapping[str, Sequence[StagedRuns]], transaction: Transaction) -> None:
        """Make staged rows visible, except for folders already containing the batch.

        A retry may divide rows differently, so only the first attempt's chunks count: the new
        version must directly follow the checked one.
        """

        def due(folders: frozenset[str]) -> list[StagedRuns]:
            return [
                part for folder, parts in staged.items() if folder not in folders for part in parts
            ]

        def stage_runs() -> list[StagedRuns]:
            return due(frozenset(f for f in staged if self._has(f, transaction)))

        used = commit_if_unchanged(self.table, stage_runs)
        remaining = [
            piece
            for piece in due(frozenset())
            if all(piece is not used_piece for used_piece in used)
        ]
        if remaining:
            self.table.discard(remaining)
        self._compact_once()

    def _has(self, folder: str, transaction: Transaction) -> bool:
        values = (folder, transaction.writer, transaction.number)
        key_columns = [
            pa.array([value], COLUMNS.field(name).type)
            for name, value in zip(KEYS, values, strict=False)
        ]
        snapshot = Snapshot(self.table.store, self.table.log.cached_snapshot().head())
        return any(batch.num_rows for batch in snapshot.having_prefix(key_columns, ["rows"]))

    def remove(self, parked: Iterable[DeadLetterRows]) -> None:
        """Delete replayed or dropped batches."""
        rows = [
            dict(
                zip(KEYS, (batch_ref.folder, batch_ref.query, batch_ref.batch, *piece), strict=True)
            )
            | {"gone": True}
            for batch_ref in parked
            for piece in batch_ref.pieces
        ]
        if rows:
            columns = COLUMNS.append(pa.field("gone", pa.bool_()))
            self.table.upsert(pa.Table.from_pylist(rows, schema=columns), deletes="gone")
            self._compact_once()

    def _compact_once(self) -> None:
        table = self.table
        jobs = table.compaction_jobs(look=table.log.cached_snapshot())[:1]
        table.commit_compactions([compact_runs(table.store, table.log.head(), job) for job in jobs])


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which no Arrow string column can hold."""
    return text.encode(errors="backslashreplace").decode()


def _batch_order(row: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return the sort key for a table's batches."""
    return row["planned"], row["query"], row["batch"]


def _combine_pieces(group: Sequence[Mapping[str, Any]]) -> DeadLetterRows:
    first = group[0]
    # What failed says more than what was parked beside it.
    error_row = next((row for row in group if row["error"] != "PARKED"), first)
    reason, _, hint = error_row["reason"].partition(_HINT)
    return DeadLetterRows(
        folder=first["folder"],
        name=first["name"],
        values=tuple(first["values"] or ()),
        query=first["query"],
        batch=first["batch"],
        planned=first["planned"],
        rows=sum(row["rows"] for row in group),
        error=error_row["error"],
        reason=reason,
        hint=hint,
        options=json.loads(first["options"]),
        parked_ms=round(first["parked"].timestamp() * 1000),
        pieces=tuple((row["task"], row["chunk"]) for row in group),
    )


def _iter_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield row count and Arrow stream for chunks with about `CHUNK_BYTES` each."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
        for start in range(0, max(1, batch.num_rows), rows):  # None may be a truncate alone.
            waiting.append(batch.slice(start, rows))
            if sum(piece.nbytes for piece in waiting) >= CHUNK_BYTES:
                yield _stream(waiting)
                waiting = []
    if waiting:
        yield _stream(waiting)


def _stream(batches: Sequence[pa.RecordBatch]) -> tuple[int, bytes]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sum(batch.num_rows for batch in batches), sink.getvalue().to_pybytes()


def earlier_rows_error(name: str, root: str) -> DataError:
    """Return the error for rows blocked by earlier dead-letter rows."""
    return DataError(
        "rows of earlier batches are parked, and these must not come before them.",
        hint=f"apply them by 'upsertflow replay {root} {name}', or forget them with --drop; with "
        f"{setting('onTableError', 'park')} a stream parks what comes behind them.",
    )
