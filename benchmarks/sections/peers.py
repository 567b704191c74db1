"""How a batch, and a commit of one row, compare with peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.contest import Entry, Place, contest
from benchmarks.peers import (
    DELTA,
    DUCKLAKE,
    HUDI,
    ICEBERG,
    OURS_BESIDE_DELTA,
    PAIMON,
    PYPAIMON,
    Environment,
)
from benchmarks.sections.size import K, M, Size
from benchmarks.workload import Workload


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
