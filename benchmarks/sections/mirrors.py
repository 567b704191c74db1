"""A live Delta table: what it takes, beside MERGE, and its readers."""

from __future__ import annotations

import shutil
from typing import Any

from benchmarks.contest import Entry, Place, contest
from benchmarks.measure import spread
from benchmarks.peers import (
    DELTA,
    OURS_BESIDE_DELTA,
)
from benchmarks.sections.running import hosted
from benchmarks.sections.size import K, Size
from benchmarks.workload import Workload


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
        with hosted(place, "reader on Spark", workload, python=python, jars=jars) as host:

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
