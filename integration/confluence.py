"""Several tables in one query into one table, to be killed by `chaos` as `integration.chain` is.

Their changes flow together, each with the name of its input, and go through our sink. What was
written must then hold each change of each input once, and those of an input in its order.

    <folder>/inputs/<name>      the tables that are read
    <folder>/table              what they amount to, by name and key
    <folder>/checkpoint
    <folder>/started            appears when the query starts
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from integration.chain import session
from integration.promises import assert_sound, counters_of, rows_of
from integration.queries import upserts
from integration.tables import append, make_table
from spark_upsert.table import Table

KEYS = 40
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


def run(spark: SparkSession, folder: Path) -> None:
    """Bring the table up to its inputs, however much is added to them meanwhile."""
    paths = inputs_of(folder)
    changes = (
        spark.readStream.format("upsertflow")
        .options(readChangeFeed="true", startingVersion="earliest")
        .options(inputs=",".join(paths), mergeColumns="_input")
        .options(**{f"input.{name}.path": str(path) for name, path in paths.items()})
        .options(maxEpochsPerTrigger=EPOCHS_PER_BATCH)
        .load()
        .where("_change_type != 'update_preimage'")
        .withColumn("gone", F.expr("_change_type = 'delete'"))
        .withColumnsRenamed({"_input": "input", "_commit_version": "version"})
    )
    written = upserts(
        changes,
        folder / "table",
        folder / "checkpoint",
        keys="input,k",
        sequenceBy="version",
        applyAsDeletes="gone",
        columnList="input,k,v,version",
    )
    (folder / "started").write_text(type(spark).__module__)
    query = written.start()
    query.processAllAvailable()
    query.stop()


def check(folder: Path) -> str:
    """Check that each change came once and in the order of its input; returns how many there were.

    Contents alone would not tell: applying a change twice changes nothing, and a change that came
    behind a later one of its key would only be counted as stale.
    """
    table = assert_sound(folder / "table")
    expected: dict[tuple[str, int], str] = {}
    count = 0
    for name, path in inputs_of(folder).items():
        expected |= {(name, k): v for (k,), (v,) in rows_of(path).items()}
        kinds = Table.open(str(path)).changes().column("_change_type").to_pylist()
        count += len(kinds) - kinds.count("update_preimage")
    assert {key: v for key, (v, _) in rows_of(folder / "table").items()} == expected
    counters = counters_of(folder / "table")
    assert counters.rows == count, "a change is lost or there twice"
    assert not counters.stale, f"{counters.stale} changes came behind later ones of their keys"
    require_order(table.changes())
    batches = table.log.head().version
    return f"{batches} micro-batches, {count} changes of {len(inputs_of(folder))} inputs"


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
    given = parser.parse_args()
    spark = session(given.master, connect=False)
    try:
        run(spark, given.folder)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
