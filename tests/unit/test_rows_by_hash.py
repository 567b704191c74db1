"""Tasks with disjoint hash ranges: the driver reads no staged file at their commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_upsertflow.writers import _part_numbers
from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys
from spark_upsert.core.schema import TableSchema
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.compaction.policy import choose, choose_all
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.run.remote import REMOTE_RUNS
from spark_upsert.table.state.snapshot import Snapshot, cut_by_files
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import SPILL_BYTES, Stash, stage_sealed
from spark_upsert.table.write.write_set import WriteSet, overlaps
from tests.support.stores import MemoryStore, forget_runs_and_logs

COLUMNS = pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.string()})
ROWS = 40_000


class CountingStore(MemoryStore):
    """Counts the bytes read, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}

    def _count(self, path: str, size: int) -> None:
        self.read_bytes[path] = self.read_bytes.get(path, 0) + size

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        data = super().read(path, bytes_max=bytes_max)
        self._count(path, len(data))
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        self._count(path, sum(high - low for low, high in ranges))
        return [self.objects[path][low:high] for low, high in ranges]


def rows_of(ids: Sequence[int], number: int = 0) -> pa.Table:
    texts = [f"{i:0{40}}" for i in ids]
    return pa.table([ids, [number] * len(ids), texts], schema=COLUMNS)


def split_by_hash(schema: TableSchema, ids: Sequence[int], count: int) -> list[list[int]]:
    """Divide keys among tasks by hash range."""
    hashes = hash_keys([pa.array(ids, pa.int64())], seed=schema.hash_seed)
    tasks = (hashes >> np.uint64(64 - count.bit_length() + 1)).astype(int)
    return [np.asarray(ids)[tasks == task].tolist() for task in range(count)]


def staged(
    base: Snapshot,
    tasks: Sequence[Sequence[int]],
    number: int,
    *,
    overwrite: bool = False,
    spill_bytes: int = SPILL_BYTES,
) -> WriteSet:
    schema = base.manifest.schema
    sources = {name: name for name in COLUMNS.names}
    envelope = UpsertEnvelope(schema=schema, sources=sources, order=(), deletes=None)
    staged_runs = []
    for ids in tasks:
        with Stash(schema, compact_bytes=spill_bytes // 3, spill_bytes=spill_bytes) as stash:
            for batch in rows_of(ids, number).to_batches(max_chunksize=1000):
                stash.add(envelope.commands(batch))
            staged_runs.append(stage_sealed(base, stash, overwrite=overwrite))
    return WriteSet(base=base, staged=tuple(staged_runs), overwrite=overwrite)


def committed(store: CountingStore, write_set: WriteSet) -> Commit:
    """Commit in a process that has opened nothing yet."""
    forget_runs_and_logs()
    store.read_bytes.clear()
    commit = Table(store).commit(write_set)
    assert commit is not None
    return commit


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def table(store: CountingStore) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]))
    table.upsert(rows_of(range(0, ROWS, 2), 1))
    return table


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_of_disjoint_tasks_reads_no_staged_file(
    store: CountingStore, table: Table, overwrite: bool
) -> None:
    base = table.at()
    tasks = split_by_hash(base.manifest.schema, range(ROWS), 8)
    write_set = staged(base, tasks, 2, overwrite=overwrite)
    commit = committed(store, write_set)
    assert not store.read_bytes.keys() & {file.path for file in write_set.files}
    assert sum(store.read_bytes.values()) <= sum(file.bytes for file in write_set.files) // 100
    assert (commit.counters["inserts"], commit.counters["updates"]) == (ROWS // 2, ROWS // 2)
    assert table.snapshot().num_rows == ROWS


def test_a_commit_reads_only_files_that_overlap(store: CountingStore, table: Table) -> None:
    base = table.at()
    tasks = split_by_hash(base.manifest.schema, range(ROWS), 8)
    # A key twice, and one that another writer changed since.
    tasks[3].append(tasks[2][0])
    write_set = staged(base, tasks, 2)
    table.upsert(rows_of([tasks[6][0]], 3))
    commit = committed(store, write_set)
    own = {file.path: index for index, file in enumerate(write_set.files)}
    read_paths = store.read_bytes.keys()
    assert {own[path] for path in read_paths & own.keys()} == {2, 3, 6}
    assert commit.counters["superseded"] == 1
    assert table.snapshot().num_rows == ROWS


def test_a_commit_reads_the_hashes_of_remote_files_and_the_contested_rows(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]))
    store.are_far = True
    monkeypatch.setattr(REMOTE_RUNS, "bytes_min", 0)
    shared = range(ROWS, ROWS + 2)
    tasks = [[*range(0, ROWS, 2), *shared], [*range(1, ROWS, 2), *shared]]
    write_set = staged(table.at(), tasks, 1)
    commit = committed(store, write_set)
    assert commit.counters["superseded"] == len(shared)
    for file in write_set.files:
        # Up to 64 KiB between two rows are one request.
        assert 8 * file.rows < store.read_bytes[file.path] < 0.4 * file.bytes


@pytest.mark.parametrize("overwrite", [False, True])
def test_after_a_bulk_load_nothing_is_to_be_compacted(
    store: CountingStore, table: Table, overwrite: bool
) -> None:
    if not overwrite:
        store.objects.clear()
        table = Table(store)
        table.ensure(TableSchema.of(COLUMNS, keys=["id"]))
    base, spill_bytes = table.at(), 120_000
    tasks = split_by_hash(base.manifest.schema, range(ROWS), 4)
    write_set = staged(base, tasks, 2, overwrite=overwrite, spill_bytes=spill_bytes)
    committed(store, write_set)
    assert not store.read_bytes.keys() & {file.path for file in write_set.files}
    slices = Table(store).log.head().slices
    # More than memory holds: several files, of which none overlaps another one.
    assert all(len(staged_runs.files) > 2 for staged_runs in write_set.staged)
    assert max(slice_.file.bytes for slice_ in slices) < spill_bytes
    assert not list(overlaps([slice_.occupied for slice_ in slices], ()))
    manifest = Table(store).log.head()
    assert (choose(manifest), choose_all(manifest)) == ([], [])
    assert Table(store).snapshot().num_rows == ROWS


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_part_of_a_row_is_by_its_stored_hash(prefix: int) -> None:
    columns = pa.schema({"region": pa.string(), "id": pa.int64()})
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(columns, keys=["region", "id"], hash_prefix=prefix))
    rows = pa.table([[f"r{i % 50}" for i in range(5000)], range(5000)], schema=columns)
    table.upsert(rows)
    head = table.log.head()
    pieces = cut_by_files(ALL_HASHES, head.slices, 4, is_uniform=not prefix)
    bounds = np.array([piece.first for piece in pieces[1:]], dtype=np.uint64)
    narrow = [rows["region"].combine_chunks(), rows["id"].cast(pa.int32()).combine_chunks()]
    parts = np.asarray(_part_numbers(head.schema, bounds)(*narrow))
    for part, piece in enumerate(pieces):
        [stored] = pa.Table.from_batches(table.at().read(["id"], hash_range=piece)).columns
        assert sorted(stored.to_pylist()) == np.flatnonzero(parts == part).tolist()
        assert abs(len(stored) - 1250) < (1000 if prefix else 350), "a region has 100 rows"


OVERLAPS = {
    "none": ([(0, 10), (10, 20)], [(30, 40)], []),
    "two": ([(0, 10), (5, 20), (20, 30)], [], [(5, 10, [0, 1])]),
    "one within another": ([(0, 20), (5, 10)], [], [(5, 10, [0, 1])]),
    "adjoining": ([(0, 10), (0, 10), (10, 20), (10, 15)], [], [(0, 15, [0, 1, 2, 3])]),
    "with another": ([(0, 10), (20, 30)], [(9, 22)], [(9, 10, [0]), (20, 22, [1])]),
    "others alone": ([(40, 50)], [(0, 10), (5, 10)], []),
    "an empty one": ([(0, 10)], [(5, 5)], []),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps(name: str) -> None:
    ranges, others, expected = OVERLAPS[name]
    found = overlaps([HashRange(*r) for r in ranges], [HashRange(*r) for r in others])
    assert [(r.first, r.end, indices) for r, indices in found] == expected
