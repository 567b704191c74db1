"""Two queries in one program: a feed into a table, and that table's changes into another.

The tests run this program where a session of their own will not do: on a cluster, and under
`chaos`, which kills it. It may be started again and again on the same folder, and ends when
both tables have all that the feed holds.

    <folder>/feed               files of commands, one per micro-batch
    <folder>/table              what they amount to
    <folder>/copy               the same, by way of the changelog
    <folder>/checkpoints/...
    <folder>/flowed             the copy through a flow, of a Connect session
    <folder>/started            appears when the queries start; names the kind of session
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_upsertflow
from integration.promises import assert_sound, epochs_of, rows_of
from integration.queries import Feed, end, upserts
from integration.tables import columns
from pyspark_upsertflow import flow as flows
from spark_upsert.core.schema import Scope
from spark_upsert.flow import (
    Flow,
    Legacy,
    PythonFunction,
    TableSink,
    TableSource,
    expanded,
    fused,
)
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from tests.support.model import Command, Model

COMMANDS = columns(k=pa.int64(), v=pa.int64(), seq=pa.int64(), gone=pa.bool_())
GATES = ("gate-write", "gate-read")
KEYS = 40
END_SECONDS = 1200
"""What runs longer than this hangs, however much was left for the last run to do."""

ROWS_MAX = 200
"""Enough to keep several tasks busy, few enough that keys meet in every batch."""


def feed_of(folder: Path) -> Feed:
    """Return the feed below a folder, with the files that it has."""
    feed = Feed(folder / "feed", COMMANDS)
    feed.count = len(list(feed.folder.glob("*.parquet")))
    return feed


def add_commands(folder: Path, seed: int, *, batches: int) -> list[list[Command]]:
    """Append micro-batches of random commands to the feed; no two have the same order key."""
    feed = feed_of(folder)
    dice = random.Random(f"{seed}/{feed.count}")
    added = []
    for number in range(feed.count, feed.count + batches):
        count = dice.randrange(1, ROWS_MAX)
        # Late by up to three batches, so that some commands are stale.
        orders = dice.sample(range(ROWS_MAX), count)
        late = [(number - dice.randrange(4)) * ROWS_MAX + order for order in orders]
        # The last digits are the batch's own.
        added.append(
            [
                Command(dice.randrange(KEYS), dice.choice([None, 1, 2, 3]), order * 10_000 + number)
                for order in late
            ]
        )
        feed.add(
            [{"k": c.key, "v": c.value, "seq": c.order, "gone": c.value is None} for c in added[-1]]
        )
    return added


def run(spark: SparkSession, folder: Path, *, gates: bool = False, publishes: bool = False) -> None:
    """Bring both tables up to the feed; with gates, one task of each waits to be killed."""
    mirrored = {"publish": "delta", "publishChangeFeed": "true"} if publishes else {}
    # Where a row of a key goes differs from attempt to attempt.
    rows = feed_of(folder).stream(spark).repartition(3, F.rand())
    if gates:
        rows = gated(rows, folder / GATES[0])
    written = upserts(
        rows,
        folder / "table",
        folder / "checkpoints" / "table",
        keys="k",
        sequenceBy="seq",
        applyAsDeletes="gone",
        columnList="k,v",
        **mirrored,
    )
    # The second query needs a table to read.
    ensure_table(folder)
    changes = (
        spark.readStream.format("upsertflow")
        .options(readChangeFeed="true", startingVersion="earliest", maxEpochsPerTrigger=2)
        .load(str(folder / "table"))
    )
    if gates:
        changes = gated(changes, folder / GATES[1])
    copied = upserts(
        changes,
        folder / "copy",
        folder / "checkpoints" / "copy",
        envelope="changelog",
        keys="k",
        sequenceBy="_commit_version",
        **mirrored,
    )
    (folder / "started").write_text(type(spark).__module__)
    copying = copied.start()
    end(written.trigger(availableNow=True).start(), seconds=END_SECONDS)
    copying.processAllAvailable()
    copying.stop()


def flowed(spark: SparkSession, folder: Path) -> None:
    """Bring the copy into a table of its own, through two regions of a flow."""
    table = TableSource(str(folder / "copy"))
    columns = Table.open(table.path).snapshot().schema
    flow = Flow()
    rows = flow.source("copy", table, schema=columns)
    for name, width, keys in (("in-turn", 3, None), ("by-key", 2, ("k",))):
        with flow.parallel(name, width, partition_by=keys):
            rows = flow.operator("same", PythonFunction(iter, columns), rows)
    flow.sink("kept", TableSink(str(folder / "flowed"), {"keys": "k"}), rows)
    flows.run(spark, fused(expanded(flow.graph()), Legacy()))


def gated(rows: DataFrame, gate: Path) -> DataFrame:
    """Pass rows on; the first task ever that has some of them stops behind the first.

    It notes its process in the file `gate`, and is to be killed there: what feeds it has been read
    in part, and what it feeds has been written in part.
    """
    path = str(gate.resolve())

    def stop_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            yield batch.slice(0, 1)
            try:
                noted = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                pass
            else:
                os.write(noted, f"{os.getpid()}\n".encode())
                time.sleep(END_SECONDS)
            yield batch.slice(1)

    return rows.mapInArrow(stop_once, rows.schema)


def ensure_table(folder: Path) -> None:
    """Make the first table as the query would, unless it is there."""
    from spark_upsert.core.schema import TableSchema
    from spark_upsert.store.open import open_store

    schema = columns(k=pa.int64(), v=pa.int64())
    Table(open_store(str(folder / "table"))).ensure(
        TableSchema.of(schema, keys=["k"], order=[pa.field("seq", pa.int64())])
    )


def commits(folder: Path) -> int:
    """Return how many versions both tables have."""
    paths = [folder / name for name in ("table", "copy")]
    return sum(len(list((path / "_log").glob("*.json"))) for path in paths)


def check(folder: Path, batches: list[list[Command]]) -> None:
    """Check that nothing is lost and nothing is there twice.

    Final contents alone would not tell: applying upserts twice changes nothing. So the rows of
    each epoch are counted, too.
    """
    table, copy = assert_sound(folder / "table"), folder / "copy"
    model = Model(Scope.TABLE)
    for batch in batches:
        model.append(batch)
    assert rows_of(folder / "table") == {(k,): (v,) for k, v in model.rows().items()}
    taken = [Counters.from_json(epoch.counters).rows for epoch in epochs_of(folder / "table")]
    require_whole_batches(taken, [len(batch) for batch in batches])

    assert_sound(copy)
    assert rows_of(copy) == rows_of(folder / "table")
    kinds = table.changes().column("_change_type").to_pylist()
    copied = [Counters.from_json(epoch.counters) for epoch in epochs_of(copy)]
    assert sum(each.rows for each in copied) == len(kinds), "a change is lost or there twice"
    assert sum(each.skipped for each in copied) == kinds.count("update_preimage")


def require_whole_batches(taken: list[int], batches: list[int]) -> None:
    """Check that epochs hold each batch once, whole and in order, by their numbers of rows.

    Most often an epoch is a batch. Where Spark is killed behind the note of its file source that a
    file is next, and before its own note of the micro-batch, the file joins the following one.
    """
    ends, expected = list(accumulate(taken)), list(accumulate(batches))
    is_whole = set(ends) <= set(expected) and ends[-1:] == expected[-1:]
    assert is_whole, f"an epoch is lost or there twice: {taken} of the batches {batches}"


def session(master: str, *, connect: bool) -> SparkSession:
    """Return a session of this program's own, the classic one or by way of a Connect server."""
    builder = SparkSession.builder
    builder = (
        (builder.remote(master) if connect else builder.master(master))
        .appName("upsertflow chain")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executor.memory", "1g")
        # Short-lived: what the second compiler would gain is never earned back.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    )
    if "PYTHONPATH" in os.environ:
        builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    return builder.getOrCreate()


def program(about: str | None, run: Callable[[SparkSession, Path], object]) -> None:
    """Run a program that takes a folder and a master, in a session of its own."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    spark = session(given.master, connect=False)
    try:
        run(spark, given.folder.absolute())
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--connect", action="store_true", help="start a server, be its client")
    parser.add_argument("--gates", action="store_true", help="stop one task of each query")
    parser.add_argument("--publish", action="store_true", help="publish both tables")
    given = parser.parse_args()
    spark = session(given.master, connect=given.connect)
    try:
        run(spark, given.folder, gates=given.gates, publishes=given.publish)
        if given.connect:
            merges = pyspark_upsertflow.compact(spark, str(given.folder / "copy"), full=True)
            (given.folder / "merges").write_text(str(merges))
            flowed(spark, given.folder)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
