"""What the other processes of a test do. Each opens the store for itself, as executors do."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pyarrow as pa

from spark_upsert.store.open import open_store
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table

Storage = Mapping[str, str]


@contextmanager
def worker_processes(count: int, *, tasks_each: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """Start processes without a common past: obstore does not survive a fork.

    After ``tasks_each`` tasks a process is replaced by a new one.
    """
    spawn = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, max_tasks_per_child=tasks_each) as pool:
        yield pool


def append_rows(url: str, storage: Storage, writer: int, appends: int) -> list[int]:
    """Append one row at a time under keys of this writer; returns the committed versions."""
    table = Table.open(url, storage_options=storage)
    versions = []
    for index in range(appends):
        rows = pa.table({"k": [1000 * writer + index], "v": [writer]})
        commit = table.upsert(rows)
        assert commit is not None
        versions.append(commit.version)
    return versions


def create_objects(url: str, storage: Storage, writer: int, keys: int) -> list[int]:
    """Try to create objects; returns those that this writer made."""
    store = open_store(url, storage)
    return [key for key in range(keys) if store.put_if_absent(f"race/{key}", b"%d" % writer)]


def mapped_bytes(url: str, storage: Storage, path: str) -> int:
    """Map an object; returns its length."""
    return int(open_store(url, storage).map(path).size)


def memory_of_round_trip(url: str, storage: Storage, path: str, mebibytes: int) -> int:
    """Write an object and fetch it; returns by how many bytes the process grew at most."""
    store = open_store(url, storage)
    store.put("warm", b"up")
    store.map("warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = b"x" * (1 << 20)
    with store.create(path) as sink:
        for _ in range(mebibytes):
            sink.write(piece)
    assert store.map(path).size == mebibytes << 20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def append_epochs(url: str, storage: Storage, epochs: Sequence[pa.Table], done: str) -> int:
    """Append epochs of commands, then put an object; returns how often a row was counted."""
    table = Table.open(url, storage_options=storage)
    rows = 0
    for epoch in epochs:
        commit = table.upsert(epoch, deletes="gone")
        assert commit is not None
        rows += Counters.from_json(commit.counters).rows
    table.store.put(done, b"")
    return rows


def compact_until(url: str, storage: Storage, done: Sequence[str]) -> int:
    """Compact again and again until all these objects are there; returns the merges."""
    table = Table.open(url, storage_options=storage)
    merges = 0
    while {found.path for found in table.store.list("done")} != set(done):
        merges += table.compact()
    return merges
