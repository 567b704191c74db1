"""Runs that lie in a bucket: those that a step needs are fetched side by side, and each once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, StorageError
from spark_upsert.store import object_store
from spark_upsert.store.object_store import ObjectStore
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.run.remote import REMOTE_RUNS
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"region": pa.string(), "id": pa.int64(), "n": pa.int64()})
GET = obstore.get
EPOCHS = 5
WAIT_SECONDS_MAX = 30
"""For others to ask, too; whoever asks alone fails behind it."""


@pytest.fixture
def bucket() -> obstore.store.MemoryStore:
    client = obstore.store.MemoryStore()
    table = Table(ObjectStore("s3://writer/t", {}, client=client))
    table.ensure(TableSchema.of(COLUMNS, keys=["region", "id"], hash_prefix=1))
    for number in range(EPOCHS):
        ids = [7, *range(10 * number, 10 * number + 10)]
        table.upsert(pa.table([["eu"] * len(ids), ids, [number] * len(ids)], schema=COLUMNS))
    assert len(table.log.head().slices) == EPOCHS
    return client


class Reader:
    """A machine that has none of the files yet, and what it gets of the bucket."""

    def __init__(self, client: Any, folder: Path, url: str) -> None:
        self.store = ObjectStore(url, {"cache_dir": str(folder)}, client=client)
        self.table = Table(self.store)
        self.fetched: list[str] = []
        self.meet: Callable[[], object] = lambda: None

    def get(self, client: Any, path: str, **options: Any) -> Any:
        if path.startswith("data/"):
            self.fetched.append(path)
            self.meet()
        return GET(client, path, **options)


@pytest.fixture
def reader(
    bucket: obstore.store.MemoryStore,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Reader:
    # A place of its own: the open runs of this process are known by their place.
    reader = Reader(bucket, tmp_path, f"s3://reader/{request.node.name}")
    monkeypatch.setattr(obstore, "get", reader.get)
    return reader


STEPS: dict[str, Callable[[Table], object]] = {
    "rows by key": lambda table: table.get([("eu", 7)]),
    "rows by a prefix": lambda table: table.having_prefix(pa.table({"region": ["eu"]})),
    "all rows": lambda table: table.snapshot(),
    "a compaction": lambda table: [
        compact_runs(table.store, table.log.head(), job) for job in table.compaction_jobs(full=True)
    ],
}


@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_needs_is_fetched_side_by_side_and_once(step: str, reader: Reader) -> None:
    reader.meet = threading.Barrier(EPOCHS, timeout=WAIT_SECONDS_MAX).wait
    STEPS[step](reader.table)
    assert len(reader.fetched) == len(set(reader.fetched)) == EPOCHS
    STEPS[step](reader.table)
    assert len(reader.fetched) == EPOCHS


def test_what_lies_here_is_not_asked_for(reader: Reader) -> None:
    first, *others = [slice_.file for slice_ in reader.table.log.head().slices]
    RUNS.open(reader.store, first)
    del reader.fetched[:]
    reader.meet = threading.Barrier(len(others), timeout=WAIT_SECONDS_MAX).wait
    reader.table.get([("eu", 7)])
    assert sorted(reader.fetched) == sorted(file.path for file in others)


def test_a_run_that_is_gone_is_named(reader: Reader, bucket: obstore.store.MemoryStore) -> None:
    gone = reader.table.log.head().slices[2].file.path
    obstore.delete(bucket, gone)
    with pytest.raises(CorruptionError, match=gone):
        reader.table.get([("eu", 7)])


def test_a_storage_that_does_not_answer_is_told_once(reader: Reader) -> None:
    def fail() -> None:
        raise obstore.exceptions.GenericError("no answer")

    reader.meet = fail
    with pytest.raises(StorageError):
        reader.table.get([("eu", 7)])
    assert len(reader.fetched) == EPOCHS, "it is not asked again for what it did not send"


def test_large_runs_and_more_than_the_copies_may_take_are_not_fetched_ahead(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {slice_.file.path: slice_.file.bytes for slice_ in reader.table.log.head().slices}
    monkeypatch.setattr(object_store, "FETCHED_AT_ONCE", 2)
    groups = list(object_store._group_for_fetch(["a", "b", "c"], {"a": 1, "b": 1, "c": 1}))
    assert groups == [["a", "b"], ["c"]]
    monkeypatch.setattr(object_store, "FETCHED_BYTES", 2)
    assert list(object_store._group_for_fetch(["a", "b"], {"a": 3, "b": 1})) == [["a"], ["b"]]
    with monkeypatch.context() as patched:
        patched.setattr(object_store, "RANGE_BYTES", min(sizes.values()) - 1)
        reader.store.fetch(dict.fromkeys(("data/x", "data/y"), 1 << 40))
    assert not reader.fetched, "their parts are asked for side by side, as each is mapped"
    monkeypatch.setattr(reader.store._copies, "_capacity_bytes", 1)
    reader.store.fetch(dict.fromkeys(sizes, 2))
    assert not reader.fetched


@pytest.mark.parametrize("keys", [1, 30])
def test_a_client_of_buckets_reads_the_blocks_of_a_run(
    keys: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REMOTE_RUNS, "bytes_min", 0)  # Runs of any size stay in the bucket.
    monkeypatch.setattr(REMOTE_RUNS, "copy_share", 0.0)
    client = obstore.store.MemoryStore()
    there = ObjectStore(f"s3://writer/{request.node.name}", {}, client=client)
    schema = pa.schema({"id": pa.int64(), "s": pa.string()})
    table = Table(there)
    table.ensure(TableSchema.of(schema, keys=["id"]))
    table.upsert(pa.table({"id": range(5_000), "s": [f"text {n}" for n in range(5_000)]}))
    table.upsert(pa.table({"id": [7], "s": ["newer"]}))
    cache = {"cache_dir": str(tmp_path)}
    reader = Table(ObjectStore(f"s3://reader/{request.node.name}", cache, client=client))
    lookup_keys = list(range(keys + 7))[-keys:]
    assert reader.get(lookup_keys) == table.get(lookup_keys)
    copies = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in copies} == {".blocks"}, "no run was copied completely"
    gone = table.log.head().slices[0].file.path
    obstore.delete(client, gone)
    other = Table(ObjectStore(f"s3://other/{request.node.name}", cache, client=client))
    with pytest.raises(CorruptionError, match=gone):
        other.get(lookup_keys)


def test_an_empty_object_is_mapped(tmp_path: Path) -> None:
    client = obstore.store.MemoryStore()
    obstore.put(client, "t/empty", b"")
    store = ObjectStore("s3://writer/t", {"cache_dir": str(tmp_path)}, client=client)
    assert store.map("t/empty").size == 0
