"""How long Spark waits for a stream to say how far it can go, when there is much to read."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.measure import spread
from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import read_schema
from spark_upsert.store import LocalStore
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets
from spark_upsert.streams.offsets.offset import Offset, Offsets, PlainOffsets, Position
from spark_upsert.table.log.manifest import TableVersion
from spark_upsert.table.table import Table

MANY = (100, 1_000, 10_000, 100_000)
"""Numbers of inputs; of the fewest, both forms are the same."""

_BATCHES = 5


def measure(folder: Path, epochs: int, *, calls: int = 50) -> dict[str, Any]:
    """Time ``latestOffset`` of a stream that is so many epochs behind.

    Returns
    -------
    dict
        ``first_s``: the first call of a process, which reads the log; what is imported is not in
        it. ``warm_s``: a call with one
        epoch since the last one. ``limited_s``: the same with a limit of rows.
    """
    path = str(folder / "table")
    table = Table.create(path, pa.schema({"k": pa.int64(), "v": pa.int64()}), keys=["k"])
    for number in range(epochs):
        table.upsert(pa.table({"k": [number % 100], "v": [number]}))
    plain = {"path": path, "readChangeFeed": "true", "startingVersion": "1"}
    found: dict[str, Any] = {"epochs": epochs, "first_s": _first_s(plain)}
    for name, options in (("warm_s", {}), ("limited_s", {"maxRowsPerTrigger": "1000"})):
        given = {**plain, **options}
        reader = LimitedStreamReader(given, read_schema(given))
        start = reader.initialOffset()
        limit = ReadAllAvailable() if name == "warm_s" else reader.getDefaultReadLimit()
        took = []
        for _ in range(1 + calls):
            table.upsert(pa.table({"k": [1], "v": [1]}))
            before = time.perf_counter()
            reader.latestOffset(start, limit)
            took.append(time.perf_counter() - before)
        found[name] = spread(took[1:])
    return found


_FIRST = """
import json, sys, time
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import read_schema
given = json.loads(sys.argv[1])
before = time.perf_counter()
reader = LimitedStreamReader(given, read_schema(given))
reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
print(time.perf_counter() - before)
"""


def _first_s(given: Mapping[str, str]) -> float:
    """Return the seconds of a reader's first answer in a process that knows nothing of its table."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST, json.dumps(given)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def measure_many(folder: Path, counts: Sequence[int] = MANY) -> dict[str, Any]:
    """Time the offsets of so many inputs, one in a hundred of which moves from batch to batch.

    Returns
    -------
    dict
        By count and form (``plain``, ``compact``): ``bytes``, the longest text of an offset;
        ``write_s`` and ``read_s``, the time of making one and of reading it again.
    """
    found: dict[str, Any] = {}
    for count in counts:
        forms: dict[str, Offsets] = {
            "plain": PlainOffsets(),
            "compact": CompactOffsets(Bases(LocalStore(folder / f"bases-{count}"))),
        }
        found[str(count)] = {name: _lived(form, count) for name, form in forms.items()}
    return found


def _lived(offsets: Offsets, count: int) -> dict[str, Any]:
    draw = random.Random(count)
    names = [f"region={number % 100:03}/orders_{number:06}" for number in range(count)]
    positions = {name: _position(draw) for name in names}
    start, longest = Offset().to_json(), 0
    write_s, read_s = [], []
    for _ in range(_BATCHES):
        for name in draw.sample(names, max(1, count // 100)):
            positions[name] = _position(draw)
        before = time.perf_counter()
        end = offsets.write(Offset(positions=dict(positions)), start)
        write_s.append(time.perf_counter() - before)
        text = json.dumps(end, separators=(",", ":"))
        longest = max(longest, len(text))
        start = json.loads(text)
        before = time.perf_counter()
        positions = dict(offsets.read(start).positions)
        read_s.append(time.perf_counter() - before)
    return {"bytes": longest, "write_s": spread(write_s), "read_s": spread(read_s)}


def _position(draw: random.Random) -> Position:
    upper = draw.randrange(1, 1_000_000)
    table_id = f"{draw.getrandbits(32):08x}" * 4
    place = TableVersion(table_id=table_id, version=upper - 1, token=f"{draw.getrandbits(64):016x}")
    return replace(TablePosition.at_changes(1, upper), place=place).to_position()
