"""Bytes and requests for tables in a bucket, on one machine and on several; without Spark.

A gateway counts (`tests.support.counted_s3`). Each operation runs in a new
process with an empty folder for local copies, as an executor that has never seen the table; several
executors are several processes, each with a folder of its own. Counts are exact. Seconds are noted
and depend on the machine.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.mirroring import mirror_of
from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys
from spark_upsert.core.precedence import Interval
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.streams.reads.splits import rows_splits
from spark_upsert.table.compaction.policy import Job, batch_share, choose, choose_all
from spark_upsert.table.compaction.worker import compact_runs
from spark_upsert.table.log.manifest import Draft, Kind, Manifest, Slice, apply
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.group_commit import commands_of
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet
from tests.support.counted_s3 import CountedS3, counted_s3
from tests.support.workers import worker_processes

COLUMNS = pa.schema({"id": pa.int64(), **{f"c{index}": pa.int64() for index in range(10)}})
"""Eleven columns: 97 bytes per row, with its hash and its diff."""

ROW_BYTES = 97

CHUNK_ROWS = 2_000_000
"""Rows hashed at once while a table is made."""

EXECUTORS = 4
TASKS = 8
WRITERS, COMMITS = 16, 6
"""Concurrent writers, and commits per writer."""

LATENCY_S = 0.03
"""Added to each writer request: an S3 request takes about as long."""

NEW_KEYS = 1 << 40
"""Added to a key that is in the table: one that is not."""

FILE_BYTES = 128 << 20
"""Bytes per simulated file."""

SIMULATED_S = 180
"""Seconds after which a simulation whose plans take ever longer stops."""

Storage = Mapping[str, str]
Counts = dict[str, Any]


# -- in the processes ----------------------------------------------------------------------


def rows_of(ids: npt.NDArray[np.int64], seed: int) -> pa.Table:
    """Return rows with these keys."""
    dice = np.random.default_rng(seed)
    values = [pa.array(dice.integers(0, 1 << 40, len(ids))) for _ in COLUMNS.names[1:]]
    return pa.Table.from_arrays([pa.array(ids), *values], schema=COLUMNS)


def upsert(url: str, storage: Storage, ids: npt.NDArray[np.int64]) -> None:
    """Write one epoch."""
    Table.open(url, storage_options=storage).upsert(rows_of(ids, 1))


def get(url: str, storage: Storage, ids: npt.NDArray[np.int64]) -> None:
    """Read rows by key."""
    found = Table.open(url, storage_options=storage).get(pa.array(ids))
    assert found.num_rows == len(ids)


def read_changes(url: str, storage: Storage, ids: npt.NDArray[np.int64]) -> None:
    """Read the last epoch's changes."""
    table = Table.open(url, storage_options=storage)
    version = table.log.head().version
    while not table.log.commit(version).is_epoch:
        version -= 1
    assert table.changes(version, version + 1).num_rows == 2 * len(ids)


def read_column(url: str, storage: Storage, rows: int) -> None:
    """Read one column."""
    table = Table.open(url, storage_options=storage)
    assert sum(batch.num_rows for batch in table.scan(["c0"])) == rows


def read_split(url: str, storage: Storage, index: int) -> None:
    """Read one column in one split."""
    store = open_store(url, storage)
    options = ReadOptions.parse({"path": url, "splits": str(EXECUTORS)})
    split = rows_splits(Table(store).log.head(), options)[index]
    for _ in Snapshot(store, split.manifest).read(["c0"], hash_range=split.hash_range):
        continue


def stage_rows(url: str, storage: Storage, ids: npt.NDArray[np.int64]) -> StagedRuns:
    """Write one task's share of an epoch."""
    store = open_store(url, storage)
    head = Table(store).log.head()
    return stage(Snapshot(store, head), commands_of(head, rows_of(ids, 1)))


def commit_staged(url: str, storage: Storage, staged: Sequence[StagedRuns]) -> None:
    """Commit what tasks have staged, as a driver that has read nothing."""
    table = Table.open(url, storage_options=storage)
    base = Snapshot(table.store, table.log.at(staged[0].base_version))
    assert table.commit(WriteSet(base=base, staged=tuple(staged))) is not None


def compact_one(url: str, storage: Storage, job: Job) -> None:
    """Run one compaction, as a task."""
    store = open_store(url, storage)
    compact_runs(store, Table(store).log.head(), job)


def read_all(url: str, storage: Storage, rows: int) -> Counts:
    """Read all rows; return the disk space used by local copies, including removed ones."""
    table = Table.open(url, storage_options=storage)
    assert sum(batch.num_rows for batch in table.scan()) >= rows
    removed = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("(deleted)") and "upsertflow-cache" in line:
            span, _, _, _, inode = line.split()[:5]
            low, high = (int(end, 16) for end in span.split("-"))
            removed.add((inode, high - low))
    files = [Path(at, name) for at, _, names in os.walk(storage["cache_dir"]) for name in names]
    visible = sum(file.stat().st_blocks * 512 for file in files)
    return {"disk_bytes": visible + sum(size for _, size in removed)}


# -- tables --------------------------------------------------------------------------------


def by_hash(table: Table, ids: npt.NDArray[np.int64], parts: int) -> list[npt.NDArray[np.int64]]:
    """Divide keys by hash range into a power of two parts."""
    schema = table.log.head().schema
    hashes = hash_keys([pa.array(ids)], seed=schema.hash_seed, prefix=0)
    part = hashes // np.uint64((1 << 64) // parts) if parts > 1 else np.zeros(len(ids), np.uint64)
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(1, parts, dtype=np.uint64))
    return np.split(ids[order], ends)


def _loaded(gateway: CountedS3, name: str, rows: int) -> Table:
    """Create a table by a bulk load: its files have disjoint hash ranges."""
    table = Table.create(str(gateway.path(name)), COLUMNS, keys=["id"])
    base, file_bytes = table.at(), min(FILE_BYTES, max(FILE_BYTES // 4, rows * ROW_BYTES // 32))
    parts = 1 << max(0, (rows * ROW_BYTES // file_bytes).bit_length())
    shares: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(parts)]
    for first in range(0, rows, CHUNK_ROWS):
        ids = np.arange(first, min(rows, first + CHUNK_ROWS), dtype=np.int64)
        for share, own in zip(shares, by_hash(table, ids, parts), strict=True):
            share.append(own)
    staged = [
        stage(base, commands_of(base.manifest, rows_of(np.concatenate(share), index)))
        for index, share in enumerate(shares)
    ]
    assert table.commit(WriteSet(base=base, staged=tuple(staged))) is not None
    return table


@contextmanager
def _copied(gateway: CountedS3, name: str) -> Iterator[str]:
    """Yield the URL of a table copy for one operation; it shares the files."""
    copy = f"{name}-{secrets.token_hex(4)}"
    shutil.copytree(gateway.path(name), gateway.path(copy), copy_function=os.link)
    try:
        yield gateway.url(copy)
    finally:
        shutil.rmtree(gateway.path(copy))


# -- measurements --------------------------------------------------------------------------


class Bench:
    """A gateway, and folders for the machines' local copies."""

    def __init__(self, gateway: CountedS3, folder: Path) -> None:
        self.gateway = gateway
        self._folder = folder

    def cold(
        self, name: str, act: Callable[..., Any], *tasks: Any, cache: str | None = None
    ) -> Counts:
        """Run an action once per task, at once, each in a new process with no local copies.

        Returns
        -------
        dict
            The counts of all together, ``seconds``, and the ``results`` of the actions.
        """
        folders = [self._folder / secrets.token_hex(4) for _ in tasks]
        machines = [self.gateway.storage(folder) for folder in folders]
        try:
            with _copied(self.gateway, name) as url:
                return self.run(act, [(url, *each) for each in zip(machines, tasks, strict=True)])
        finally:
            for folder in folders:
                shutil.rmtree(folder)

    def run(self, act: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Counts:
        """Run an action once per arguments, each in a new process; as `cold`."""
        self.gateway.take()
        before = time.perf_counter()
        with worker_processes(len(arguments), tasks_each=1) as pool:
            results = [each.result() for each in [pool.submit(act, *each) for each in arguments]]
        seconds = time.perf_counter() - before
        return {**self.gateway.take().to_json(), "seconds": seconds, "results": results}


def _without(counts: Counts) -> Counts:
    return {name: value for name, value in counts.items() if name != "results"}


def measure(folder: Path, tables: Sequence[int], *, files: Sequence[int]) -> Counts:
    """Measure everything; ``tables`` are row counts, ``files`` file counts, both ascending."""
    folder.mkdir(parents=True, exist_ok=True)
    with counted_s3(folder / "s3") as gateway:
        bench = Bench(gateway, folder)
        found: Counts = {"tables": {}, "plans": {}}
        middle = tables[len(tables) // 2]
        for rows in tables:
            found["tables"][str(rows)] = operations(bench, rows)
            if rows == middle:
                found["bounded"] = bounded(bench, rows)
            shutil.rmtree(gateway.path(f"t{rows}"))
        found["executors"] = executors(bench, middle // 4)
        found["commit"] = commits(bench, middle // 10)
        found["writers"] = writers(bench)
        found["backfill"] = backfill()
        found["epochs"] = simulated(10_000_000_000, 16, 100)
        for count in files:
            found["plans"][str(count)] = plans(bench, count)
        found["mirror"] = mirror(folder / "mirror", middle // 2)
    return found


def operations(bench: Bench, rows: int) -> Counts:
    """Count cold operations on a table with the given row count."""
    name = f"t{rows}"
    table = _loaded(bench.gateway, name, rows)
    dice = np.random.default_rng(5)
    column = bench.cold(name, read_column, rows)
    table.upsert(rows_of(dice.choice(rows, 1_000, replace=False), 3))
    few, many = (dice.choice(rows, count, replace=False) for count in (100, 1_000))
    actions: dict[str, tuple[Callable[..., Any], Any]] = {
        "get 1 key": (get, few[:1]),
        "get 100 keys": (get, few),
        "upsert 1 000 keys": (upsert, many),
        "upsert 1 000 new keys": (upsert, many + NEW_KEYS),
        "changes of 1 000 rows": (read_changes, many),
        "one column, with 1 000 newer rows": (read_column, rows),
    }
    counts = {what: _without(bench.cold(name, *action)) for what, action in actions.items()}
    counts["one column"] = _without(column)
    head = table.log.head()
    return {"bytes": head.bytes, "files": len(head.slices), "operations": counts}


def bounded(bench: Bench, rows: int) -> Counts:
    """Let two processes read a table in turn, with copies bounded to a quarter of it."""
    name = f"t{rows}"
    size = Table.open(str(bench.gateway.path(name))).log.head().bytes
    folder = bench.gateway.folder.parent / "shared"
    storage = bench.gateway.storage(folder, f"{size // 4}")
    with _copied(bench.gateway, name) as url:
        turns = [bench.run(read_all, [(url, storage, rows)]) for _ in range(2)]
    shutil.rmtree(folder)
    return {
        "bytes": size,
        "bound_bytes": size // 4,
        "disk_bytes": max(turn["results"][0]["disk_bytes"] for turn in turns),
        "processes": [_without(turn) for turn in turns],
    }


def executors(bench: Bench, rows: int) -> Counts:
    """Count the bytes executors fetch together: for rows by hash, random rows, and a read."""
    table = _loaded(bench.gateway, "executors", rows)
    ids = np.random.default_rng(7).choice(rows, rows // 50, replace=False)
    found = {
        "rows": rows,
        "bytes": table.log.head().bytes,
        "batch_rows": len(ids),
        "by hash": _without(bench.cold("executors", stage_rows, *by_hash(table, ids, EXECUTORS))),
        "at random": _without(bench.cold("executors", stage_rows, *np.array_split(ids, EXECUTORS))),
        "read of one column": _without(bench.cold("executors", read_split, *range(EXECUTORS))),
    }
    shutil.rmtree(bench.gateway.path("executors"))
    return found


def commits(bench: Bench, rows: int) -> Counts:
    """Count the bytes read by the driver's commit, and by one due compaction."""
    table = Table.create(str(bench.gateway.path("commits")), COLUMNS, keys=["id"])
    ids = np.random.default_rng(8).permutation(rows)
    found: Counts = {"rows": rows, "tasks": TASKS}
    machine = bench.gateway.storage(bench.gateway.folder.parent / "tasks")
    url = bench.gateway.url("commits")
    for label, parts in (
        ("disjoint", by_hash(table, ids, TASKS)),
        ("overlapping", np.array_split(ids, TASKS)),
    ):
        staged = bench.run(stage_rows, [(url, machine, part) for part in parts])
        driver = bench.gateway.storage(bench.gateway.folder.parent / "driver")
        counts = bench.run(commit_staged, [(url, driver, staged["results"])])
        shutil.rmtree(driver["cache_dir"])
        size = sum(file.bytes for each in staged["results"] for file in each.files)
        found[label] = {**_without(counts), "staged_bytes": size}
    jobs = choose_all(table.log.head()) or choose(table.log.head())
    job = min(jobs, key=lambda job: job.bytes)
    half = replace(job, hash_range=job.hash_range.cut(2)[0])
    found["job"] = {
        **_without(bench.cold("commits", compact_one, half)),
        "job_bytes": half.bytes,
    }
    shutil.rmtree(machine["cache_dir"])
    shutil.rmtree(bench.gateway.path("commits"))
    return found


def writers(bench: Bench) -> Counts:
    """Count the requests by concurrent writers, each with its own table object."""
    folder = bench.gateway.folder.parent / "writers"
    url, storage = bench.gateway.url("writers"), bench.gateway.storage(folder)
    Table.create(url, COLUMNS, keys=["id"], storage_options=storage)
    tables = [Table.open(url, storage_options=storage) for _ in range(WRITERS)]

    def write(writer: int) -> None:
        for number in range(COMMITS):
            ids = np.arange(10, dtype=np.int64) + 1_000 * writer + 10 * number
            tables[writer].upsert(rows_of(ids, writer))

    bench.gateway.take()
    bench.gateway.latency_s = LATENCY_S
    before = time.perf_counter()
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
    finally:
        bench.gateway.latency_s = 0.0
    seconds, traffic = time.perf_counter() - before, bench.gateway.take()
    shutil.rmtree(bench.gateway.path("writers"))
    shutil.rmtree(folder)
    return {
        **traffic.to_json(),
        "seconds": seconds,
        "commits": WRITERS * COMMITS,
        "lost_puts": traffic.refused,
    }


# -- made-up files -------------------------------------------------------------------------


def _file(hash_range: HashRange, size: int) -> RunFile:
    return RunFile(
        path=f"data/{secrets.token_hex(16)}.arrow",
        rows=max(1, size // 97),
        tombstones=0,
        bytes=size,
        body_bytes=size - size // 250,
        tail_crc=secrets.randbits(32),
        hash_range=hash_range,
    )


class _Policy:
    """A simulated table; counts the bytes that its compactions read and write."""

    def __init__(self) -> None:
        schema = TableSchema.of(COLUMNS, keys=["id"])
        self.manifest = Manifest.unborn(schema, {}, table_id="0" * 32)
        self._commit(Draft(kind=Kind.CREATE, schema=schema, properties={}))
        self.ingested = self.written = self.whole_files = 0

    def _commit(self, draft: Draft) -> None:
        version = self.manifest.version + 1
        before = "" if self.manifest.is_unborn else self.manifest.token
        commit = draft.committed(
            version=version, timestamp_ms=version, token=f"{version:032x}", previous=before
        )
        self.manifest = apply(self.manifest, commit)

    def append(self, size: int, tasks: int) -> None:
        """Add an epoch; each task's file covers all hashes."""
        files = tuple(_file(ALL_HASHES, size // tasks) for _ in range(tasks))
        self._commit(Draft(kind=Kind.APPEND, added=files))
        self.ingested += size

    def compact(self, jobs: Sequence[Job]) -> None:
        """Run jobs, each on a machine without local copies."""
        slices: list[Slice] = []
        for job in jobs:
            count = max(1, -(-job.bytes // FILE_BYTES))
            slices += (
                Slice(
                    file=_file(piece, job.bytes // count),
                    epochs=job.epochs,
                    index=index if job.index is None else job.index,
                )
                for index, piece in enumerate(job.hash_range.cut(count))
            )
            self.written += job.bytes
            self.whole_files += sum(slice_.file.bytes for slice_ in job.slices)
        if jobs:
            taken = tuple(each for job in jobs for each in job.taken)
            self._commit(Draft(kind=Kind.COMPACT, compacted=tuple(slices), taken=taken))

    def result(self) -> Counts:
        """Return the bytes so far, the files, and the jobs that are due."""
        due = len(choose(self.manifest))
        depth = sum(1 << 63 in slice_.occupied for slice_ in self.manifest.slices)
        return {
            "ingested_bytes": self.ingested,
            "written_bytes": self.written,
            "whole_files_bytes": self.whole_files,
            "files": len(self.manifest.slices),
            "files_at_a_hash": depth,
            "due": due,
        }


def backfill(tasks: int = 400, size: int = 125_000_000) -> Counts:
    """Compact an epoch with overlapping files until nothing is due."""
    policy = _Policy()
    policy.append(tasks * size, tasks)
    rounds = 0
    while rounds < 20 and (jobs := choose(policy.manifest)):
        policy.compact(jobs)
        rounds += 1
    return {**policy.result(), "rounds": rounds, "tasks": tasks}


def simulated(size: int, tasks: int, epochs: int) -> Counts:
    """Append epochs, each with the sink's share of compactions; ``size`` in bytes."""
    policy, course = _Policy(), {}
    began = time.perf_counter()
    for number in range(1, epochs + 1):
        jobs = choose(policy.manifest, bytes_max=batch_share(policy.manifest))
        policy.append(size, tasks)
        policy.compact(jobs)
        if number in (1, 10, 20, 50, epochs):
            course[str(number)] = policy.result()
        if time.perf_counter() - began > SIMULATED_S:
            course[str(number)] = {**policy.result(), "stopped": True}
            break
    return course


CHECKPOINT_COMMITS = 50
"""Commits by which made-up files come: a checkpoint follows the last."""


def plans(bench: Bench, files: int) -> Counts:
    """Measure the driver's work with many disjoint files, in a new process."""
    name = f"p{files}"
    Table.create(str(bench.gateway.path(name)), COLUMNS, keys=["id"])
    folder = bench.gateway.folder.parent / "plans"
    storage = bench.gateway.storage(folder)
    try:
        with worker_processes(1) as pool:
            try:
                pool.submit(add_files, str(bench.gateway.path(name)), files).result()
            except UpsertFlowError as error:
                return {"failed": str(error).splitlines()[0]}
        counts = bench.run(plan, [(bench.gateway.url(name), storage)])
        return {**_without(counts), **counts["results"][0]}
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(bench.gateway.path(name))


def add_files(path: str, files: int) -> None:
    """Add simulated files with disjoint hash ranges to a table."""
    log = Table.open(path).log
    ranges, step = ALL_HASHES.cut(files), -(-files // CHECKPOINT_COMMITS)
    for first in range(0, files, step):
        slices = tuple(
            Slice(
                file=_file(hash_range, FILE_BYTES),
                live=hash_range,
                epochs=Interval.at(0),
                index=first + index,
            )
            for index, hash_range in enumerate(ranges[first : first + step])
        )
        draft = Draft(kind=Kind.COMPACT, compacted=slices)
        assert log.append(partial(_always, draft)) is not None


def _always(draft: Draft, _: Manifest) -> Draft:
    return draft


def plan(url: str, storage: Storage) -> Counts:
    """Open a table, plan a write and a read: processor seconds, and bytes per task."""
    from spark_upsert_sink.writers import plan_sink  # It needs PySpark.

    found: Counts = {}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        before = time.process_time()
        result = act()
        found[name] = time.process_time() - before
        return result

    table = timed("open_s", lambda: Table.open(url, storage_options=storage))
    options = WriteOptions.parse(
        {"path": url, "keys": "id", **{f"storage.{name}": text for name, text in storage.items()}}
    )
    write = timed("plan_s", lambda: plan_sink(options, COLUMNS, overwrite=False))
    sent = timed("pickle_s", lambda: pickle.dumps(write.for_tasks()))
    timed("unpickle_s", lambda: pickle.loads(sent))
    read = ReadOptions.parse({"path": url, "splits": "100"})
    splits = timed("splits_s", lambda: rows_splits(table.log.head(), read))
    return {**found, "task_bytes": len(sent), "split_bytes": len(pickle.dumps(splits[0]))}


def mirror(folder: Path, rows: int, batches: int = 30) -> Counts:
    """Measure a followed mirror's deletion vectors and log in bytes, with random keys."""
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})

    def of(ids: npt.NDArray[np.int64], value: int) -> pa.Table:
        return pa.table({"id": ids, "v": np.full(len(ids), value)}, schema=columns)

    table = Table.create(str(folder / "table"), columns, keys=["id"])
    dice = np.random.default_rng(9)
    for part in np.array_split(dice.permutation(rows), 10):
        table.upsert(of(part, 0))
    table.compact(full=True)
    table.publish()
    table.alter(table.schema, {"publish": "delta", "publishInterval": "auto"})
    seen: dict[Path, int] = {}

    def new_bytes(suffix: str) -> int:
        files = [
            file for file in mirror_of(folder / "table").rglob(f"*{suffix}") if file not in seen
        ]
        seen.update((file, file.stat().st_size) for file in files)
        return sum(seen[file] for file in files)

    new_bytes(".bin")
    new_bytes(".json")
    batch, vectors, log = max(1, rows // 100), [], []
    for number in range(1, batches + 1):
        table.upsert(of(dice.choice(rows, batch, replace=False), number))
        vectors.append(new_bytes(".bin"))
        log.append(new_bytes(".json"))
        if number % 7 == 0:
            table.compact()
    shutil.rmtree(folder)
    return {
        "rows": rows,
        "batch_rows": batch,
        "batches": batches,
        "vector_bytes": sum(vectors),
        "log_bytes": sum(log),
        "last_vector_bytes": max(vectors[-7:]),
    }
