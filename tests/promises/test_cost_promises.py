"""P7 in a bucket: bytes and requests follow the change, not the table.

Tables are behind a gateway that counts what a bill would. Each operation has a copy of the table at a
new address and an empty folder for local copies, as a machine that has never seen the table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import TableSchema
from spark_upsert.store.local import LocalStore
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.table.write.group_commit import commands_of
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.counted_s3 import CountedS3, Traffic, counted_s3

NUMBERS = {f"c{index}": pa.int64() for index in range(10)}
COLUMNS = pa.schema({"id": pa.int64(), **NUMBERS})

SMALL, LARGE = 200_000, 800_000
"""Rows: 19 MB in one file and 78 MB in several."""

BATCH = 20

REQUEST_BYTES = 64 << 10

Ids = npt.NDArray[np.int64]


def rows_of(ids: Ids) -> pa.Table:
    return pa.Table.from_arrays([pa.array(ids)] * len(COLUMNS), schema=COLUMNS)


def drawn(rows: int, count: int = BATCH) -> Ids:
    return np.random.default_rng(rows).choice(rows, count, replace=False)


class Cluster:
    """A gateway, and machines with a folder for local copies each."""

    def __init__(self, gateway: CountedS3) -> None:
        self.gateway = gateway
        self.bytes: dict[int, int] = {}
        for rows in (SMALL, LARGE):
            table = Table.create(str(gateway.path(f"t{rows}")), COLUMNS, keys=["id"])
            table.upsert(rows_of(np.random.default_rng(1).permutation(rows)))
            table.compact(full=True)
            table.upsert(rows_of(drawn(rows)))
            table.vacuum(grace_ms=0)
            self.bytes[rows] = table.log.head().bytes

    def copied(self, rows: int) -> str:
        """Copy a table to a new address; returns its name."""
        name = f"c{uuid4().hex}"
        where = self.gateway.path(name)
        shutil.copytree(self.gateway.path(f"t{rows}"), where, copy_function=os.link)
        return name

    def machine(self, name: str) -> Table:
        """Open a table on a machine without local copies."""
        cache = self.gateway.folder / f"cache-{uuid4().hex}"
        return Table.open(self.gateway.url(name), storage_options=self.gateway.storage(cache))

    def cost(self, act: Callable[[], object]) -> Traffic:
        """Return what an action fetches."""
        self.gateway.take()
        act()
        return self.gateway.take()

    def cold(self, rows: int, act: Action, ids: Ids) -> Traffic:
        """Return what an action on a table costs a machine that has never seen it."""
        table = self.machine(self.copied(rows))
        return self.cost(lambda: act(table, ids))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with counted_s3(tmp_path_factory.mktemp("s3")) as gateway:
        yield Cluster(gateway)


def cost_of(traffic: Traffic) -> int:
    """Return bytes fetched, with each request as the bytes that take as long."""
    return traffic.get_bytes + traffic.requests * REQUEST_BYTES


def last_changes(table: Table) -> pa.Table:
    version = table.log.head().version
    while not table.log.commit(version).is_epoch:
        version -= 1
    return table.changes(version, version + 1)


Action = Callable[[Table, Ids], object]

ACTIONS: dict[str, Action] = {
    "rows by key": lambda table, ids: table.get(pa.array(ids)),
    "an upsert of keys that exist": lambda table, ids: table.upsert(rows_of(ids)),
    "an upsert of new keys": lambda table, ids: table.upsert(rows_of(ids + LARGE)),
    "a delete": lambda table, ids: table.delete(pa.array(ids)),
    "the changes of an epoch": lambda table, _: last_changes(table),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_p7_a_cold_machine_fetches_what_the_change_needs(cluster: Cluster, action: Action) -> None:
    small, large = (cluster.cold(rows, action, drawn(rows)) for rows in (SMALL, LARGE))
    assert large.get_bytes <= 1.5 * small.get_bytes + (256 << 10)
    assert large.get_bytes <= cluster.bytes[LARGE] // 20
    assert large.requests <= 15 * BATCH


@pytest.mark.parametrize("name", ["rows by key", "an upsert of keys that exist"])
def test_p7_the_cost_of_a_batch_follows_its_rows(cluster: Cluster, name: str) -> None:
    few, many = (cluster.cold(LARGE, ACTIONS[name], drawn(LARGE, count)) for count in (5, 40))
    assert few.get_bytes < many.get_bytes
    assert cost_of(many) <= 8 * cost_of(few)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_p7_a_warm_machine_fetches_almost_nothing(cluster: Cluster, action: Action) -> None:
    table, ids = cluster.machine(cluster.copied(LARGE)), drawn(LARGE)
    action(table, ids)
    assert cluster.cost(lambda: action(table, ids)).data_bytes <= 256 << 10


def by_hash(table: Table, ids: Ids, parts: int) -> list[Ids]:
    """Divide keys by ranges of their hash, into a power of two parts."""
    hashes = hash_keys([pa.array(ids)], seed=table.log.head().schema.hash_seed, prefix=0)
    part = hashes >> np.uint64(64 - (parts - 1).bit_length())
    return [ids[part == index] for index in range(parts)]


@pytest.mark.parametrize(("deals", "tables"), [("by hash", 0.15), ("at random", 0.5)])
def test_p7_executors_fetch_their_shares(cluster: Cluster, deals: str, tables: float) -> None:
    name = cluster.copied(LARGE)
    ids = drawn(LARGE, 8_000)
    shares = by_hash(cluster.machine(name), ids, 4)
    fetched = 0
    for own in shares if deals == "by hash" else np.array_split(ids, 4):
        snapshot = cluster.machine(name).at()
        commands = commands_of(snapshot.manifest, rows_of(own))
        fetched += cluster.cost(partial(stage, snapshot, commands)).data_bytes
    assert fetched <= tables * cluster.bytes[LARGE]


@pytest.mark.parametrize(("deals", "share"), [("by hash", 0.0), ("at random", 0.15)])
def test_p7_a_commit_reads_hashes_of_overlapping_tasks_only(
    cluster: Cluster, deals: str, share: float
) -> None:
    name = cluster.copied(SMALL)
    ids = drawn(SMALL, SMALL)
    shares = by_hash(cluster.machine(name), ids, 2)
    staged = []
    for own in shares if deals == "by hash" else np.array_split(ids, 2):
        snapshot = cluster.machine(name).at()
        staged.append(stage(snapshot, commands_of(snapshot.manifest, rows_of(own))))
    size = sum(file.bytes for each in staged for file in each.files)
    driver = cluster.machine(name)
    epoch = WriteSet(base=driver.at(), staged=tuple(staged))
    assert cluster.cost(lambda: driver.commit(epoch)).data_bytes <= share * size


def moved(schema: TableSchema, count: int) -> pa.RecordBatch:
    """Return commands by which rows move to new keys, and leave a value unchanged."""
    old, new = pa.array(range(count), pa.int64()), pa.array(range(LARGE, LARGE + count), pa.int64())
    nothing = pa.nulls(count, pa.int64())
    is_create = np.repeat([False, True], count)
    rows = DecodedRows(
        columns={"id": pa.concat_arrays([old, new]), "v": pa.nulls(2 * count, pa.int64())},
        order=[pa.array([2] * (2 * count), pa.int64())],
        tombstones=~is_create,
        raw_values=lambda chosen: pa.nulls(len(chosen), pa.binary()),
        unchanged={"v": is_create},
        resets=is_create,
        moved_to=[pa.concat_arrays([new, nothing])],
    )
    return to_commands(schema, rows)


def test_p7_a_commit_reads_the_rows_of_moves_only(cluster: Cluster) -> None:
    columns = pa.schema({"id": pa.int64(), "v": pa.int64(), **NUMBERS})
    name = f"m{uuid4().hex}"
    schema = TableSchema.of(columns, keys=["id"], order=[pa.field("o", pa.int64())])
    Table(LocalStore(str(cluster.gateway.path(name)))).ensure(schema)
    rows = pa.table([pa.array(range(SMALL))] * len(columns), schema=columns)
    rows = rows.append_column("o", pa.repeat(pa.scalar(1, pa.int64()), SMALL))
    snapshots = [cluster.machine(name).at() for _ in range(2)]
    of_rows = stage(snapshots[0], commands_of(snapshots[0].manifest, rows))
    of_moves = stage(snapshots[1], [moved(snapshots[1].manifest.schema, 3)])
    driver = cluster.machine(name)
    epoch = WriteSet(base=driver.at(), staged=(of_rows, of_moves))
    cost = cluster.cost(lambda: driver.commit(epoch))
    [size] = [file.bytes for file in of_rows.files]
    assert 0 < cost.data_bytes <= size // 5
    assert driver.get([LARGE + 2]).column("v").to_pylist() == [2]


def test_p7_rows_of_a_struct_column_are_fetched_by_blocks(cluster: Cluster) -> None:
    columns = pa.schema({"id": pa.int64(), "s": pa.struct(NUMBERS | {"text": pa.string()})})
    name = f"s{uuid4().hex}"
    table = Table.create(str(cluster.gateway.path(name)), columns, keys=["id"])
    ids = pa.array(np.random.default_rng(1).permutation(SMALL))
    fields = pa.StructArray.from_arrays(
        [*[ids] * len(NUMBERS), ids.cast(pa.string())], fields=list(columns.field("s").type)
    )
    table.upsert(pa.table([ids, fields], schema=columns))
    machine = cluster.machine(name)
    cost = cluster.cost(lambda: machine.get(pa.array([7, 8, 9])))
    assert 0 < cost.get_bytes <= table.log.head().bytes // 10
    assert machine.get([7]).column("s").to_pylist() == [dict.fromkeys(NUMBERS, 7) | {"text": "7"}]


def test_p7_a_compaction_fetches_what_it_merges(cluster: Cluster) -> None:
    name = cluster.copied(SMALL)
    ids = drawn(SMALL, SMALL)
    for own in np.array_split(ids, 2):
        cluster.machine(name).upsert(rows_of(own))
    [job] = cluster.machine(name).compaction_jobs(full=True)
    job = replace(job, hash_range=job.hash_range.cut(4)[1])
    snapshot = cluster.machine(name).at()
    fetched = cluster.cost(lambda: compact_runs(snapshot.store, snapshot.manifest, job))
    assert 0 < fetched.data_bytes <= 1.1 * job.bytes


def test_p7_a_read_of_one_column_fetches_one_column(cluster: Cluster) -> None:
    table = cluster.machine(cluster.copied(LARGE))
    fetched = cluster.cost(lambda: table.scan(["c0"]).read_all())
    assert fetched.data_bytes <= 0.2 * cluster.bytes[LARGE]


def test_p7_local_copies_keep_within_their_bound(cluster: Cluster, tmp_path: Path) -> None:
    bound = cluster.bytes[LARGE] // 8
    options = cluster.gateway.storage(tmp_path, f"{bound}")
    url = cluster.gateway.url(cluster.copied(LARGE))
    for seed in range(3):
        table = Table.open(url, storage_options=options)
        assert sum(batch.num_rows for batch in table.scan()) >= LARGE
        table.upsert(rows_of(drawn(LARGE, 2_000) ^ seed))
        files = [file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        removed = [line.split()[0] for line in maps if f"{tmp_path}" in line and "(del" in line]
        mapped = sum(int(high, 16) - int(low, 16) for low, high in (m.split("-") for m in removed))
        assert 0 < sum(files) + mapped <= 1.1 * bound
