"""How long Spark waits for a stream to say how far it can go, when there is much to read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.measure import spread
from pyspark_upsertflow.readers import read_schema
from pyspark_upsertflow.stream import ChangeStreamReader
from spark_upsert.table import Table


def measure(folder: Path, epochs: int, *, calls: int = 50) -> dict[str, Any]:
    """Time ``latestOffset`` of a stream that is so many epochs behind.

    Returns
    -------
    dict
        ``first_s``: the first call of a process, which reads the log. ``warm_s``: a call with one
        epoch since the last one. ``limited_s``: the same with a limit of rows.
    """
    path = str(folder / "table")
    table = Table.create(path, pa.schema({"k": pa.int64(), "v": pa.int64()}), keys=["k"])
    for number in range(epochs):
        table.append(pa.table({"k": [number % 100], "v": [number]}))
    found: dict[str, Any] = {"epochs": epochs}
    for name, options in (("warm_s", {}), ("limited_s", {"maxRowsPerTrigger": "1000"})):
        given = {"path": path, "readChangeFeed": "true", "startingVersion": "1", **options}
        reader = ChangeStreamReader(given, read_schema(given))
        start = reader.initialOffset()
        limit = ReadAllAvailable() if name == "warm_s" else reader.getDefaultReadLimit()
        took = []
        for _ in range(1 + calls):
            table.append(pa.table({"k": [1], "v": [1]}))
            before = time.perf_counter()
            reader.latestOffset(start, limit)
            took.append(time.perf_counter() - before)
        found.setdefault("first_s", took[0])
        found[name] = spread(took[1:])
    return found
