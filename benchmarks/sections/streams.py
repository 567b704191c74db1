"""Streams over one table and over very many, and what a query costs that has nothing to do."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.contest import Place
from benchmarks.host import ROOT, Host
from benchmarks.measure import spread
from benchmarks.sections.running import hosted, inputs_on_spark, program
from benchmarks.sections.size import K, M, Size
from benchmarks.workload import Files, Workload

STRETCHES = 5
"""Of the time that a slow consumer is watched; memory that grows is greatest in the last."""


def consumers(place: Place, size: Size) -> dict[str, Any]:
    """Measure several streams that read the same changes at once."""
    workload = Workload(table_rows=min(M, size.table), batch_rows=min(100 * K, size.table))
    files = Files.make(place.cache / "rows", workload)
    found: dict[str, Any] = {"epochs": 5, "batch_rows": workload.batch_rows}
    with hosted(place, "upsertflow on Spark", workload) as host:
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


def topics(place: Place, size: Size) -> dict[str, Any]:
    """Measure one query over a thousand topics of a real broker, which is killed now and then."""
    from benchmarks.topics import measure

    return measure(size.topics)


def merge(place: Place, size: Size) -> dict[str, Any]:
    """Measure the bare merge of batches in memory, in each order, against one copy of them."""
    from benchmarks.merging import measure

    return measure(size.merged, rounds=size.rounds + 2)


def union(place: Place, size: Size) -> dict[str, Any]:
    """Measure one query over two tables, merged live and as a union of two reads, in turn.

    And its memory, if its sink takes a hundredth of what its source can give.
    """
    rows = min(100 * K, size.table)
    with inputs_on_spark(place) as host:
        host.call("make_tables", 2, rows)
        host.call("change", [0, 1], rows, 4)
        found = _against_union(host, size)
        return {**found, "slow": _slow_consumer(host, place, size, found)}


def inputs(place: Place, size: Size) -> dict[str, Any]:
    """Measure the micro-batches of a query over the number of tables that it reads."""
    with inputs_on_spark(place) as host:
        host.call("make_tables", size.inputs[-1], K)
        return {str(count): _cost_of(host, count, size) for count in size.inputs}


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
    with inputs_on_spark(place) as host:
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
    reads = "import spark_upsert.streams.reads.read_split"
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


def tuning(place: Place, size: Size) -> dict[str, Any]:
    """Measure what a setting is worth through Spark, one turned at a time."""
    return program("tuning", "--rows", str(size.table // 10), "--rounds", str(size.rounds))
