"""Keep the latest reading of each device: parse in turn, decide by device, on Spark.

    python examples/flow/latest.py --into /tmp/latest

1. Readings of devices become a table, epoch by epoch.
2. A stream follows it through two regions: texts are parsed by as many tasks as like, since any of
   them may do any row; then rows are shared out by their device, so that one task sees all that a
   micro-batch has of it and passes on the newest.
3. The rows that are passed on are written into a second table, which keeps the latest of each key.

It is done twice: each operator in a task of its own, and fused as costs tell, each time ended in
the middle and started again, the second time at another width. Both tables are the same, and what
plain Python says.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

if not __package__:
    # Run as a script: import from the checkout, not from this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

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
from spark_upsert.flow.text import render_graph
from upsertflow import Table
from upsertflow import flow as flows

READINGS = pa.schema({"device": pa.int64(), "seq": pa.int64(), "text": pa.string()})
LATEST = pa.schema({"device": pa.int64(), "seq": pa.int64(), "celsius": pa.int64()})

Row = tuple[int, int, int]


def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make a number of each text, as ``21 C``."""
    for batch in batches:
        celsius = pc.cast(pc.replace_substring(batch["text"], " C", ""), pa.int64())
        yield pa.record_batch([batch["device"], batch["seq"], celsius], schema=LATEST)


def newest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give of each device the row of the greatest number, once all have come."""
    rows = pa.Table.from_batches(batches, LATEST).sort_by([("seq", "descending")])
    firsts = rows.group_by("device", use_threads=False).aggregate(
        [("seq", "first"), ("celsius", "first")]
    )
    yield from firsts.rename_columns(LATEST.names).cast(LATEST).to_batches()


def graph(root: Path, *, parse: int = 3, latest: int = 2, keeps_state: bool = False) -> Graph:
    """Return the flow from ``readings`` to ``latest``; ``all`` gets every reading that was parsed.

    Parameters
    ----------
    root : Path
        Where the tables lie.
    parse, latest : int
        The widths of the two regions.
    keeps_state : bool
        Whether the second one is said to keep state, so that its width cannot change.
    """
    flow = Flow()
    source = TableSource(str(root / "readings"), {"maxEpochsPerTrigger": "2"})
    rows = flow.source("readings", source, schema=READINGS)
    with flow.parallel("parse", parse):
        rows = flow.operator("parsed", PythonFunction(parsed, LATEST), rows)
    with flow.parallel("decide", latest, partition_by=["device"]):
        work = PythonFunction(newest, LATEST)
        newer = flow.operator("newest", work, rows, keeps_state=keeps_state)
    options = {"keys": "device", "sequenceBy": "seq"}
    flow.sink("latest", TableSink(str(root / "latest"), options), newer)
    flow.sink("all", TableSink(str(root / "all"), {"keys": "device,seq"}), rows)
    return flow.graph()


class Devices:
    """The table of readings, and what must be known of each device."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0
        self._readings = Table.create(str(root / "readings"), READINGS, keys=["device", "seq"])
        self._latest: dict[int, Row] = {}

    def read(self, *devices: int) -> None:
        """Append an epoch with a reading of each device, in this order."""
        rows = [(device, self.count + at, 10 + at) for at, device in enumerate(devices)]
        self.count += len(rows)
        self._latest |= {device: (device, seq, celsius) for device, seq, celsius in rows}
        named = [{"device": d, "seq": s, "text": f"{c} C"} for d, s, c in rows]
        self._readings.upsert(pa.Table.from_pylist(named, schema=READINGS))

    @property
    def latest(self) -> list[Row]:
        """The latest reading of each device."""
        return sorted(self._latest.values())


def rows_of(root: Path, table: str) -> list[Row]:
    """Return the rows of a table that the flow writes."""
    rows = Table.open(str(root / table)).snapshot().to_pylist()
    return sorted((row["device"], row["seq"], row["celsius"]) for row in rows)


def main() -> None:
    """Run the flow in both plans, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, required=True, help="a folder that is not there yet")
    into = parser.parse_args().into
    # Spark's own choice would be `python3`, which may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    schemes: dict[str, Scheme] = {"apart": Legacy(), "fused": Automatic(slots=2)}
    for name, scheme in schemes.items():
        devices, draw = Devices(into / name), random.Random(1)
        for parse in (3, 2):
            for _ in range(4):
                devices.read(*(draw.randrange(20) for _ in range(100)))
            plan = fused(expanded(graph(devices.root, parse=parse)), scheme)
            checkpoint = str(devices.root / "checkpoint")
            flows.start(spark, plan, checkpoint, available_now=True).awaitTermination()
        assert rows_of(devices.root, "latest") == devices.latest
        elements = [pe.names for pe in plan.pes]
        sys.stdout.write(
            f"{name}: {len(devices.latest)} devices\n{render_graph(plan.physical, elements)}\n"
        )
    spark.stop()


if __name__ == "__main__":
    main()
