"""What is measured: each section runs alone and returns plain values for the report."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import Entry, Place, contest, link_loaded
from benchmarks.figures import course
from benchmarks.host import ROOT, Host
from benchmarks.measure import spread
from benchmarks.peers import (
    DELTA,
    DUCKLAKE,
    HUDI,
    ICEBERG,
    OURS_BESIDE_DELTA,
    PAIMON,
    PYPAIMON,
    Environment,
    SetupError,
)
from benchmarks.phases import machine_costs
from benchmarks.workload import Files, Workload

M = 1_000_000
K = 1_000

STRETCHES = 5
"""Of the time that a slow consumer is watched; memory that grows is greatest in the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything; the quick form is a matter of minutes."""

    table: int
    """Keys where a peer is measured against."""
    far_table: int
    """The same for peers on a Spark of their own."""
    slow_table: int
    """The same for peers that take minutes per batch."""
    tables: tuple[int, ...]
    """Sizes over which the cost of a batch should stay."""
    rounds: int
    epochs: int
    consumers: tuple[int, ...]
    behind: int
    """Epochs that a stream has not read."""
    merged: int
    """Rows that the bare merge hands on, and twice those of a training loop."""
    split_keys: tuple[int, ...]
    """Keys of tables that are read as one split."""
    inputs: tuple[int, ...]
    """Tables of one query, ascending."""
    watched: tuple[int, ...]
    """Tables of one query that are looked at beside planning: more than 300."""
    queries: tuple[int, int]
    """Queries of one table each that run at once."""
    appends: int
    """Of all threads together."""
    commits: int
    """Of one row each."""
    flooded: tuple[int, int]
    """Tables of one query of which three are flooded, and for how many seconds it is watched."""
    routed: tuple[int, ...]
    """Tables that one write goes to, ascending."""
    each: int
    """So many tables at most get a query or a MERGE each; of 1 000 that takes twenty minutes."""
    topics: tuple[str, ...]
    """What the program of a thousand topics is told."""
    slow_s: float
    """How long a query is watched whose consumer is slow, or that has nothing to do: a fifth."""


QUICK = Size(
    table=10 * M,
    far_table=M,
    slow_table=100 * K,
    tables=(100 * K, M, 10 * M),
    rounds=3,
    epochs=2_000,
    consumers=(1, 4),
    behind=10 * K,
    merged=4 * M,
    split_keys=(K, 50 * K, M),
    inputs=(1, 10, 100),
    watched=(1 * K,),
    queries=(4, 16),
    appends=320,
    commits=100,
    flooded=(300, 60),
    routed=(10, 100, 1_000),
    each=25,
    topics=("--topics=200", "--new=5", "--minutes=1.5", "--rate=60000", "--kills=1"),
    slow_s=15,
)
FULL = Size(
    table=10 * M,
    far_table=10 * M,
    slow_table=100 * K,
    tables=(100 * K, M, 10 * M, 100 * M),
    rounds=5,
    epochs=2_000,
    consumers=(1, 4, 16),
    behind=10 * K,
    merged=4 * M,
    split_keys=(K, 50 * K, M),
    inputs=(1, 10, 100, 1_000),
    watched=(1 * K, 10 * K),
    queries=(16, 64),
    appends=320,
    commits=100,
    flooded=(1 * K, 120),
    routed=(10, 100, 1_000),
    each=250,
    topics=("--seed=7", "--minutes=5", "--kills=3"),
    slow_s=30,
)
TINY = Size(
    table=20 * K,
    far_table=20 * K,
    slow_table=5 * K,
    tables=(10 * K, 20 * K),
    rounds=2,
    epochs=20,
    consumers=(1, 2),
    behind=100,
    merged=20 * K,
    split_keys=(100, K),
    inputs=(1, 4),
    watched=(310,),
    queries=(1, 2),
    appends=64,
    commits=3,
    flooded=(8, 4),
    routed=(2, 3),
    each=2,
    topics=("--topics=5", "--new=1", "--minutes=0.2", "--rate=3000", "--kills=0"),
    slow_s=2,
)


def delta(place: Place, size: Size) -> dict[str, Any]:
    """Measure upsert -> changelog through Spark, against Delta's MERGE and change feed."""
    workload = Workload(table_rows=size.table, batch_rows=min(100 * K, size.table))
    entries = [
        Entry(contender="upsertflow on Spark", environment=OURS_BESIDE_DELTA),
        Entry(contender="Delta on Spark", environment=DELTA),
    ]
    return contest(place, workload, entries, rounds=size.rounds)


def iceberg(place: Place, size: Size) -> dict[str, Any]:
    """Measure the upsert alone, against Iceberg's MERGE on read."""
    return _apart(place, size, "Iceberg on Spark", ICEBERG)


def iceberg_changelog(place: Place, size: Size) -> dict[str, Any]:
    """Measure upsert -> changelog, against Iceberg's MERGE on write and changelog view."""
    return _apart(place, size, "Iceberg changelog on Spark", ICEBERG)


def hudi(place: Place, size: Size) -> dict[str, Any]:
    """Measure upsert -> changelog, against Hudi's sink and CDC query."""
    return _apart(place, size, "Hudi on Spark", HUDI)


def paimon(place: Place, size: Size) -> dict[str, Any]:
    """Measure upsert -> changelog, against Paimon's sink and lookup changelog."""
    return _apart(place, size, "Paimon on Spark", PAIMON)


def _apart(place: Place, size: Size, peer: str, environment: Environment) -> dict[str, Any]:
    """Let a peer run on the newest Spark that it supports, where we do not run: each on its own."""
    workload = Workload(table_rows=size.far_table, batch_rows=min(100 * K, size.far_table))
    entries = [
        Entry(contender="upsertflow on Spark"),
        Entry(contender=peer, environment=environment),
    ]
    return contest(place, workload, entries, rounds=size.rounds)


def delta_rs(place: Place, size: Size) -> dict[str, Any]:
    """Measure the engine only, against delta-rs."""
    workload = Workload(table_rows=size.table, batch_rows=min(100 * K, size.table))
    entries = [Entry(contender="upsertflow"), Entry(contender="delta-rs")]
    return contest(place, workload, entries, rounds=size.rounds + 2)


def python_peers(place: Place, size: Size) -> dict[str, Any]:
    """Measure the engine's upsert, against peers in Python that have no change feed."""
    workload = Workload(table_rows=size.slow_table, batch_rows=min(10 * K, size.slow_table))
    entries = [
        Entry(contender="upsertflow"),
        Entry(contender="pyiceberg"),
        Entry(contender="pypaimon", environment=PYPAIMON),
    ]
    return contest(place, workload, entries, rounds=size.rounds)


def one_row_commits(place: Place, size: Size) -> dict[str, Any]:
    """Measure commits of a row each and reads of the table behind them, against peers in Python."""
    workload = Workload(table_rows=size.slow_table, batch_rows=1)
    entries = [
        Entry(contender="upsertflow"),
        Entry(contender="DuckLake", environment=DUCKLAKE),
        Entry(contender="delta-rs"),
        Entry(contender="pyiceberg"),
    ]
    return contest(place, workload, entries, rounds=size.commits, reads=size.rounds)


def variants(place: Place, size: Size) -> dict[str, Any]:
    """Measure other keys, draws, widths and mixes, against delta-rs."""
    plain = Workload(table_rows=min(M, size.table), batch_rows=min(100 * K, size.table))
    found = {}
    for label, workload in {
        "zipf": replace(plain, draw="zipf"),
        "string keys": replace(plain, keys="string"),
        "composite keys": replace(plain, keys="composite"),
        "wide rows": replace(plain, wide=40),
        "10 % deletes": replace(plain, deletes=0.1),
        "5 % out of order": replace(plain, late=0.05),
        "1 000-row batches": replace(plain, batch_rows=K),
        "1 M-row batches": replace(plain, table_rows=size.table, batch_rows=min(M, size.table)),
    }.items():
        entries = [Entry(contender="upsertflow"), Entry(contender="delta-rs")]
        found[label] = contest(place, workload, entries, rounds=size.rounds)
    return found


def scale(place: Place, size: Size) -> dict[str, Any]:
    """Measure the cost of a batch over the size of the table, the sizes in turn."""
    # Many rounds, because merges come every few epochs and belong to the cost.
    return _over_sizes(place, size, "upsertflow", rounds={K: 24, 100 * K: 16}, warm=1)


def spark_scale(place: Place, size: Size) -> dict[str, Any]:
    """Measure micro-batches on Spark over the size of the table, and the workers' memory."""
    return _over_sizes(place, size, "upsertflow on Spark", rounds={K: 8, 100 * K: 8}, warm=2)


def _over_sizes(
    place: Place, size: Size, contender: str, *, rounds: dict[int, int], warm: int
) -> dict[str, Any]:
    found = {}
    for batch, count in rounds.items():
        base = Workload(table_rows=size.tables[0], batch_rows=min(batch, size.tables[0]))
        entries = [
            Entry(contender=contender, workload=replace(base, table_rows=rows), label=f"{rows}")
            for rows in size.tables[-3:]
        ]
        found[str(base.batch_rows)] = contest(place, base, entries, rounds=count, warm=warm)
    return found


def profile(place: Place, size: Size) -> dict[str, Any]:
    """Tell what the engine's processor time is spent on, in one thread, beside the least there is."""
    found: dict[str, Any] = {"machine": machine_costs(), "batches": []}
    for rows in size.tables[-3:]:
        for batch in (K, 100 * K, M):
            workload = Workload(table_rows=rows, batch_rows=min(batch, rows))
            files = Files.make(place.cache / "rows", workload)
            folder = place.work / "profile"
            shutil.rmtree(folder, ignore_errors=True)
            link_loaded(place, workload, folder)
            numbers = range(1, 2 * size.rounds + 4)
            batches = [files.batch(number, place.parts) for number in numbers]
            with _host(place, "upsertflow", workload, folder="profile", keep=True) as host:
                found["batches"].append({**workload.to_json(), **host.call("profile", batches)})
    return found


def epochs(place: Place, size: Size) -> dict[str, Any]:
    """Measure a long run of small epochs: the cost of each."""
    workload = Workload(table_rows=min(M, size.table), batch_rows=K)
    entries = [Entry(contender="upsertflow")]
    found = contest(place, workload, entries, rounds=size.epochs)
    for result in found["contenders"].values():
        result["course"] = course(result["turns"])
    return found


def aged(place: Place, size: Size) -> dict[str, Any]:
    """Measure a snapshot of a table of many small epochs, against the same rows written once."""
    workload = Workload(table_rows=min(M, size.table), batch_rows=K)
    files = Files.make(place.cache / "rows", workload)
    batches = [files.batch(number, 1) for number in range(1, size.epochs + 1)]
    tables = {name: str(place.work / "aged" / name) for name in ("table", "fresh")}
    with _host(place, "upsertflow", workload, folder="aged") as engine:
        found = engine.call("age", batches, tables["fresh"])
        with _host(place, "upsertflow on Spark", workload) as host:
            turns = [
                {name: host.call("snapshot_of", path) for name, path in tables.items()}
                for _ in range(size.rounds + 2)
            ][2:]
    spreads = {f"{name}_s": spread([turn[name] for turn in turns]) for name in tables}
    return {"epochs": size.epochs, **found, **spreads}


def floors(place: Place, size: Size) -> dict[str, Any]:
    """Measure source and sink on Spark against a source and a sink that do nothing."""
    workload = Workload(table_rows=min(M, size.table), batch_rows=K)
    files = Files.make(place.cache / "rows", workload)
    found: dict[str, Any] = {"table_rows": workload.table_rows}
    with _host(place, "floors on Spark", workload) as host:
        host.call("load", files.initial())
        host.call("open")
        for rows in (100 * K, M):
            rows = min(rows, size.table)
            chains: dict[str, list[float]] = {}
            for _ in range(2):
                for source, sink in (
                    ("no-op", "no-op"),
                    ("no-op", "upsertflow"),
                    ("upsertflow", "no-op"),
                ):
                    took = host.call("chain", source, sink, rows, 4)["seconds"]
                    chains.setdefault(f"{source} -> {sink}", []).extend(took)
            found[str(rows)] = {name: spread(seconds) for name, seconds in chains.items()}
        found["versions"] = host.call("versions")
    return found


def snapshot(place: Place, size: Size) -> dict[str, Any]:
    """Measure a read of the whole table, against Parquet files of the same rows."""
    workload = Workload(table_rows=size.table, batch_rows=100 * K)
    files = Files.make(place.cache / "rows", workload)
    raw = place.work / "raw.arrow"
    with _host(place, "upsertflow on Spark", workload) as host:
        host.call("load", files.initial())
        host.call("snapshot", files.initial())
        turns = [host.call("snapshot", files.initial()) for _ in range(size.rounds)]
    with _host(place, "upsertflow", workload) as host:
        host.call("load", files.initial())
        engine = [host.call("snapshot")["snapshot_s"] for _ in range(size.rounds)]
    return {
        "rows": workload.table_rows,
        "spark": {name: spread([turn[name] for turn in turns]) for name in turns[0]},
        "engine_s": spread(engine),
        **_raw_arrow(files.initial(), raw),
    }


def _raw_arrow(files: list[Path], target: Path) -> dict[str, Any]:
    """Write and read the same rows as an Arrow file."""
    rows = pq.read_table(files)
    before = time.perf_counter()
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    written = time.perf_counter()
    with pa.OSFile(str(target)) as source:
        read = pa.ipc.open_file(source).read_all()
    done = time.perf_counter()
    assert len(read) == len(rows)
    target.unlink()
    return {"arrow_write_s": written - before, "arrow_read_s": done - written}


def consumers(place: Place, size: Size) -> dict[str, Any]:
    """Measure several streams that read the same changes at once."""
    workload = Workload(table_rows=min(M, size.table), batch_rows=min(100 * K, size.table))
    files = Files.make(place.cache / "rows", workload)
    found: dict[str, Any] = {"epochs": 5, "batch_rows": workload.batch_rows}
    with _host(place, "upsertflow on Spark", workload) as host:
        host.call("load", files.initial())
        host.call("open")
        for number in range(1, 6):
            host.call("apply", files.batch(number, place.parts))
        for count in size.consumers:
            found[str(count)] = host.call("consume", count)["seconds"]
    return found


def offsets(place: Place, size: Size) -> dict[str, Any]:
    """Measure ``latestOffset`` of a stream that is far behind, and offsets of many inputs."""
    from benchmarks.offsets import measure, measure_many

    folder = place.work / "offsets"
    try:
        return {**measure(folder, size.behind), "many": measure_many(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def threads(place: Place, size: Size) -> dict[str, Any]:
    """Measure appends of many threads on one table object and on one each, and watchers."""
    from benchmarks.threads import measure

    folder = place.work / "threads"
    # Three rounds: what is measured waits for the disk, and takes a minute each.
    commits = max(8, size.appends // 4)
    try:
        return measure(folder, appends=size.appends, commits=commits, rounds=min(3, size.rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def loading(place: Place, size: Size) -> dict[str, Any]:
    """Measure a pass of a training loop over files and over a table, against plain reads."""
    from benchmarks.loading import measure

    folder = place.work / "loading"
    try:
        return measure(folder, size.merged // 2, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def routing(place: Place, size: Size) -> dict[str, Any]:
    """Measure one write into many tables: alone, and on Spark against a write or MERGE of each."""
    from benchmarks.routing import measure

    folder, rows = place.work / "routing", min(30 * K, size.table)
    own = tuple(count for count in size.routed if count <= size.each)
    try:
        found = measure(folder, size.routed, rows, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with _inputs(place) as host:
        found["spark"] = {
            "one write": _into(host, "one write", size.routed, rows, turns=min(size.rounds, 3)),
            # Half a minute and more: once says enough.
            "a write of each": _into(host, "a write of each", size.routed[:2], rows, turns=1),
            "one query": _streamed(host, "one query", size.routed, rows, turns=2),
            "a query of each": _streamed(host, "a query of each", own, rows, turns=1),
        }
    try:
        python, jars = DELTA.prepare(place.cache)
    except SetupError as error:
        return {**found, "delta": str(error)}
    workload = Workload(table_rows=K, batch_rows=K)
    with _host(place, "Delta on Spark", workload, python=python, jars=jars) as host:
        found["spark"]["a MERGE of each on Delta"] = _merged(host, size.routed, rows, size.each)
    return found


def routed_beside(place: Place, size: Size) -> dict[str, Any]:
    """Measure one row into one of many tables, against one of few, without Spark."""
    from benchmarks.routing import measure_beside

    folder, many = place.work / "beside", max(size.routed) * 3 // 2
    try:
        return measure_beside(folder, (5, many), rounds=5 * size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _into(
    host: Host, way: str, tables: tuple[int, ...], rows: int, *, turns: int
) -> dict[str, dict[str, Any]]:
    """Write batches into so many tables; the first makes them and does not count."""
    found = {}
    for count in tables:
        took = []
        for _ in range(1 + turns):
            before = host.cpu()
            took.append({**host.call("write_many", count, rows, way), "cpu_s": 0.0})
            took[-1]["cpu_s"] = host.cpu() - before
        found[str(count)] = {key: spread([turn[key] for turn in took[1:]]) for key in took[0]}
    return found


def _streamed(
    host: Host, way: str, tables: tuple[int, ...], rows: int, *, turns: int
) -> dict[str, dict[str, Any]]:
    """Stream batches into so many tables; the last one counts."""
    found = {}
    for count in tables:
        for _ in range(turns):
            host.call("feed_many", count, rows, way)
            host.memory()
            before = host.cpu()
            took = host.call("stream_many", count, way)
            took["cpu_s"] = host.cpu() - before
        told = {key: spread([value]) for key, value in took.items()}
        found[str(count)] = {**told, "memory": host.memory()}
    return found


def _merged(host: Host, tables: tuple[int, ...], rows: int, most: int) -> dict[str, dict[str, Any]]:
    """Merge a batch of so many tables on Delta into the first of them, which have rows."""
    found = {}
    for count in tables:
        merged = min(count, most)
        host.call("make_many", count, rows, merged)
        before = host.cpu()
        took = host.call("write_many", count, rows, merged)
        took["cpu_s"] = host.cpu() - before
        found[str(count)] = {"merged": merged, **{key: spread([took[key]]) for key in took}}
    return found


def topics(place: Place, size: Size) -> dict[str, Any]:
    """Measure one query over a thousand topics of a real broker, which is killed now and then."""
    from benchmarks.topics import measure

    return measure(size.topics)


def indexing(place: Place, size: Size) -> dict[str, Any]:
    """Measure commits with an index and without, and reads by it, by a prefix and of all rows."""
    from benchmarks.indexing import measure

    folder = place.work / "indexing"
    rows = size.merged // 2
    try:
        return measure(folder, rows, max(1, rows // 100), rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mirror(place: Place, size: Size) -> dict[str, Any]:
    """Measure what it takes to publish a table as a Delta table, beside the same upserts."""
    from benchmarks.mirroring import measure

    folder = place.work / "mirror"
    batches = (1_000, max(1_000, size.table // 100), max(1_000, size.table // 10))
    try:
        return measure(folder, size.table, tuple(dict.fromkeys(batches)), rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def mirror_peers(place: Place, size: Size) -> dict[str, Any]:
    """Measure upserts that publish, and their changes, against MERGE into Delta tables."""
    workload = Workload(table_rows=size.table, batch_rows=min(100 * K, size.table))
    through_spark = [
        Entry(contender="upsertflow on Spark", environment=OURS_BESIDE_DELTA),
        Entry(contender="upsertflow mirrored on Spark", environment=OURS_BESIDE_DELTA),
        Entry(contender="Delta on Spark", environment=DELTA),
        Entry(contender="no-op on Spark", environment=OURS_BESIDE_DELTA),
    ]
    engine = [Entry(contender=name) for name in ("upsertflow", "upsertflow mirrored", "delta-rs")]
    return {
        "engine only": contest(place, workload, engine, rounds=size.rounds),
        "through Spark": contest(place, workload, through_spark, rounds=size.rounds),
    }


def mirror_readers(place: Place, size: Size) -> dict[str, Any]:
    """Measure how soon readers of Delta have a batch, and scans of a mirror against Parquet."""
    from benchmarks.mirroring import fresh, fresh_of_delta, mirror_of, seen_by_delta_rs
    from spark_upsert.table.table import Table

    folder = place.work / "mirror-readers"
    mirror_place = str(mirror_of(folder / "published"))
    rows, commits = min(100 * K, size.table // 10), 20 * size.rounds
    python, jars = DELTA.prepare(place.cache)
    workload = Workload(table_rows=size.table, batch_rows=rows)
    try:
        by_delta_rs = fresh(
            folder, size.table, rows, seen_by_delta_rs(mirror_place), commits=commits
        )
        shutil.rmtree(folder)
        with _host(place, "reader on Spark", workload, python=python, jars=jars) as host:

            def seen(id_: int, number: int) -> float:
                found: float = host.call("seen", mirror_place, id_, number)
                return found

            by_spark = fresh(folder, size.table, rows, seen, commits=commits, begins=commits)
            written = host.call("write_again", mirror_place, str(folder / "again"))
            of_delta = str(folder / "again" / "appended")
            shutil.copytree(written["delta"], of_delta)

            def seen_there(id_: int, number: int) -> float:
                found: float = host.call("seen", of_delta, id_, number)
                return found

            by_its_own = fresh_of_delta(of_delta, size.table, rows, seen_there, commits=commits)
            scans = []
            for compacts in (False, True):
                if compacts:
                    Table.open(str(folder / "published")).compact(full=True)
                turns = [host.call("scan", mirror_place, written) for _ in range(size.rounds + 2)]
                scans.append(
                    {name: spread([turn[name] for turn in turns[2:]]) for name in turns[0]}
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "fresh": {"delta-rs": by_delta_rs, "Spark with Delta": by_spark},
        "fresh_of_delta": {"Spark with Delta": by_its_own},
        "scan": scans[0],
        "compacted": scans[1],
    }


def point_reads(place: Place, size: Size) -> dict[str, Any]:
    """Measure reads of one key and of a thousand, against Parquet, by Arrow and by Spark."""
    from benchmarks.point_reads import measure

    folder = place.work / "point-reads"
    try:
        return measure(folder, size.table, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tasks(place: Place, size: Size) -> dict[str, Any]:
    """Measure splits that are read through a task, against the direct call."""
    from benchmarks.tasks import measure

    folder = place.work / "tasks"
    try:
        return measure(folder, size.split_keys, rounds=2 * size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def merge(place: Place, size: Size) -> dict[str, Any]:
    """Measure the bare merge of batches in memory, in each order, against one copy of them."""
    from benchmarks.merging import measure

    return measure(size.merged, rounds=size.rounds + 2)


def operators(place: Place, size: Size) -> dict[str, Any]:
    """Measure joins and groups of a task against those of pyarrow, which have all rows at once."""
    from benchmarks.operators import measure

    return measure(size.merged // 2, rounds=size.rounds + 2)


def union(place: Place, size: Size) -> dict[str, Any]:
    """Measure one query over two tables, merged live and as a union of two reads, in turn.

    And its memory, if its sink takes a hundredth of what its source can give.
    """
    rows = min(100 * K, size.table)
    with _inputs(place) as host:
        host.call("make_tables", 2, rows)
        host.call("change", [0, 1], rows, 4)
        found = _against_union(host, size)
        return {**found, "slow": _slow_consumer(host, place, size, found)}


def inputs(place: Place, size: Size) -> dict[str, Any]:
    """Measure the micro-batches of a query over the number of tables that it reads."""
    with _inputs(place) as host:
        host.call("make_tables", size.inputs[-1], K)
        return {str(count): _cost_of(host, count, size) for count in size.inputs}


@contextmanager
def _inputs(place: Place) -> Iterator[Host]:
    with _host(place, "inputs on Spark", Workload(table_rows=K, batch_rows=K)) as host:
        host.call("open")
        yield host


def _against_union(host: Host, size: Size) -> dict[str, Any]:
    """Let one query read two tables, merged and as a union of two reads, in turn."""
    turns: dict[str, list[dict[str, float]]] = {"merge": [], "union": []}
    for number in range(1 + size.rounds):
        for how in list(turns) if number % 2 else list(turns)[::-1]:
            turns[how].append(_read_once(host, how))
    return {
        "rows": turns["merge"][0]["rows"],
        **{
            how: {name: spread([turn[name] for turn in read[1:]]) for name in ("seconds", "cpu_s")}
            for how, read in turns.items()
        },
    }


def _read_once(host: Host, how: str) -> dict[str, float]:
    """Read two tables; again, if a Python process was not in time, because its time counts too."""
    while True:
        before = host.cpu()
        read: dict[str, float] = host.call("read_two", how)
        if read.pop("starts") == 1:
            return {**read, "cpu_s": host.cpu() - before}


def _slow_consumer(host: Host, place: Place, size: Size, union: dict[str, Any]) -> dict[str, Any]:
    """Watch the memory of a query whose sink takes a hundredth of what its source can give."""
    rate = union["rows"] / union["merge"]["seconds"]["median"] / 100
    host.call("hold_slow", rate / place.parts)
    stretches = []
    host.memory()
    for _ in range(STRETCHES):
        time.sleep(size.slow_s / STRETCHES)
        stretches.append(host.memory())
    host.call("release")
    return {"rows_per_s": rate, "stretch_s": size.slow_s / STRETCHES, "stretches": stretches}


def _cost_of(host: Host, count: int, size: Size) -> dict[str, Any]:
    """Measure the micro-batches of a query over so many tables, and what it costs while idle.

    A hundredth of the tables has changed, by as many rows in all.
    """
    host.call("hold", count)
    dirty = list(range(max(1, count // 100)))
    turns = []
    for _ in range(2 + size.rounds):
        before = host.cpu()
        turn = host.call("round", dirty, K // len(dirty))
        turns.append({**turn, "cpu_s": host.cpu() - before})
    before, watched_s = host.cpu(), size.slow_s / STRETCHES
    time.sleep(watched_s)
    idle = (host.cpu() - before) / watched_s
    host.call("release")
    names = [name for name in turns[0] if name.endswith("_s")]
    return {
        "dirty": len(dirty),
        "idle_share": idle,
        **{name: spread([turn[name] for turn in turns[2:]]) for name in names},
    }


def queries(place: Place, size: Size) -> dict[str, Any]:
    """Measure queries that run when there may be something new: one over all tables, or one each.

    In each round one table in a hundred has changed. So many queries as tables cannot run at once
    on one machine; two smaller numbers of them say what one more costs.
    """
    tables = size.inputs[-1]
    found: dict[str, Any] = {"tables": tables}
    with _inputs(place) as host:
        host.call("make_tables", tables, K)
        for name, count in (("one", tables), *((str(each), each) for each in size.queries)):
            turns = []
            host.memory()
            for _ in range(1 + min(size.rounds, 2)):
                host.call("change", list(range(round(count / 100))), 10)
                before = host.cpu()
                caught = host.call("catch_up", count, name == "one")
                turns.append({**caught, "cpu_s": host.cpu() - before})
            found[name] = {key: spread([turn[key] for turn in turns[1:]]) for key in turns[0]}
            found[name]["memory"] = host.memory()
    return found


def imports(place: Place, size: Size) -> dict[str, Any]:
    """Measure what `pyspark_upsertflow` adds to the import of pyspark, and a read to a worker."""
    spark = "import pyspark.sql.worker.plan_data_source_read"
    reads = "import spark_upsert.streams.reads.serve"
    # What travels to a task is the reader, and with it the module that plans, too.
    ours = f"import pyspark_upsertflow.readers\n{reads}"
    added = "from pyspark.sql.datasource import DataSource", "import pyspark_upsertflow"
    took = _seconds_of(*added, clock="perf_counter")
    worker = {
        "ours": spread(_seconds_of(spark, ours, clock="process_time")),
        "reads alone": spread(_seconds_of(spark, reads, clock="process_time")),
        "Spark's": spread(_seconds_of("", spark, clock="process_time")),
    }
    return {
        "seconds": spread(took),
        "median_ms": statistics.median(took) * 1000,
        "worker_s": worker,
    }


def _seconds_of(before: str, timed: str, *, clock: str) -> list[float]:
    """Run some code behind other code, in a new process each time; return what it took by a clock."""
    program = f"import time\n{before}\nt = time.{clock}()\n{timed}\nprint(time.{clock}() - t)"
    path = ":".join(str(ROOT / name) for name in ("", "datasource", "sink"))
    took = []
    for _ in range(11):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
        )
        took.append(float(done.stdout))
    return took


def flood(place: Place, size: Size) -> dict[str, Any]:
    """Measure how long small tables wait while others are flooded, in one query over all."""
    tables, seconds = size.flooded
    return _program("flood", "--tables", str(tables), "--seconds", str(seconds))


LIVED_ROUNDS = 40
"""Rounds of the long run for each one that is measured by itself."""


def views(place: Place, size: Size) -> dict[str, Any]:
    """Measure views that are kept up by changes, against computing them again."""
    asked = {"orders": size.table, "rounds": size.rounds, "lived": LIVED_ROUNDS * size.rounds}
    return _program("views", *(text for name, n in asked.items() for text in (f"--{name}", str(n))))


def fusion(place: Place, size: Size) -> dict[str, Any]:
    """Measure what fusion is worth on Spark, beside what it is predicted to be worth."""
    rows = str(size.table // 10)
    return _program("fusion", "--rows", rows, "--rounds", str(min(3, size.rounds)))


def _program(name: str, *asked: str) -> dict[str, Any]:
    """Run a benchmark that starts a Spark of its own, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *asked],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tuning(place: Place, size: Size) -> dict[str, Any]:
    """Measure what a setting is worth through Spark, one turned at a time."""
    return _program("tuning", "--rows", str(size.table // 10), "--rounds", str(size.rounds))


def discovery(place: Place, size: Size) -> dict[str, Any]:
    """Measure how soon a commit to one of very many tables is planned, without Spark."""
    from benchmarks.discovery import measure

    found: dict[str, Any] = {}
    for count in size.watched:
        folder = place.work / f"discovery-{count}"
        try:
            found[str(count)] = measure(folder, count, rounds=3 * size.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


SECTIONS: dict[str, Callable[[Place, Size], dict[str, Any]]] = {
    "imports": imports,
    "offsets": offsets,
    "delta_rs": delta_rs,
    "delta": delta,
    "scale": scale,
    "profile": profile,
    "spark_scale": spark_scale,
    "floors": floors,
    "threads": threads,
    "merge": merge,
    "loading": loading,
    "indexing": indexing,
    "point_reads": point_reads,
    "mirror": mirror,
    "mirror_peers": mirror_peers,
    "mirror_readers": mirror_readers,
    "routing": routing,
    "routed_beside": routed_beside,
    "topics": topics,
    "operators": operators,
    "tasks": tasks,
    "union": union,
    "inputs": inputs,
    "queries": queries,
    "discovery": discovery,
    "flood": flood,
    "views": views,
    "tuning": tuning,
    "fusion": fusion,
    "snapshot": snapshot,
    "epochs": epochs,
    "aged": aged,
    "consumers": consumers,
    "python_peers": python_peers,
    "one_row_commits": one_row_commits,
    "variants": variants,
    "iceberg": iceberg,
    "iceberg_changelog": iceberg_changelog,
    "hudi": hudi,
    "paimon": paimon,
}
"""In the order of their weight: what is stopped early has measured what matters most."""


@contextmanager
def _host(
    place: Place,
    contender: str,
    workload: Workload,
    *,
    folder: str | None = None,
    keep: bool = False,
    **setting: Any,
) -> Iterator[Host]:
    """Run a contender in an empty folder, or in the one that is there."""
    at = place.work / (folder or contender.replace(" ", "-"))
    if not keep:
        shutil.rmtree(at, ignore_errors=True)
    place.work.mkdir(parents=True, exist_ok=True)
    log = place.work / f"{contender.replace(' ', '-')}.log"
    host = Host(contender, at, workload, log=log, **setting)
    try:
        yield host
    finally:
        host.close()
        shutil.rmtree(at, ignore_errors=True)
