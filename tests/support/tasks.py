"""Tasks in tests: rows of one column, readers that are watched, operators that fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_upsert.task import ArrowScan, Task
from spark_upsert.task.operator import Signal

NUMBERS = pa.schema([pa.field("n", pa.int64())])


def numbers(*values: int | None, batch_rows: int = 1) -> list[pa.RecordBatch]:
    """Return batches of a column of numbers, of so many rows each."""
    starts = range(0, len(values), batch_rows)
    return [
        pa.record_batch([pa.array(values[at : at + batch_rows], pa.int64())], schema=NUMBERS)
        for at in starts
    ]


def scan(name: str = "rows", schema: pa.Schema = NUMBERS) -> ArrowScan:
    return ArrowScan(id=name, schema=schema)


def values_of(batches: Iterable[pa.RecordBatch], name: str = "n") -> list[Any]:
    """Return the values of a column."""
    return [value for batch in batches for value in batch[name].to_pylist()]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return rows as tuples."""
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def run(
    task: Task, sets: Sequence[Mapping[str, Sequence[Any]]], *, is_ended: bool = False
) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each set of splits, with a barrier behind each, and those of the end."""
    found = []
    for each in sets:
        for name, splits in each.items():
            for split in splits:
                assert task.add_split(name, split)
        done = task.request_barrier()
        found.append(rows_of(task.iter_batches()))
        assert done.done()
    if is_ended:
        for name in sorted({name for each in sets for name in each}):
            task.no_more_splits(name)
        found.append(rows_of(task.iter_batches()))
    return found


class Watched:
    """Reads splits that are batches, and knows what was opened, read and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.batches = 0

    def __call__(self, split: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.opened += 1
        try:
            for batch in split:
                self.batches += 1
                yield batch
        finally:
            self.closed += 1


class Boom(RuntimeError):
    """What an operator raises in a test."""


class Fed:
    """A feed that says what it is told, in its order, and then that it waits."""

    def __init__(self, *said: pa.RecordBatch | Signal) -> None:
        self.schema = NUMBERS
        self.said = list(said)
        self.is_dropped = False

    def poll(self) -> pa.RecordBatch | Signal:
        return self.said.pop(0) if self.said else Signal.WAIT

    def drop(self) -> None:
        self.is_dropped = True

    def pass_barrier(self) -> None:
        self.is_dropped = False

    def close(self) -> None:
        self.said.clear()
