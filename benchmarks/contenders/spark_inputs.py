"""Many tables: one query over all of them, against a union of reads and against a query each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import transport
from benchmarks.contenders.spark import rows_of_many
from benchmarks.contenders.spark_ours import SparkUpsertflow
from spark_upsert.table import Table

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
            table.append(_rows(rows, 0))
            assert table.log.head().upper == FIRST
            self._tables.append(table)

    def change(self, tables: list[int], rows: int, epochs: int = 1) -> None:
        """Append epochs of so many updates to some tables."""
        for _ in range(epochs):
            self._epoch += 1
            for index in tables:
                self._tables[index].append(_rows(rows, self._epoch))

    # -- two inputs against a union ------------------------------------------------------------

    def read_two(self, how: str) -> dict[str, float]:
        """Read all changes of the first two tables once, as `merge` or as `union`."""
        if how == "merge":
            rows = self._merged([0, 1])
        else:
            rows = self._single(0).unionByName(self._single(1))
        query, starts = self._run_out(rows, self._place(how))
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
            work = [(self._merged(range(tables)), self._place("one", keep=True))]
        else:
            work = [
                (self._single(index), self._place(f"own-{index}", keep=True))
                for index in range(tables)
            ]
        queries = []
        for rows, place in work:
            queries.append(self._started(rows, place))
            # Many that start at once might not be in time.
            while queries[-1].status["message"].startswith("Initializing"):
                time.sleep(0.02)
        starts = len(work)
        for (rows, place), query in zip(work, queries, strict=True):
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                _require_late(error)
                starts += self._run_out(rows, place)[1]
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

    def _started(self, rows: DataFrame, place: str) -> StreamingQuery:
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        return writer.option("checkpointLocation", place).start()

    def _run_out(self, rows: DataFrame, place: str) -> tuple[StreamingQuery, int]:
        """Run a query until it has delivered all; returns also how often it was started."""
        for starts in range(1, STARTS_MAX + 1):
            query = self._started(rows, place)
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                _require_late(error)
            else:
                return query, starts
        raise RuntimeError(f"a query did not run in {STARTS_MAX} attempts")

    def _place(self, name: str, *, keep: bool = False) -> str:
        return f"{self._folder}/checkpoints/{name}" + ("" if keep else f"-{time.time_ns()}")

    def close(self) -> None:
        self.release()
        super().close()


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
