"""Memory pressure of a merge (`MemoryPressure`), and inputs kept in memory or spilled to disk.

Readers pause above 0.80 of the limit and continue below 0.70, except for an input that the merge
waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import pyarrow as pa

from spark_upsert.errors import MemoryLimitError
from spark_upsert.store.local import translated
from spark_upsert.store.spill import SpillFolder

PAUSE_PERCENT = 80
RESUME_PERCENT = 70

MEMORY_BYTES = 512 << 20
"""Default limit."""


class Relief(Enum):
    """Allowed actions when memory is short."""

    PAUSE = "pause"
    SPILL = "spill"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressure:
    """Memory limit and pause state.

    Parameters
    ----------
    limit_bytes : int
        Maximum memory.
    relief : Relief
        Allowed actions.
    is_paused : bool
        Whether readers are paused.
    """

    limit_bytes: int = MEMORY_BYTES
    relief: Relief = Relief.BOTH
    is_paused: bool = False

    def __post_init__(self) -> None:
        if self.limit_bytes < 1:
            raise ValueError(f"limit_bytes is at least 1, found {self.limit_bytes}")

    def after(self, used_bytes: int) -> MemoryPressure:
        """Return the pressure after memory use has changed."""
        if self.relief is Relief.SPILL:
            return self
        if used_bytes * 100 > self.limit_bytes * PAUSE_PERCENT:
            is_paused = True
        elif used_bytes * 100 < self.limit_bytes * RESUME_PERCENT:
            is_paused = False
        else:
            return self
        return self if is_paused is self.is_paused else replace(self, is_paused=is_paused)

    def may_read(self, *, is_awaited: bool) -> bool:
        """Return whether an input may be read.

        Parameters
        ----------
        is_awaited : bool
            Whether the merge waits for this input and can take nothing else.
        """
        return is_awaited or not self.is_paused

    def spill_bytes(self, used_bytes: int) -> int:
        """Return how many bytes to spill, down to 70 % of the limit; 0 up to 80 %."""
        if self.relief is Relief.PAUSE or used_bytes * 100 <= self.limit_bytes * PAUSE_PERCENT:
            return 0
        return used_bytes - self.limit_bytes * RESUME_PERCENT // 100

    def is_exceeded(self, used_bytes: int) -> bool:
        """Return whether memory use exceeds the limit."""
        return used_bytes > self.limit_bytes


class Holding(IntEnum):
    """Types of memory holders, in spill order."""

    NODE_BUFFER = 0
    GRACE_HASH = 10
    RESHAPE = 15
    SORT = 20
    SORT_MERGE_JOIN = 25
    HASH_AGGREGATE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Part of a merge that holds spillable memory."""

    name: str
    holding: Holding = Holding.NODE_BUFFER
    bytes: int


def choose_spills(holders: Iterable[Holder], bytes_needed: int) -> tuple[Holder, ...]:
    """Return the holders that must spill to free ``bytes_needed``.

    The type cheapest to read back goes first, then the largest holder, to keep the file count low,
    then the name. Returns all holders if they hold too little.
    """
    chosen: list[Holder] = []
    for holder in sorted(holders, key=lambda each: (each.holding, -each.bytes, each.name)):
        if bytes_needed <= 0:
            break
        if holder.bytes > 0:
            chosen.append(holder)
            bytes_needed -= holder.bytes
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class _SpilledBatch:
    """Batch stored in a spill file."""

    path: Path
    offset: int

    def read(self) -> pa.RecordBatch:
        with translated("open", self.path), open(self.path, "rb") as file:
            file.seek(self.offset)
            return pa.ipc.open_stream(file).read_next_batch()


class _InputBatches:
    """One input's batches in order: first on disk, then in memory."""

    def __init__(self) -> None:
        self.on_disk: deque[_SpilledBatch] = deque()
        self.in_memory: deque[pa.RecordBatch] = deque()
        self.bytes = 0
        self.rows = 0


class SpillingStore:
    """Batches from several inputs. A context manager, because it may own files on disk.

    A seeded order needs each input's row count, so all inputs are read first. If a write to disk
    fails, the stored rows are unchanged, and the call may be repeated.

    Parameters
    ----------
    pressure : MemoryPressure
        Memory limit. If spilling is not allowed, exceeding it raises MemoryLimitError.
    folder : path or None
        Parent of its folder; None: see `SpillFolder`.
    """

    def __init__(
        self, pressure: MemoryPressure | None = None, *, folder: Path | None = None
    ) -> None:
        self._pressure = pressure or MemoryPressure()
        self._parent = folder
        self._folder: SpillFolder | None = None
        self._kept: dict[str, _InputBatches] = {}
        self._files = 0
        self.bytes_in_memory = 0

    def __enter__(self) -> SpillingStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"SpillingStore(inputs={len(self._kept)}, rows={sum(self.rows.values()):_}, "
            f"bytes_in_memory={self.bytes_in_memory:_}, files={self._files})"
        )

    @property
    def rows(self) -> dict[str, int]:
        """Row count by input."""
        return {name: buffered.rows for name, buffered in self._kept.items()}

    def close(self) -> None:
        """Drop all rows and remove all files; safe to call twice."""
        self._kept.clear()
        self.bytes_in_memory = 0
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def add(self, name: str, batch: pa.RecordBatch) -> None:
        """Store a batch from an input."""
        size = batch.nbytes
        used = self.bytes_in_memory + size
        if to_spill := self._pressure.spill_bytes(used):
            self._spill(to_spill)
        elif self._pressure.is_exceeded(used):
            raise MemoryLimitError.of(used, self._pressure.limit_bytes)
        buffered = self._kept.setdefault(name, _InputBatches())
        buffered.in_memory.append(batch)
        buffered.bytes += size
        buffered.rows += batch.num_rows
        self.bytes_in_memory += size

    def take(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield an input's batches in order, and drop each yielded batch.

        Several inputs may be taken alternately.
        """
        buffered = self._kept.get(name, _InputBatches())
        while buffered.on_disk:
            # Removed after the read, so that a failed read may be repeated.
            batch = buffered.on_disk[0].read()
            buffered.on_disk.popleft()
            yield batch
        while buffered.in_memory:
            batch = buffered.in_memory.popleft()
            buffered.bytes -= batch.nbytes
            self.bytes_in_memory -= batch.nbytes
            yield batch

    def _spill(self, needed: int) -> None:
        """Write batches from the largest holders, to free ``needed`` bytes."""
        holders = [
            Holder(name=name, bytes=buffered_input.bytes)
            for name, buffered_input in self._kept.items()
        ]
        chosen = [self._kept[holder.name] for holder in choose_spills(holders, needed)]
        if not chosen:
            return
        path = self._next_path()
        try:
            with translated("write", path), open(path, "wb") as file:
                written = [
                    [_append(file, batch) for batch in buffered_input.in_memory]
                    for buffered_input in chosen
                ]
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._files += 1
        for buffered, offsets in zip(chosen, written, strict=True):
            buffered.on_disk.extend(_SpilledBatch(path, offset) for offset in offsets)
            buffered.in_memory.clear()
            self.bytes_in_memory -= buffered.bytes
            buffered.bytes = 0

    def _next_path(self) -> Path:
        if self._folder is None:
            self._folder = SpillFolder(self._parent)
        return self._folder.path / f"{self._files}.arrow"


def _append(file: BinaryIO, batch: pa.RecordBatch) -> int:
    """Write a batch; return its offset."""
    offset = file.tell()
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return offset
