"""Several tables in one query into one table, to be killed by `chaos` as `integration.chain` is.

Their changes flow together, each with the name of its input, and go through our sink. What was
written must then hold each change of each input once, and those of an input in its order. An
exact order is written down: a row for each change, the key of which is its number.

    <folder>/inputs/<name>      the tables that are read
    <folder>/table              what they amount to, by name and key
    <folder>/checkpoint
    <folder>/started            appears when the query starts
"""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from integration.chain import session
from integration.promises import assert_sound, counters_of, rows_of
from integration.queries import upserts
from integration.tables import append, make_table
from spark_upsert.table.table import Table

KEYS = 40
ROWS_PER_BATCH = 25
"""Of an exact order, which may be cut anywhere: most often within an epoch of an input."""

EXACT: dict[str, dict[str, str]] = {
    "concat": {"merge": "concat"},
    "roundrobin": {"merge": "roundrobin"},
    "seeded": {"merge": "interleave", "interleaveSeed": "7"},
}
"""The options of each exact order."""

LIVE = "interleave"

EPOCHS_PER_BATCH = 2
"""Fewer than a round adds, so that it takes several micro-batches, each of one or two inputs."""


def inputs_of(folder: Path) -> dict[str, Path]:
    """Return the inputs below a folder by name."""
    return {path.name: path for path in sorted((folder / "inputs").iterdir())}


def add_epochs(folder: Path, seed: int, *, inputs: int, epochs: int) -> None:
    """Append epochs of random changes to each input; the first time make them."""
    for number in range(inputs):
        path = folder / "inputs" / f"input{number}"
        table = Table.open(str(path)) if path.exists() else make_table(path)
        for _ in range(epochs):
            version = table.log.head().upper
            dice = random.Random(f"{seed}/{number}/{version}")
            keys = dice.sample(range(KEYS), dice.randrange(1, KEYS))
            append(table, {k: dice.choice([None, f"{version}", f"{version}!"]) for k in keys})


def run(spark: SparkSession, folder: Path, merge: str = LIVE) -> None:
    """Bring the table up to its inputs, however much is added to them meanwhile."""
    paths = inputs_of(folder)
    reader = (
        spark.readStream.format("upsertflow")
        .options(readChangeFeed="true", startingVersion="earliest", inputs=",".join(paths))
        .options(**{f"input.{name}.path": str(path) for name, path in paths.items()})
    )
    flow = live if merge == LIVE else partial(numbered, order=EXACT[merge])
    written = flow(reader, folder / "table", folder / "checkpoint")
    (folder / "started").write_text(type(spark).__module__)
    query = written.start()
    query.processAllAvailable()
    query.stop()


def live(reader: DataStreamReader, table: Path, checkpoint: Path) -> DataStreamWriter:
    """Return the query that keeps the rows of all inputs."""
    changes = (
        reader.options(mergeColumns="_input", maxEpochsPerTrigger=EPOCHS_PER_BATCH)
        .load()
        .selectExpr("_input AS input", "k", "v", "_commit_version AS version", "_change_type")
    )
    options = {"keys": "input,k", "sequenceBy": "version", "sequenceScope": "table"}
    return upserts(changes, table, checkpoint, envelope="changelog", **options)


def numbered(
    reader: DataStreamReader, table: Path, checkpoint: Path, *, order: dict[str, str]
) -> DataStreamWriter:
    """Return the query that writes an exact order down."""
    changes = (
        reader.options(mergeColumns="_input,_merge_seq", maxRowsPerTrigger=ROWS_PER_BATCH, **order)
        .load()
        .withColumnsRenamed({"_input": "input", "_merge_seq": "seq", "_commit_version": "version"})
        .withColumnRenamed("_change_type", "kind")
    )
    return upserts(changes, table, checkpoint, keys="seq", columnList="seq,input,version,kind,k,v")


def check(folder: Path) -> str:
    """Check that each change came once and in the order of its input; returns how many there were.

    Contents alone would not tell: applying a change twice changes nothing, and a change that came
    behind a later one of its key would only be counted as stale.
    """
    table = assert_sound(folder / "table")
    changes = {name: Table.open(str(p)).changes() for name, p in inputs_of(folder).items()}
    is_numbered = table.log.head().schema.keys == ("seq",)
    count = _check_numbers(table, changes) if is_numbered else _check_rows(folder, table, changes)
    counters = counters_of(folder / "table")
    assert counters.rows == count, "a change is lost or there twice"
    assert not counters.stale, f"{counters.stale} changes came behind later ones of their keys"
    batches = table.log.head().version
    return f"{batches} micro-batches, {count} changes of {len(changes)} inputs"


def _check_rows(folder: Path, table: Table, changes: dict[str, pa.Table]) -> int:
    """Check the rows of all inputs; returns how many changes make them."""
    expected = {
        (name, k): v for name, p in inputs_of(folder).items() for (k,), (v,) in rows_of(p).items()
    }
    assert {key: v for key, (v, _) in rows_of(folder / "table").items()} == expected
    require_order(table.changes())
    kinds = [kind for each in changes.values() for kind in each.column("_change_type").to_pylist()]
    return len(kinds)


def _check_numbers(table: Table, changes: dict[str, pa.Table]) -> int:
    """Check an order that was written down; returns how many changes it numbers."""
    rows = sorted(table.snapshot().to_pylist(), key=lambda row: row["seq"])
    assert [row["seq"] for row in rows] == list(range(len(rows))), "a number is lost"
    for name, each in changes.items():
        own = [row for row in rows if row["input"] == name]
        versions = [row["version"] for row in own]
        assert versions == sorted(versions), f"{name} is not in order"
        names = ("_commit_version", "_change_type", "k", "v")
        came = sorted((row["version"], row["kind"], row["k"], repr(row["v"])) for row in own)
        columns = (each.column(column).to_pylist() for column in names)
        expected = sorted((*what, repr(v)) for *what, v in zip(*columns, strict=True))
        assert came == expected, f"changes of {name} are lost or there twice"
    return len(rows)


def require_order(changes: pa.Table) -> None:
    """Check that an epoch of an input is in one micro-batch, and a later one never before it."""
    came = changes.filter(pc.equal(changes.column("_diff"), 1))
    columns = (came.column(name).to_pylist() for name in ("input", "_commit_version", "version"))
    latest: dict[str, int] = {}
    for name, batch, epoch in sorted(set(zip(*columns, strict=True))):
        before = latest.get(name, -1)
        assert epoch > before, f"{name}: epoch {epoch} in batch {batch} behind epoch {before}"
        latest[name] = epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--merge", choices=[LIVE, *EXACT], default=LIVE)
    given = parser.parse_args()
    spark = session(given.master, connect=False)
    try:
        run(spark, given.folder, given.merge)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
