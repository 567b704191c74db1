"""Many tables in one write, rows by their keys, and indexes."""

from __future__ import annotations

import shutil
from typing import Any

from benchmarks.contest import Place
from benchmarks.host import Host
from benchmarks.measure import spread
from benchmarks.peers import (
    DELTA,
    SetupError,
)
from benchmarks.sections.running import hosted, inputs_on_spark, program
from benchmarks.sections.size import K, Size
from benchmarks.workload import Workload


def routing(place: Place, size: Size) -> dict[str, Any]:
    """Measure one write into many tables: alone, and on Spark against a write or MERGE of each."""
    from benchmarks.routing import measure

    folder, rows = place.work / "routing", min(30 * K, size.table)
    own = tuple(count for count in size.routed if count <= size.each)
    try:
        found = measure(folder, size.routed, rows, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with inputs_on_spark(place) as host:
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
    with hosted(place, "Delta on Spark", workload, python=python, jars=jars) as host:
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


def indexing(place: Place, size: Size) -> dict[str, Any]:
    """Measure commits with an index and without, and reads by it, by a prefix and of all rows."""
    from benchmarks.indexing import measure

    folder = place.work / "indexing"
    rows = size.merged // 2
    try:
        return measure(folder, rows, max(1, rows // 100), rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def point_reads(place: Place, size: Size) -> dict[str, Any]:
    """Measure reads of one key and of a thousand, against Parquet, by Arrow and by Spark."""
    from benchmarks.point_reads import measure

    folder = place.work / "point-reads"
    try:
        return measure(folder, size.table, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wide(place: Place, size: Size) -> dict[str, Any]:
    """Measure the steps of a table's life by the number of its columns."""
    from benchmarks.wide import measure

    folder = place.work / "wide"
    try:
        return measure(folder, size.wide, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unchanged(place: Place, size: Size) -> dict[str, Any]:
    """Measure updates that leave a large column unchanged, against updates that send it."""
    from benchmarks.unchanged import measure

    folder = place.work / "unchanged"
    try:
        return measure(folder, size.merged // 20, rounds=size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def object_storage(place: Place, size: Size) -> dict[str, Any]:
    """Count bytes and requests of tables in a bucket, for one machine and for several."""
    from benchmarks.object_storage import measure

    folder = place.work / "object-storage"
    try:
        return measure(folder, size.bucket_tables, files=size.manifest_files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flood(place: Place, size: Size) -> dict[str, Any]:
    """Measure how long small tables wait while others are flooded, in one query over all."""
    tables, seconds = size.flooded
    return program("flood", "--tables", str(tables), "--seconds", str(seconds))
