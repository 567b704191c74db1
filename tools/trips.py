"""Count the modules that five typical operations enter: how far a reader of the code has to go.

A module is entered if a function in its file is called. Each operation runs once before it is
counted, so that imports and first-time set-up are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan import agg
from spark_upsert.streams.planner.formats import (
    plan_columns,
    shared_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tools.code_figures import Figure, modules_entered

ROWS = 50


class Trip(NamedTuple):
    """An operation and the most modules that it may enter."""

    name: str
    most: int
    measure: Callable[[Path], set[str]]


def _rows(version: int) -> pa.Table:
    return pa.table({"id": range(ROWS), "v": [version] * ROWS})


def _table(path: Path) -> Table:
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    table = Table.create(str(path), columns, keys=["id"])
    for version in range(3):
        table.upsert(_rows(version))
    return table


def _append(folder: Path) -> set[str]:
    table = _table(folder / "t")
    return modules_entered(lambda: table.upsert(_rows(9)))


class _Query:
    """A stream of changes over one table, as Spark's reader makes it."""

    def __init__(self, path: Path) -> None:
        plan = ReadPlan.parse({"path": str(path), "readChangeFeed": "true"})
        columns = plan_columns(plan)
        inputs = stream_inputs(plan, columns)
        self.stream = Stream(
            inputs,
            plan.query,
            heads=stream_heads(plan, inputs),
            offsets=stream_offsets(plan),
            columns=shared_columns(plan, columns),
        )
        self.start = self.end = self.stream.initial()

    def plan(self) -> None:
        self.start = self.end
        self.end = json.loads(json.dumps(self.stream.latest(self.start)))

    def splits(self) -> list[Any]:
        return list(self.stream.splits(self.start, self.end))


def _second_batch(folder: Path) -> tuple[Table, _Query]:
    table = _table(folder / "t")
    query = _Query(folder / "t")
    query.plan()
    query.splits()
    query.stream.commit(query.end)
    table.upsert(_rows(9))
    return table, query


def _latest_offset(folder: Path) -> set[str]:
    _, query = _second_batch(folder)
    return modules_entered(query.plan)


def _split(folder: Path) -> set[str]:
    table, query = _second_batch(folder)
    query.plan()
    [split] = query.splits()
    list(query.stream.read(split))
    table.upsert(_rows(10))
    query.plan()
    [split] = query.splits()
    return modules_entered(lambda: list(query.stream.read(split)))


def _view_step(folder: Path) -> set[str]:
    table = _table(folder / "t")
    plan = Plan.of_table(table.store.url).group_by("v").agg(n=agg.count())
    plan.refresh(str(folder / "kept"))
    table.upsert(_rows(9))
    plan.refresh(str(folder / "kept"))
    table.upsert(_rows(10))
    return modules_entered(lambda: plan.refresh(str(folder / "kept")))


def _publish(folder: Path) -> set[str]:
    table = _table(folder / "t")
    table.publish()
    table.upsert(_rows(9))
    table.publish()
    table.upsert(_rows(10))
    return modules_entered(table.publish)


TRIPS = (
    Trip("append", 50, _append),
    Trip("latestOffset", 24, _latest_offset),
    Trip("split", 35, _split),
    Trip("view step", 71, _view_step),
    Trip("publish", 41, _publish),
)


def trip_figures() -> list[Figure]:
    """Return how many modules each operation enters."""
    results = []
    for trip in TRIPS:
        with TemporaryDirectory() as folder:
            count = len(trip.measure(Path(folder)))
        results.append(Figure(f"modules entered: {trip.name}", count, trip.most))
    return results
