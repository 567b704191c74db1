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
from spark_upsert.store.open import StoreBelow
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
"""Each try that fails means that another writer succeeded."""


def commit_behind(table: Table, chosen: Callable[[], Sequence[StagedRuns]]) -> Sequence[StagedRuns]:
    """Commit what is chosen upon the newest version right behind that version."""
    for _ in range(TRIES_MAX):
        head = table.log.head()
        staged = chosen()
        if not staged:
            return ()
        with table.log.last_look() as look:
            base = look.at(min(routed_part.base_version for routed_part in staged))
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
    """Lets an epoch in behind one version alone."""

    def __init__(self, table: Table, head: Manifest) -> None:
        super().__init__(table.log, table.store, BacklogCounter())
        self._expected = head.place
        self.has_moved = False
        """Whether another version came between."""

    def refusal(self, head: Manifest, draft: Draft | None = None) -> ContentionError | None:
        self.has_moved = head.place != self._expected
        return ContentionError("another version came between.") if self.has_moved else None


FOLDER = "_parked"
"""The folder of parked rows below the root. No table's folder begins like it."""

NAMELESS = ""
"""The stand-in for the folder of rows that have none."""

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
"""Bytes of one piece: enough that there are few, and small against the memory of a task."""

_ABOUT = [name for name in COLUMNS.names if name != "ipc"]

_REASON_CHARS = 2000

_HINT = "\n\nHint: "
"""Between a reason and its hint in the column ``reason``."""

_PARKABLE = (
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
"""Errors of the machine or the storage, which no one table causes."""


def is_parkable(error: BaseException) -> TypeGuard[UpsertFlowError]:
    """Return whether a table has an error that stays: no outage, and no lack of room."""
    return isinstance(error, _PARKABLE)


def as_parkable(error: Exception) -> UpsertFlowError | None:
    """Return the error of a table for which its rows are parked; None if it stops the write.

    What none of us raised on purpose is a fault of ours in what the rows of this one table lead to.
    It comes again however often the batch is repeated, and must not hold up the others.
    """
    if is_parkable(error):
        return error
    if isinstance(error, (UpsertFlowError, *_OUTAGES)):
        return None
    last = extract_tb(error.__traceback__)[-1]
    kind = f"{type(error).__name__} in {PurePath(last.filename).name}, line {last.lineno}"
    data_error = DataError(
        f"the rows cannot be written ({kind}: {error}).",
        hint="report it: that is a fault of upsertflow. Upgrade to a version without it, and run "
        "'upsertflow unpark'.",
        told=f"the rows cannot be written ({kind}).",
    )
    data_error.__cause__ = error
    return data_error


class ParkedKind(Enum):
    """The kind of a piece's contents."""

    ROWS = "rows"
    COMMANDS = "commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """The description of all that is parked for one table in one batch."""

    route: Route
    transaction: Transaction
    """The transaction that the table would have got."""
    planned: int
    """The version of the group when the batch was planned: batches come in the order of it."""
    error: UpsertFlowError | None
    """None where the table had parked rows already."""
    options: Mapping[str, str]
    """How the rows are written (`RoutedOptions.given`)."""

    @property
    def folder(self) -> str:
        return self.route.folder or NAMELESS

    @property
    def reason(self) -> str:
        """Why, and what to do about it, without values of rows."""
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
        reason = self.error.told[:_REASON_CHARS]
        return f"{reason}{_HINT}{hint}" if hint else reason

    def to_row(self) -> dict[str, Any]:
        """Return what all pieces share."""
        error = self.error
        return {
            "folder": self.folder,
            "query": self.transaction.writer,
            "batch": self.transaction.number,
            "name": _writable(self.route.name),
            "values": [value and _writable(value) for value in self.route.values],
            "planned": self.planned,
            "error": "PARKED" if error is None else error.code,
            "reason": _writable(self.reason),
            "options": json.dumps(dict(self.options), sort_keys=True),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRows:
    """Rows that are parked for one table of one batch."""

    folder: str
    name: str
    values: tuple[str | None, ...]
    query: str
    batch: int
    planned: int
    rows: int
    error: str
    """The code of the error."""
    reason: str
    """Why, without values of rows."""
    hint: str
    """The remedy, as options of `upsertflow unpark`; empty where it is not known."""
    options: Mapping[str, str]
    parked_ms: int
    pieces: tuple[tuple[int, int], ...]
    """Tasks and chunks, in their order."""

    @property
    def transaction(self) -> Transaction:
        """The transaction that the table gets with the rows."""
        return Transaction(writer=self.query, number=self.batch)


class ParkedTable:
    """The table of what is parked below a root.

    Parameters
    ----------
    root : Store
        The folder that all its tables lie below.
    clock : callable, optional
        In seconds since 1970.
    """

    def __init__(self, root: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.table = Table(StoreBelow(root, FOLDER), clock=clock)

    def __repr__(self) -> str:
        return f"ParkedTable({self.root.url!r})"

    # -- looking -----------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how many rows are parked, by folder; `NAMELESS` has those without a table."""
        head = self.table.log.try_head()
        if head is None or not head.live_rows:
            return {}
        counts: dict[str, int] = {}
        for batch in Snapshot(self.table.store, head).read(["folder", "rows"]):
            for folder, rows in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                counts[folder] = counts.get(folder, 0) + rows
        return counts

    def parked(self, folder: str | None = None) -> list[DeadLetterRows]:
        """Return what is parked, for one folder or for all: by folder, in the order of batches."""
        if self.table.log.try_head() is None:
            return []
        snapshot = self.table.at()
        batches = (
            snapshot.read(_ABOUT)
            if folder is None
            else snapshot.having_prefix([pa.array([folder], pa.string())], _ABOUT)
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        rows.sort(key=lambda row: (row["folder"], *_order(row), row["task"], row["chunk"]))
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["folder"], row["query"], row["batch"]), []).append(row)
        return [_parked(group) for group in groups.values()]

    def read(self, parked: DeadLetterRows) -> Iterator[tuple[ParkedKind, pa.RecordBatch]]:
        """Yield the rows of a batch in the order of its tasks; in memory is one piece at a time."""
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
                            yield ParkedKind(kind.as_py()), batch

    # -- parking -----------------------------------------------------------------------

    def ensure(self) -> None:
        """Make the table, if there is none."""
        self.table.ensure(SCHEMA, allow_non_empty_path=True)

    def stage(
        self,
        parking: Parking,
        task: int,
        batches: Iterable[pa.RecordBatch],
        *,
        kind: ParkedKind = ParkedKind.ROWS,
    ) -> StagedRuns:
        """Make what a task has for a table durable, to be parked by `commit`."""
        head = self.table.log.head()
        shared = parking.to_row() | {"task": task, "kind": kind.value}
        shared["parked"] = self.table.log.now_ms() * 1000
        rows = (
            pa.RecordBatch.from_pylist(
                [shared | {"chunk": chunk, "rows": count, "ipc": ipc}], schema=COLUMNS
            )
            for chunk, (count, ipc) in enumerate(_pieces(batches))
        )
        envelope = envelope_of_rows(head.schema, COLUMNS)
        return stage(Snapshot(self.table.store, head), map(envelope.commands, rows))

    def commit(self, staged: Mapping[str, Sequence[StagedRuns]], transaction: Transaction) -> None:
        """Park the staged rows of each folder, unless the batch is parked there already.

        A replay may divide rows otherwise, so only the first attempt's pieces count: the version
        must directly follow the one that was checked.
        """

        def due(folders: frozenset[str]) -> list[StagedRuns]:
            return [
                part for folder, parts in staged.items() if folder not in folders for part in parts
            ]

        def chosen() -> list[StagedRuns]:
            return due(frozenset(f for f in staged if self._has(f, transaction)))

        used = commit_behind(self.table, chosen)
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
        snapshot = Snapshot(self.table.store, self.table.log.last_look().head())
        return any(batch.num_rows for batch in snapshot.having_prefix(key_columns, ["rows"]))

    def remove(self, parked: Iterable[DeadLetterRows]) -> None:
        """Forget what is applied, or not wanted."""
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
        jobs = table.compaction_jobs(look=table.log.last_look())[:1]
        table.commit_compactions([compact_runs(table.store, table.log.head(), job) for job in jobs])


def _writable(text: str) -> str:
    """Return a text without halves of characters, which no column can hold."""
    return text.encode(errors="backslashreplace").decode()


def _order(row: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return the place of a batch among those of its table."""
    return row["planned"], row["query"], row["batch"]


def _parked(group: Sequence[Mapping[str, Any]]) -> DeadLetterRows:
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


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Yield batches as streams of Arrow, of about `CHUNK_BYTES` each, with the number of rows."""
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


def parked_before(name: str, root: str) -> DataError:
    """Return the error of rows that must not be written before others, which are parked."""
    return DataError(
        "rows of earlier batches are parked, and these must not come before them.",
        hint=f"apply them by 'upsertflow unpark {root} {name}', or forget them with --drop; with "
        f"{setting('onTableError', 'park')} a stream parks what comes behind them.",
    )
