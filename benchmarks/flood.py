"""How long small tables wait for their rows while others are flooded, in one query over all.

python -m benchmarks.flood --tables 1000 --seconds 60

A process of its own appends a row to some small table twenty times a second; for the second half
of the time another one appends to three tables as fast as it can. What is told is the time from an
append to the rows in the sink, of the small ones by halves, and of the flooded ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from benchmarks.session import session
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "at": pa.float64()})
FLOODED = 3
FLOOD_ROWS = 2_000
"""Of an epoch."""

SMALL_EVERY_S = 0.05

STRETCH_S = 5
"""By so many seconds the course of the waits is told."""


def _opened(folder: str, number: int) -> Table:
    return Table.open(str(Path(folder, f"t{number:05}")))


def _rows(key: int, count: int = 1) -> pa.Table:
    keys = list(range(key, key + count))
    return pa.table({"k": keys, "at": [time.time()] * count}, schema=COLUMNS)


def trickle(folder: str, tables: int, stop: Event) -> None:
    """Append a row to a small table now and then."""
    dice = random.Random(1)
    known: dict[int, Table] = {}
    while not stop.wait(SMALL_EVERY_S):
        number = dice.randrange(FLOODED, tables)
        if number not in known:
            known[number] = _opened(folder, number)
        known[number].upsert(_rows(dice.randrange(1000)))


def flood(folder: str, stop: Event) -> None:
    """Append to the first tables as fast as can be."""
    tables = [_opened(folder, number) for number in range(FLOODED)]
    epoch = 0
    while not stop.is_set():
        for table in tables:
            table.upsert(_rows(epoch * FLOOD_ROWS, FLOOD_ROWS))
        epoch += 1


def measure(folder: str, *, tables: int, seconds: int, limit: int) -> dict[str, Any]:
    """Run the query beside both writers.

    Returns
    -------
    dict
        In seconds: ``calm`` and ``flooded``, the waits of small tables by halves of the time;
        ``flood``, those of the flooded ones; how many batches there were; and the ``course`` of the
        waits over the time, which is 0 where the flood begins.
    """
    for number in range(tables):
        Table.create(str(Path(folder, f"t{number:05}")), COLUMNS, keys=["k"])
    waits: list[tuple[float, bool, float]] = []
    batches = 0

    def keep(batch: DataFrame, _: int) -> None:
        nonlocal batches
        batches += 1
        # The retraction of a row carries the time of an append long ago.
        new = batch.where("_change_type != 'update_preimage'").select("_input", "at")
        found = new.distinct().toArrow().to_pylist()
        now_s = time.time()
        waits.extend(
            (each["at"], int(each["_input"][1:]) < FLOODED, now_s - each["at"]) for each in found
        )

    query = (
        session(Path(folder), {"spark.sql.shuffle.partitions": "1"})
        .readStream.format("upsertflow")
        .options(inputsPattern="t*", mergeColumns="_input", readChangeFeed="true")
        .option("maxRowsPerTrigger", str(limit))
        .load(folder)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .start()
    )
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    small = context.Process(target=trickle, args=(folder, tables, stop))
    large = context.Process(target=flood, args=(folder, stop))
    try:
        query.processAllAvailable()
        small.start()
        time.sleep(seconds / 2)
        flooded_at_s = time.time()
        large.start()
        time.sleep(seconds / 2)
    finally:
        stop.set()
        for process in (small, large):
            if process.pid is not None:
                process.join()
        query.stop()
    waits = [(at - flooded_at_s, is_flood, wait) for at, is_flood, wait in waits]
    calm = [wait for at, is_flood, wait in waits if not is_flood and at < 0]
    flooded = [wait for at, is_flood, wait in waits if not is_flood and at >= 0]
    return {
        "tables": tables,
        "seconds": seconds,
        "limit": limit,
        "flood_rows": FLOOD_ROWS,
        "batches": batches,
        "calm": _told(calm),
        "flooded": _told(flooded),
        "flood": _told([wait for _, is_flood, wait in waits if is_flood]),
        "course": [
            {
                "at": stretch * STRETCH_S,
                "small": _told(_within(waits, stretch, is_flood=False)),
                "flood": _told(_within(waits, stretch, is_flood=True)),
            }
            for stretch in sorted({int(at // STRETCH_S) for at, _, _ in waits})
        ],
    }


def _within(waits: list[tuple[float, bool, float]], stretch: int, *, is_flood: bool) -> list[float]:
    return [wait for at, flood, wait in waits if flood is is_flood and at // STRETCH_S == stretch]


def _told(waits: list[float]) -> dict[str, float]:
    if len(waits) < 2:
        return {"count": len(waits)}
    cuts = statistics.quantiles(waits, n=100)
    found = {"median": cuts[49], "p99": cuts[98], "max": max(waits), "count": len(waits)}
    return {name: round(value, 2) for name, value in found.items()}


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--limit", type=int, default=20_000, help="rows of a batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(folder, tables=options.tables, seconds=options.seconds, limit=options.limit)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
