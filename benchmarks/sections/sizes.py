"""What grows with a table, a batch or a history, and what of it is Spark's own transport."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import Entry, Place, contest, link_loaded
from benchmarks.figures import course
from benchmarks.measure import spread
from benchmarks.phases import machine_costs
from benchmarks.sections.running import hosted
from benchmarks.sections.size import K, M, Size
from benchmarks.workload import Files, Workload


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
            with hosted(place, "upsertflow", workload, folder="profile", keep=True) as host:
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
    with hosted(place, "upsertflow", workload, folder="aged") as engine:
        found = engine.call("age", batches, tables["fresh"])
        with hosted(place, "upsertflow on Spark", workload) as host:
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
    with hosted(place, "floors on Spark", workload) as host:
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
    with hosted(place, "upsertflow on Spark", workload) as host:
        host.call("load", files.initial())
        host.call("snapshot", files.initial())
        turns = [host.call("snapshot", files.initial()) for _ in range(size.rounds)]
    with hosted(place, "upsertflow", workload) as host:
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
