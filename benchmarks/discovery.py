"""How soon a commit to one of very many tables is planned, and what planning a batch takes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import (
    plan_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})

BETWEEN_S = 0.02
"""From one commit to the next."""

ASKED_S = 0.0125
"""How often Spark asks an idle query."""

_PATIENCE_S = 120.0


def measure(folder: Path, count: int, *, rounds: int, commits: int = 300) -> dict[str, Any]:
    """Watch so many tables, of which one in a hundred changes.

    Returns
    -------
    dict
        ``first_s``: the first question, which looks at all tables. ``latest_s``: a question when a
        hundredth of the tables has something and all of that is seen. ``planned_s``: from a commit,
        one after the other to these tables, to the answer that holds it. ``requests_per_look``.
        ``rest_s``: how long a table at rest is left alone.
    """
    tables = _make(folder, count)
    dirty = random.Random(count).sample(sorted(tables), max(1, count // 100))
    with _watched(folder) as stream:
        before = time.perf_counter()
        start = stream.latest(stream.initial())
        found: dict[str, Any] = {"dirty": len(dirty), "first_s": time.perf_counter() - before}
        took: list[float] = []
        for number in range(1 + rounds):
            for name in dirty:
                _append(tables[name], number)
            seconds, start = _planned_at_once(stream, start, len(dirty))
            took.append(seconds)
        found["latest_s"] = spread(took[1:])
        found["planned_s"] = spread(_followed(stream, start, tables, dirty, commits))
        discovery = stream.report()["discovery"]
    found["requests_per_look"] = discovery["requests"] / max(1, discovery["looks"])
    found["rest_s"] = discovery["rest_ms"] / 1000
    return found


def _make(folder: Path, count: int) -> dict[str, Table]:
    found = {}
    for number in range(count):
        name = f"t{number:06}"
        with patch("os.fsync", lambda handle: None):
            found[name] = Table.create(str(folder / name), COLUMNS, keys=["k"])
        _append(found[name], 0)
    return found


def _append(table: Table, number: int) -> None:
    with patch("os.fsync", lambda handle: None):  # Not what is measured.
        table.upsert(pa.table({"k": [number % 100], "v": [number]}))


@contextmanager
def _watched(folder: Path) -> Iterator[Stream]:
    given = {"path": str(folder), "inputsPattern": "t*", "readChangeFeed": "true"}
    plan = ReadPlan.parse({**given, "startingVersion": "1"})
    one = ReadPlan.parse({"path": str(folder / "t000000"), "readChangeFeed": "true"})
    inputs = stream_inputs(plan, plan_columns(one))
    heads = stream_heads(plan, inputs)
    stream = Stream(inputs, plan.query, offsets=stream_offsets(plan), heads=heads)
    try:
        yield stream
    finally:
        stream.stop()


def _planned_at_once(stream: Stream, start: Any, count: int) -> tuple[float, Any]:
    """Return how long a question takes when so many tables are known to have something."""
    give_up_s = time.monotonic() + _PATIENCE_S
    # Read beside the stream, which would plan what is seen so far.
    poller = stream._heads.poller
    assert poller is not None
    while len(poller._moved) < count and time.monotonic() < give_up_s:
        time.sleep(ASKED_S)
    before = time.perf_counter()
    end = stream.latest(start)
    return time.perf_counter() - before, json.loads(json.dumps(end))


def _followed(
    stream: Stream, start: Any, tables: dict[str, Table], dirty: list[str], commits: int
) -> list[float]:
    """Return how long after each commit it was planned."""
    waiting: dict[tuple[str, int], float] = {}
    took: list[float] = []

    def write() -> None:
        draw = random.Random(commits)
        for number in range(commits):
            name = draw.choice(dirty)
            _append(tables[name], number)
            waiting[name, tables[name].log.head().version] = time.perf_counter()
            time.sleep(BETWEEN_S)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    give_up_s = time.monotonic() + _PATIENCE_S
    while (writer.is_alive() or waiting) and time.monotonic() < give_up_s:
        end = stream.latest(start)
        if end is start:
            time.sleep(ASKED_S)
            continue
        now_s, start = time.perf_counter(), json.loads(json.dumps(end))
        positions = stream._offsets.read(start).positions
        for name, version in list(waiting):
            if positions[name].record["upper"] > version:
                took.append(max(0.0, now_s - waiting.pop((name, version))))
    return took
