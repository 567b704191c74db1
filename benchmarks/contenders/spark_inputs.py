"""Many tables: one query over all of them, against a union of reads and against a query each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import transport
from benchmarks.contenders.spark import rows_of_many
from benchmarks.contenders.spark_ours import SparkUpsertflow
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "seq": pa.int64(), "v": pa.int64(), "s": pa.string()})
FIRST = 2
"""The first epoch that a read delivers: a table is made by one version and filled by another."""

STARTS_MAX = 5
"""Spark gives a Python process ten seconds to report, and a busy machine may need more."""


class SparkInputs(SparkUpsertflow):
    """``inputs=...`` with its defaults, of change feeds; tables of four columns, one of them text."""

    def open(self) -> None:
        self.spark.dataSource.register(transport.Nowhere)
        self._tables: list[Table] = []
        self._epoch = 0
        self._held: StreamingQuery | None = None

    def make_tables(self, count: int, rows: int) -> None:
        """Have so many tables, of so many rows each."""
        while len(self._tables) < count:
            place = str(Path(self._folder, "tables", f"t{len(self._tables):05d}"))
            table = Table.create(place, COLUMNS, keys=["k"], sequence_by=["seq"])
            table.upsert(_rows(rows, 0))
            assert table.log.head().upper == FIRST
            self._tables.append(table)

    def change(self, tables: list[int], rows: int, epochs: int = 1) -> None:
        """Append epochs of so many updates to some tables."""
        for _ in range(epochs):
            self._epoch += 1
            for index in tables:
                self._tables[index].upsert(_rows(rows, self._epoch))

    # -- two inputs against a union ------------------------------------------------------------

    def read_two(self, how: str) -> dict[str, float]:
        """Read all changes of the first two tables once, as `merge` or as `union`."""
        if how == "merge":
            rows = self._merged([0, 1])
        else:
            rows = self._single(0).unionByName(self._single(1))
        query, starts = _run_out(self._reading(rows, self._place(how)))
        batches = _batches_of(query)
        return {
            "seconds": sum(each["triggerExecution"] for each in batches) / 1000,
            "rows": sum(each["rows"] for each in batches),
            "starts": starts,
        }

    # -- the cost of a micro-batch -------------------------------------------------------------

    def hold(self, count: int) -> None:
        """Start a query over the first tables that stays, and let it catch up."""
        self.release()
        writer = self._merged(range(count)).writeStream.format("noop")
        writer = writer.option("checkpointLocation", self._place(f"held-{count}"))
        for _ in range(STARTS_MAX):
            self._held = writer.start()
            try:
                self._held.processAllAvailable()
            except StreamingQueryException as error:
                _require_late(error)
            else:
                return

    def round(self, dirty: list[int], rows: int) -> dict[str, float]:
        """Change some tables and let the query that is held deliver it; returns Spark's seconds."""
        assert self._held is not None
        last = max(each["batch"] for each in _batches_of(self._held))
        self.change(dirty, rows)
        self._held.processAllAvailable()
        found = [each for each in _batches_of(self._held) if each["batch"] > last]
        names = ("triggerExecution", "latestOffset", "addBatch")
        told = {f"{name}_s": sum(each[name] for each in found) / 1000 for name in names}
        return {**told, "batches": len(found)}

    def release(self) -> None:
        """Stop the query that is held, which must have run until now."""
        if self._held is not None:
            if not self._held.isActive:
                raise RuntimeError(f"the query ended: {self._held.exception()}")
            self._held.stop()
            self._held = None

    # -- one query against many ----------------------------------------------------------------

    def catch_up(self, tables: int, one_query: bool) -> dict[str, float]:
        """Let queries deliver what is new and end, all started at once; returns the seconds.

        Each goes on from its checkpoint of the last call.
        """
        before = time.perf_counter()
        if one_query:
            work = [self._reading(self._merged(range(tables)), self._place("one", keep=True))]
        else:
            work = [
                self._reading(self._single(index), self._place(f"own-{index}", keep=True))
                for index in range(tables)
            ]
        starts = _all_run_out(work)
        return {"seconds": time.perf_counter() - before, "starts": starts}

    # -- one write into many tables --------------------------------------------------------

    def write_many(self, tables: int, rows: int, way: str) -> dict[str, float]:
        """Write a batch into so many tables, by one write or by one of each; returns the seconds."""
        batch = rows_of_many(self.spark, tables, rows)
        root = f"{self._folder}/routed-{way.replace(' ', '-')}-{tables}"
        options = {"keys": "id", "allowUnordered": "true"}
        before = time.perf_counter()
        if way == "one write":
            writer = batch.write.format("upsertflow").mode("append").options(**options)
            writer.save(f"{root}/{{topic}}")
        else:
            for table in range(tables):
                own = batch.where(f"topic = 'topic-{table}'")
                writer = own.write.format("upsertflow").mode("append").options(**options)
                writer.save(f"{root}/topic-{table}")
        seconds = time.perf_counter() - before
        batch.unpersist()
        return {"seconds": seconds}

    def feed_many(self, tables: int, rows: int, way: str) -> None:
        """Append a batch to what queries read (`stream_many`): one folder of files, or one each.

        The tables of queries of one each are made here, of a row: as queries that takes minutes.
        """
        batch = rows_of_many(self.spark, tables, rows)
        if way == "one query":
            batch.coalesce(2).write.mode("append").parquet(self._feed_of(tables, way))
        else:
            files = batch.repartition("topic").write.mode("append")
            files.partitionBy("topic").parquet(self._feed_of(tables, way))
            columns = pa.schema({"id": pa.int64(), "v": pa.float64()})
            for table in range(tables):
                place = f"{self._feed_of(tables, way)}-lake/topic-{table}"
                one = pa.table([[0], [0.5]], schema=columns)
                Table.create(place, columns, keys=["id"]).upsert(one)
        batch.unpersist()

    def stream_many(self, tables: int, way: str) -> dict[str, float]:
        """Let queries write what is new into so many tables, and end; returns the seconds.

        One for all, or one of each table, all started at once. They go on from their checkpoints.
        """
        feed, columns = self._feed_of(tables, way), "id BIGINT, v DOUBLE"
        work = [
            (f"{feed}/topic=topic-{n}", columns, f"{feed}-lake/topic-{n}") for n in range(tables)
        ]
        if way == "one query":
            work = [(feed, f"topic STRING, {columns}", f"{feed}-lake/{{topic}}")]
        before = time.perf_counter()
        starts = _all_run_out([self._writing(*each) for each in work])
        return {"seconds": time.perf_counter() - before, "starts": starts}

    def _feed_of(self, tables: int, way: str) -> str:
        return f"{self._folder}/feed-{way.replace(' ', '-')}-{tables}"

    # -- a slow consumer -----------------------------------------------------------------------

    def hold_slow(self, rows_per_s: float) -> None:
        """Start a query over the first two tables whose sink takes so many rows per second and task."""
        self.release()
        writer = self._merged([0, 1]).writeStream.format("bench_nowhere")
        writer = writer.option("rows_per_s", rows_per_s)
        self._held = writer.option("checkpointLocation", self._place("slow")).start()

    # ------------------------------------------------------------------------------------------

    def _merged(self, tables: Any) -> DataFrame:
        names = [f"t{index:05d}" for index in tables]
        paths = {f"input.{name}.path": str(Path(self._folder, "tables", name)) for name in names}
        reader = self.spark.readStream.format("upsertflow").options(**paths)
        return self._changes(reader.option("inputs", ",".join(names))).load()

    def _single(self, table: int) -> DataFrame:
        reader = self._changes(self.spark.readStream.format("upsertflow"))
        return reader.load(str(Path(self._folder, "tables", f"t{table:05d}")))

    def _changes(self, reader: Any) -> Any:
        return reader.option("readChangeFeed", "true").option("startingVersion", FIRST)

    def _reading(self, rows: DataFrame, place: str) -> DataStreamWriter:
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", place)

    def _writing(self, feed: str, columns: str, path: str) -> DataStreamWriter:
        rows = self.spark.readStream.schema(columns).parquet(feed)
        writer = rows.writeStream.format("upsertflow").trigger(availableNow=True)
        writer = writer.options(path=path, keys="id", allowUnordered="true")
        return writer.option("checkpointLocation", self._place(path.replace("/", "-"), keep=True))

    def _place(self, name: str, *, keep: bool = False) -> str:
        return f"{self._folder}/checkpoints/{name}" + ("" if keep else f"-{time.time_ns()}")

    def close(self) -> None:
        self.release()
        super().close()


def _all_run_out(work: Sequence[DataStreamWriter]) -> int:
    """Start queries, all at once, and run each until all is done; returns their starts."""
    queries = []
    for writer in work:
        queries.append(writer.start())
        # Many that start at once might not be in time.
        while queries[-1].status["message"].startswith("Initializing"):
            time.sleep(0.02)
    starts = len(work)
    for writer, query in zip(work, queries, strict=True):
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            _require_late(error)
            starts += _run_out(writer)[1]
    return starts


def _run_out(writer: DataStreamWriter) -> tuple[StreamingQuery, int]:
    """Run a query until it has delivered all; returns also how often it was started."""
    for starts in range(1, STARTS_MAX + 1):
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            _require_late(error)
        else:
            return query, starts
    raise RuntimeError(f"a query did not run in {STARTS_MAX} attempts")


def _require_late(error: StreamingQueryException) -> None:
    """Raise unless a Python process only did not start in time."""
    if "failed to connect back" not in str(error):
        raise error


def _rows(rows: int, epoch: int) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    text = pa.array([f"{number:08d}" for number in range(rows)])
    constant = pa.array([epoch] * rows, pa.int64())
    return pa.table([numbers, constant, constant, text], schema=COLUMNS)


def _batches_of(query: StreamingQuery) -> list[dict[str, int]]:
    """Return number, rows and durations in milliseconds of the micro-batches that had some."""
    return [
        {**progress.durationMs, "batch": progress.batchId, "rows": progress.numInputRows}
        for progress in query.recentProgress
        if "addBatch" in progress.durationMs
    ]
