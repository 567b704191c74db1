"""Sources of a loader that lie in memory and tell what was read, and a slow obvious order."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from spark_upsert.errors import DataLossError
from spark_upsert.loader import Loader
from spark_upsert.loader.splits import Record
from spark_upsert.loader.stretch import RankBatches
from spark_upsert.loader.windows import THREAD_NAME

IDS = pa.schema({"id": pa.int64()})


@dataclass
class MemoryRows:
    """Rows that are numbered through, in splits of so many; both a source and its splits."""

    counts: Sequence[int]
    reads: list[int] = field(default_factory=list)
    """Which splits were read."""
    before_read: Callable[[int], None] = lambda index: None
    schema: pa.Schema = IDS
    is_forkable: bool = True

    kind: ClassVar[str] = "memory"

    def plan(self) -> MemoryRows:
        return self

    def plan_again(self, record: Record) -> MemoryRows:
        if record["counts"] != list(self.counts):
            raise DataLossError("other rows lie in their place.", hint="put them back.")
        return self

    def read(self, index: int) -> pa.Table:
        self.before_read(index)
        self.reads.append(index)
        first = sum(self.counts[:index])
        return pa.table({"id": range(first, first + self.counts[index])}, schema=IDS)

    def record(self) -> Record:
        return {"counts": list(self.counts)}


def loader_of(counts: Sequence[int], **settings: Any) -> Loader:
    """Return a loader of rows in memory, small in all that is not said."""
    return Loader(MemoryRows(counts), **{"batch_rows": 3, "window_rows": 5, "seed": 1, **settings})


def ids_of(batches: Any) -> list[list[int]]:
    """Return the rows of batches."""
    return [batch["id"].to_pylist() for batch in batches]


def flat(batches: Sequence[Sequence[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def check_turns(stretch: RankBatches, workers: int) -> None:
    """Read a stretch by several workers: their batches, taken in turn, are those of one."""
    one = ids_of(stretch.batches())
    parts = [ids_of(stretch.batches(worker, workers)) for worker in range(workers)]
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True), "no turn ends early"
    assert max(lengths) - min(lengths) <= 1
    in_turn = [part[turn] for turn in range(lengths[0]) for part in parts if turn < len(part)]
    assert in_turn == one


def carried(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint as it comes out of a file."""
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def loading_threads() -> list[threading.Thread]:
    """Return the threads that read ahead at this moment."""
    if any(map(_is_loading, threading.enumerate())):
        gc.collect()  # What other tests have left in cycles ends now.
    return list(filter(_is_loading, threading.enumerate()))


def _is_loading(thread: threading.Thread) -> bool:
    return thread.name.startswith(THREAD_NAME)


# -- the order, as its documentation says it, number by number -----------------------

_MASK = (1 << 64) - 1


def _raw(state: int, count: int) -> list[int]:
    found = []
    for _ in range(count):
        state = (state + 0x2D358DCCAA6C78A5) & _MASK
        product = state * (state ^ 0x8BB84B93962EACC9)
        found.append((product & _MASK) ^ (product >> 64))
    return found


def _mixed(first: int, *words: int) -> int:
    for word in words:
        [first] = _raw(first ^ word, 1)
    return first


def _permuted(items: Sequence[int], state: int) -> list[int]:
    bits = (len(items) - 1).bit_length() if items else 0
    keys = [raw >> bits << bits | index for index, raw in enumerate(_raw(state, len(items)))]
    return [items[key & (1 << bits) - 1] for key in sorted(keys)]


def slow_epoch(counts: Sequence[int], seed: int | None, epoch: int, window_rows: int) -> list[int]:
    """Return the numbers of all rows in the order of an epoch."""
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    rows = {i: list(range(firsts[i], firsts[i] + counts[i])) for i in range(len(counts))}
    splits = [index for index in rows if rows[index]]
    if seed is None:
        return flat([rows[index] for index in splits])
    found: list[int] = []
    held: list[int] = []
    windows = 0
    splits = _permuted(splits, _mixed(seed, epoch, 0))
    for split in splits:
        held += rows[split]
        if len(held) >= window_rows or split == splits[-1]:
            found += _permuted(held, _mixed(seed, epoch, 1 + windows))
            held, windows = [], windows + 1
    return found
