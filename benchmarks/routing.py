"""A batch into many tables, without Spark: what it costs, and how many requests it makes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore, ObjectSink
from spark_upsert.store.open import PrefixStore
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.log.manifest import QUERY, Transaction

TASKS = 2

KEYS = 1_000_000

ROWS = pa.schema({"topic": pa.string(), "id": pa.int64(), "v": pa.float64()})


class Counting(PrefixStore):
    """A folder that counts what would be a request to a bucket, once each."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalStore(str(path.parent)), path.name)
        self.requests = 0
        self._mapped: set[str] = set()

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self.requests += 1
        return super().read(path, bytes_max=bytes_max)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.requests += 1
        return super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self.requests += 1
        super().put(path, data)

    def create(self, path: str) -> ObjectSink:
        self.requests += 1
        self._mapped.add(path)  # The writer of a small run keeps a copy.
        return super().create(path)

    def map(self, path: str) -> pa.Buffer:
        self.requests += path not in self._mapped  # Runs are fetched once.
        self._mapped.add(path)
        return super().map(path)

    def delete(self, path: str) -> None:
        self.requests += 1
        super().delete(path)


def measure(folder: Path, tables: tuple[int, ...], rows: int, *, rounds: int) -> dict[str, Any]:
    """Time batches of so many rows into so many tables, the first of which makes them.

    Returns
    -------
    dict
        ``rows``, ``tasks``; below ``tables``, by number, the spreads of ``seconds``, ``cpu_s`` and
        ``requests`` of a batch into tables that exist.
    """
    found = {}
    for count in tables:
        folder.mkdir(parents=True, exist_ok=True)
        batches = (
            [_rows(number * TASKS + index, count, rows // TASKS) for index in range(TASKS)]
            for number in range(1 + rounds)
        )
        found[str(count)] = _spreads(_written(folder / f"t{count}", batches))
    return {"rows": rows, "tasks": TASKS, "tables": found}


def measure_beside(folder: Path, tables: tuple[int, ...], *, rounds: int) -> dict[str, Any]:
    """Time batches of one row into one of so many tables, by number; as ``tables`` of `measure`."""
    found = {}
    for count in tables:
        folder.mkdir(parents=True, exist_ok=True)
        topics = [f"topic-{number}" for number in range(count)]
        every = pa.record_batch([topics, [1] * count, [0.5] * count], schema=ROWS)
        batches = chain([[every]], repeat([every.slice(0, 1)], rounds))
        found[str(count)] = _spreads(_written(folder / f"b{count}", batches))
    return found


def _spreads(took: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Return the spreads of what batches took; the first makes the tables."""
    turns = list(took)[1:]
    return {name: spread([turn[name] for turn in turns]) for name in turns[0]}


def _written(
    folder: Path, batches: Iterable[Sequence[pa.RecordBatch]]
) -> Iterator[dict[str, float]]:
    """Write batches, each by as many tasks as it has parts; yield what each took."""
    root = Counting(folder)
    options = RoutedOptions.parse(
        {"path": f"{folder}/{{topic}}", "keys": "id", "allowUnordered": "true"}
    )
    for number, tasks in enumerate(batches):
        transaction = Transaction(writer=f"{QUERY}bench", number=number, is_consecutive=True)
        before, busy, asked = time.perf_counter(), time.process_time(), root.requests
        plan = plan_routed(options, ROWS, root=root)
        staged = [
            stage_routed(plan, root, [batch], transaction, index)
            for index, batch in enumerate(tasks)
        ]
        commit_routed(root, options, staged, transaction)
        yield {
            "seconds": time.perf_counter() - before,
            "cpu_s": time.process_time() - busy,
            "requests": root.requests - asked,
        }


def _rows(seed: int, tables: int, rows: int) -> pa.RecordBatch:
    dice = random.Random(seed)
    topics = [f"topic-{dice.randrange(tables)}" for _ in range(rows)]
    ids = [dice.randrange(KEYS) for _ in range(rows)]
    return pa.record_batch([topics, ids, [0.5] * rows], schema=ROWS)
