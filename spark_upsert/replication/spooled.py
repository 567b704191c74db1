"""A spool of batches in a folder or bucket (`SpoolDestination`), and positions in it (`SourceOffset`).

A batch consists of chunks: each has rows of one table as an Arrow IPC stream. The files with the
chunks are written first, then the record that lists them (`SpooledBatch`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_upsert.core.lsn import format_lsn, parse_lsn
from spark_upsert.errors import CorruptionError
from spark_upsert.postgres.messages import CHANGE_COLUMNS, COMMIT_LSN, EMPTY, OP, SEQUENCE
from spark_upsert.replication.rows import iter_rows
from spark_upsert.replication.state import FollowerState
from spark_upsert.replication.target import PlannedBatch
from spark_upsert.store import Store
from spark_upsert.store.protocol import new_token
from spark_upsert.store.records import MALFORMED, checked_record, read_record, text, whole

CHUNK_BYTES = 4 << 20
"""Rows of a chunk; Spark receives it as one value."""

FILE_BYTES = 32 << 20
"""A file ends after the chunk that reaches this size: a task reads complete files."""

BATCHES_AHEAD = 3
"""Batches of maximum size in the spool; more changes wait in the server's log."""

RELEASE_BYTES = 16 << 20
"""Log of others that an idle stream lets the server remove: it removes files of this size."""

_BATCHES, _ROWS = "batches", "rows"
_VERSION = 1
_KEYS = b"keys"
"""In the schema of a chunk: the table's key columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """A position of a stream: all batches up to one."""

    system: str
    """The database cluster's identifier."""
    database: str
    slot: str
    lsn: int
    """All transactions whose commit record ends here or before."""
    number: int = -1
    """The batch; -1 before the first."""
    copy: int = -1
    """The last batch of copies; -1 before the first."""
    tables: str = ""
    """`FollowerState.digest` after the batch."""

    @classmethod
    def initial(cls, state: FollowerState) -> SourceOffset:
        """Return the offset before the first batch."""
        return cls(system=state.system, database=state.database, slot=state.slot, lsn=state.start)

    def is_of(self, state: FollowerState) -> bool:
        """Return whether it is a position in this source."""
        own = (self.system, self.database, self.slot)
        return own == (state.system, state.database, state.slot)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. Spark compares its text."""
        return {
            "copy": self.copy,
            "database": self.database,
            "lsn": format_lsn(self.lsn),
            "number": self.number,
            "slot": self.slot,
            "system": self.system,
            "tables": self.tables,
            "version": _VERSION,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SourceOffset:
        """Convert the JSON form."""
        try:
            if record["version"] != _VERSION:
                raise ValueError(f"version {record['version']!r} instead of {_VERSION}")
            return cls(
                system=text(record["system"]),
                database=text(record["database"]),
                slot=text(record["slot"]),
                lsn=parse_lsn(record["lsn"]),
                number=whole(record["number"], least=-1),
                copy=whole(record["copy"], least=-1),
                tables=text(record["tables"]),
            )
        except MALFORMED as error:
            raise CorruptionError(
                f"the checkpoint has {str(dict(record))[:200]}, which is no position in the log of "
                f"a PostgreSQL database: {error}.",
                hint="use the checkpoint of this query, or start with a new checkpointLocation.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one table, as bytes in a file."""

    schema: str
    table: str
    rows: int
    file: str
    first: int = 0
    length: int = 0

    def read(self, store: Store) -> pa.Buffer:
        """Return the bytes."""
        return store.map(self.file).slice(self.first, self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledBatch:
    """A complete batch in the spool."""

    end: SourceOffset
    previous: int
    """The number of the batch before."""
    committed_us: int
    """When its last transaction was committed, in microseconds since 1970; 0 without one."""
    is_copy: bool
    is_cut: bool
    """Whether its last transaction asks for the end of a batch."""
    is_consistent: bool
    chunks: tuple[Chunk, ...]

    @property
    def path(self) -> str:
        """The record."""
        return f"{_BATCHES}/{self.end.number:020d}.json"

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(chunk.rows for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        files = sorted({chunk.file for chunk in self.chunks})
        return {
            "end": self.end.to_json(),
            "previous": self.previous,
            "committed_us": self.committed_us,
            "copy": self.is_copy,
            "cut": self.is_cut,
            "consistent": self.is_consistent,
            "files": files,
            "chunks": [
                [c.schema, c.table, c.rows, files.index(c.file), c.first, c.length]
                for c in self.chunks
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SpooledBatch:
        """Convert the JSON form."""
        files = [text(file) for file in record["files"]]
        return cls(
            end=SourceOffset.from_json(record["end"]),
            previous=whole(record["previous"], least=-1),
            committed_us=whole(record["committed_us"]),
            is_copy=bool(record["copy"]),
            is_cut=bool(record["cut"]),
            is_consistent=bool(record["consistent"]),
            chunks=tuple(
                Chunk(
                    schema=text(schema),
                    table=text(table),
                    rows=whole(rows),
                    file=files[whole(file)],
                    first=whole(first),
                    length=whole(length),
                )
                for schema, table, rows, file, first, length in record["chunks"]
            ),
        )


@dataclass
class SpoolDestination:
    """Batches in a spool (`Destination`), written by one thread and read by another.

    Parameters
    ----------
    store : Store
    rows_max : int
        Rows of a batch.
    """

    store: Store
    rows_max: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified about each new batch and each change of `taken`."""
    is_unlimited: bool = False
    """Whether batches never wait for room."""
    _batches: dict[int, SpooledBatch] = field(default_factory=dict)
    """By the number of the batch before."""
    _taken: SourceOffset | None = None
    """The batches that the tables have."""
    _newest: SourceOffset | None = None
    _confirmed: int = 0

    # -- batches ------------------------------------------------------------------------

    def load(self) -> None:
        """Read the records of batches with all their files."""
        files = {info.path for info in self.store.list(_ROWS)}
        for info in self.store.list(_BATCHES):
            batch = read_record(self.store, info.path, SpooledBatch.from_json)
            if batch is not None and all(chunk.file in files for chunk in batch.chunks):
                self._batches[batch.previous] = batch

    def after(self, number: int) -> Iterator[SpooledBatch]:
        """Yield the batches after one, in order, without a gap."""
        while (batch := self._batches.get(number)) is not None:
            yield batch
            number = batch.end.number

    @property
    def newest(self) -> SourceOffset | None:
        """The end of the newest batch."""
        return self._newest

    def begin(self, taken: SourceOffset) -> None:
        """Take a position up to which the tables have all batches."""
        self._taken = taken
        self._newest = next((b.end for b in reversed([*self.after(taken.number)])), taken)
        self._confirmed = taken.lsn

    def take(self, end: SourceOffset) -> None:
        """Note that the tables have all batches up to a position."""
        with self.changed:
            self._taken = end
            self.changed.notify_all()

    def remove(self, end: SourceOffset) -> None:
        """Remove the batches up to a position, which is then confirmed to the server."""
        self.take(end)
        self._confirmed = max(self._confirmed, end.lsn)
        for info in [*self.store.list(_ROWS)]:
            if int(info.path.removeprefix(f"{_ROWS}/").split("-")[0]) <= end.number:
                self.store.delete(info.path)
        with self.changed:
            done = [n for n, batch in self._batches.items() if batch.end.number <= end.number]
            removed = [self._batches.pop(number) for number in done]
        for batch in removed:
            self.store.delete(batch.path)

    def clear(self) -> None:
        """Remove all batches."""
        for folder in (_BATCHES, _ROWS):
            for info in [*self.store.list(folder)]:
                self.store.delete(info.path)
        self._batches.clear()

    # -- the destination ----------------------------------------------------------------

    def prepare(self) -> None:
        """Return: the first batch makes the folders."""

    def has(self, state: FollowerState) -> bool:
        return self._newest is not None and state.number <= self._newest.number

    def has_table(self, state: FollowerState, target: tuple[str, str]) -> bool:
        return False

    def write(self, state: FollowerState, batch: PlannedBatch) -> None:
        """Write the files, then the record, then offer the batch."""
        before = self._newest
        assert before is not None
        spooled = SpooledBatch(
            end=SourceOffset(
                system=state.system,
                database=state.database,
                slot=state.slot,
                lsn=state.upper,
                number=state.number,
                copy=state.number if batch.is_copy else before.copy,
                tables=state.digest if batch.is_consistent else "",
            ),
            previous=before.number,
            committed_us=batch.end.committed_us,
            is_copy=batch.is_copy,
            is_cut=batch.end.is_cut,
            is_consistent=batch.is_consistent,
            chunks=self._write_files(state.number, _encode(state, batch)),
        )
        record = spooled.to_json()
        checked_record(spooled.path, spooled, record, SpooledBatch.from_json).put(self.store)
        with self.changed:
            self._batches[spooled.previous] = spooled
            self._newest = spooled.end
            self.changed.notify_all()

    def _write_files(
        self, number: int, encoded: Iterator[tuple[Chunk, pa.Buffer]]
    ) -> tuple[Chunk, ...]:
        chunks: list[Chunk] = []
        following = next(encoded, None)
        while following is not None:
            file = f"{_ROWS}/{number:020d}-{new_token()}.arrow"
            size = 0
            with self.store.create(file) as sink:
                while following is not None and size < FILE_BYTES:
                    chunk, data = following
                    sink.write(data)
                    chunks.append(replace(chunk, file=file, first=size, length=data.size))
                    size += data.size
                    following = next(encoded, None)
        return tuple(chunks)

    def confirmable(self, state: FollowerState, position: int) -> int:
        return self._confirmed

    def releases(self, state: FollowerState, log_bytes: int) -> bool:
        is_done = self._taken is not None and state.number <= self._taken.number
        return is_done and log_bytes >= RELEASE_BYTES

    def wait_for_room(self) -> None:
        with self.changed:
            self.changed.wait_for(self._has_room)

    def _has_room(self) -> bool:
        taken = -1 if self._taken is None else self._taken.number
        waiting = sum(batch.rows for batch in self.after(taken))
        return self.is_unlimited or waiting < BATCHES_AHEAD * self.rows_max


def _encode(state: FollowerState, batch: PlannedBatch) -> Iterator[tuple[Chunk, pa.Buffer]]:
    """Yield chunks and their bytes. Each chunk of a copy begins with a truncate."""
    for (schema, name), target in batch.targets.items():
        for block in _blocks(iter_rows(batch.rows, target)):
            rows = block
            if batch.is_copy:
                rows = pa.concat_tables([_truncate(block.schema, state.copy_place), block])
            if rows.num_rows:
                chunk = Chunk(schema=schema, table=name, rows=rows.num_rows, file="")
                yield chunk, encode_rows(rows, target.keys)


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches in larger tables, each with one schema."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and (size >= CHUNK_BYTES or batch.schema != held[0].schema):
            yield pa.Table.from_batches(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _truncate(schema: pa.Schema, copy_place: tuple[int, int]) -> pa.Table:
    """Return a row that empties the table, just before the copied rows."""
    lsn, sequence = copy_place
    own = {OP: EMPTY, COMMIT_LSN: lsn, SEQUENCE: sequence - 1}
    return pa.Table.from_pylist([{name: own.get(name) for name in CHANGE_COLUMNS}], schema)


def encode_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Buffer:
    """Return a table's changes and key columns as an Arrow IPC stream."""
    rows = rows.combine_chunks().replace_schema_metadata({_KEYS: json.dumps(list(keys)).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def decode_rows(data: pa.Buffer) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the changes and key columns from `encode_rows`."""
    with pa.ipc.open_stream(data) as reader:
        rows = reader.read_all()
    keys = tuple(json.loads((rows.schema.metadata or {})[_KEYS]))
    return rows.replace_schema_metadata(None), keys
