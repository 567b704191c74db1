"""The flow of `examples.flow.latest` in both plans, to be killed by `chaos` as `chain` is.

Four queries follow one table through two regions of unlike width: with each replica in an element
of its own, and as costs tell; each into one table, and into two. Every start may have other widths.

    <folder>/readings           the table that they follow
    <folder>/<query>/latest     the newest reading of each device
    <folder>/<query>/all        every reading, of those that write two tables
    <folder>/checkpoints/...
    <folder>/started            appears when the queries start
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from examples.flow.latest import LATEST, READINGS, newest, parsed
from integration.chain import program
from integration.promises import assert_sound, counters_of
from pyspark_upsertflow import flow as flows
from spark_upsert.flow import (
    Automatic,
    Flow,
    Graph,
    Legacy,
    PythonFunction,
    Scheme,
    TableSink,
    TableSource,
    expanded,
    fused,
)
from spark_upsert.table.table import Table

DEVICES = 40
ROWS_MAX = 200
EPOCHS_PER_BATCH = 2
"""Fewer than a round adds, so that it takes several micro-batches."""

Row = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """How one of the queries runs."""

    scheme: Scheme
    writes_all: bool


PLANS = {
    "apart": Plan(Legacy(), writes_all=False),
    "apart-twice": Plan(Legacy(), writes_all=True),
    "fused": Plan(Automatic(slots=2), writes_all=False),
    "fused-twice": Plan(Automatic(slots=2), writes_all=True),
}


def add_epochs(folder: Path, seed: int, *, epochs: int) -> None:
    """Append epochs of readings; the first time make the table."""
    path = folder / "readings"
    if not path.exists():
        Table.create(str(path), READINGS, keys=["device", "seq"])
    table = Table.open(str(path))
    for _ in range(epochs):
        head = table.log.head()
        dice = random.Random(f"{seed}/{head.version}")
        rows = [
            {"device": dice.randrange(DEVICES), "seq": head.live_rows + n, "text": f"{n % 50} C"}
            for n in range(dice.randrange(1, ROWS_MAX))
        ]
        table.upsert(pa.Table.from_pylist(rows, schema=READINGS))


def graph(folder: Path, name: str, dice: random.Random) -> Graph:
    """Return the flow of a query, of other widths each time."""
    flow = Flow()
    source = TableSource(str(folder / "readings"), {"maxEpochsPerTrigger": str(EPOCHS_PER_BATCH)})
    rows = flow.source("readings", source, schema=READINGS)
    with flow.parallel("parse", dice.randint(1, 3)):
        rows = flow.operator("parsed", PythonFunction(parsed, LATEST), rows)
    with flow.parallel("decide", dice.randint(1, 3), partition_by=["device"]):
        newer = flow.operator("newest", PythonFunction(newest, LATEST), rows)
    options = {"keys": "device", "sequenceBy": "seq"}
    flow.sink("latest", TableSink(str(folder / name / "latest"), options), newer)
    if PLANS[name].writes_all:
        flow.sink("all", TableSink(str(folder / name / "all"), {"keys": "device,seq"}), rows)
    return flow.graph()


def run(spark: SparkSession, folder: Path) -> None:
    """Bring all tables up to the readings, however many are added meanwhile."""
    (folder / "started").write_text(type(spark).__module__)
    dice = random.Random(Table.open(str(folder / "readings")).log.head().version)
    queries = []
    for name, plan in PLANS.items():
        fusion = fused(expanded(graph(folder, name, dice)), plan.scheme)
        queries.append(flows.start(spark, fusion, str(folder / "checkpoints" / name)))
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()


def commits(folder: Path) -> int:
    """Return how many commits the tables have that are written."""
    return len([*folder.glob("*/*/_log/*.json")])


# -- what is to be there ---------------------------------------------------------------------


def check(folder: Path) -> str:
    """Check what each micro-batch wrote into each table; returns how many there were."""
    assert_sound(folder / "readings")
    readings, count = readings_of(folder), 0
    for name, plan in PLANS.items():
        count += _check_batches(folder / name / "latest", readings, are_newest=True)
        if plan.writes_all:
            count += _check_batches(folder / name / "all", readings, are_newest=False)
    return f"{count} micro-batches written, {len(readings)} readings"


def readings_of(folder: Path) -> list[Row]:
    """Return all readings, parsed in plain Python."""
    rows = Table.open(str(folder / "readings")).snapshot().to_pylist()
    return sorted((row["device"], row["seq"], int(row["text"].split()[0])) for row in rows)


def newest_of(readings: list[Row]) -> list[Row]:
    """Return the newest reading of each device."""
    ordered = sorted(readings, key=lambda row: row[1])
    return sorted({row[0]: row for row in ordered}.values())


def _check_batches(path: Path, readings: list[Row], *, are_newest: bool) -> int:
    """Check that each version has what one stretch of the readings comes to; returns how many.

    The rows that were taken are counted, too: a batch that is taken twice changes none.
    """
    table = assert_sound(path)
    end, taken, versions = -1, 0, 0
    for version in range(table.log.head().upper):
        changes = table.changes(version, version + 1).to_pylist()
        came = sorted(_row(change) for change in changes if change["_diff"] > 0)
        if not came:
            continue
        begin, end = end, max(seq for _, seq, _ in came)
        stretch = [row for row in readings if begin < row[1] <= end]
        expected = newest_of(stretch) if are_newest else stretch
        assert came == expected, f"version {version} of {path} is not the readings to {end}"
        taken += len(came)
        versions += 1
    assert end == max(seq for _, seq, _ in readings), f"readings behind {end} are lost"
    counters = counters_of(path)
    assert counters.rows == taken, f"{path} took {counters.rows} rows, {taken} would do"
    assert not counters.stale, f"{counters.stale} rows came behind later ones"
    return versions


def _row(row: dict[str, int]) -> Row:
    return row["device"], row["seq"], row["celsius"]


if __name__ == "__main__":
    program(__doc__, run)
