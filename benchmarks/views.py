"""What it costs to keep views when one row in a hundred changes, against computing them again.

python -m benchmarks.views --orders 10000000

Orders of customers, a tenth as many: *join* is each order with the country of its customer, *sum* the
number and the amount of each customer's orders. A hundredth of the orders gets another amount, three in ten
of these another customer, too; then one customer in a thousand moves. Both views follow as queries that
run all the time. Beside them, over the same rows: Spark computes each from Parquet files, DuckDB does
with all cores, and for the sum Spark's own stateful aggregation reads the same changes.

What counts is the work: the time of the micro-batches that hold the changes, or of the computation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.measure import Sampler, spread
from pyspark_upsertflow import agg, view
from spark_upsert.table import Table

ORDERS = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})
PER_CUSTOMER = 10
LOADED_AT_ONCE = 1_000_000
COUNTRIES = 200
MOVED = 1_000
"""One customer in so many moves in a round."""

JOIN = "SELECT o.*, c.country FROM orders o LEFT JOIN customers c ON o.customer_id = c.id"
SUM = "SELECT customer_id, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer_id"


class Rows:
    """Draws the rows of both tables; the same seed gives the same rows."""

    def __init__(self, orders: int) -> None:
        self.orders, self.customers = orders, orders // PER_CUSTOMER
        self._dice = np.random.Generator(np.random.PCG64(1))
        self._owner = self._dice.integers(self.customers, size=orders)

    def first_orders(self) -> Iterator[pa.Table]:
        for begin in range(0, self.orders, LOADED_AT_ONCE):
            keys = np.arange(begin, min(begin + LOADED_AT_ONCE, self.orders))
            yield self._orders(keys)

    def first_customers(self) -> pa.Table:
        return self._customers(np.arange(self.customers))

    def changed_orders(self) -> pa.Table:
        keys = self._dice.choice(self.orders, size=self.orders // 100, replace=False)
        moved = keys[: len(keys) * 3 // 10]
        self._owner[moved] = self._dice.integers(self.customers, size=len(moved))
        return self._orders(keys)

    def changed_customers(self) -> pa.Table:
        count = max(1, self.customers // MOVED)
        return self._customers(self._dice.choice(self.customers, size=count, replace=False))

    def _orders(self, keys: Any) -> pa.Table:
        amounts = self._dice.integers(10_000, size=len(keys))
        return pa.table([keys, self._owner[keys], amounts], schema=ORDERS)

    def _customers(self, keys: Any) -> pa.Table:
        drawn = self._dice.integers(COUNTRIES, size=len(keys))
        return pa.table([keys, [f"country-{number}" for number in drawn]], schema=CUSTOMERS)


def measure(folder: Path, *, orders: int, rounds: int) -> dict[str, Any]:
    """Keep both views over some rounds of changes, with everybody else in turn.

    Returns
    -------
    dict
        By view, then by who keeps it: spreads of seconds over the rounds but the first; and ``memory``,
        bytes of the largest Python worker without mapped files, in the first of these rounds and in the last.
    """
    rows = Rows(orders)
    tables = _make(folder, rows)
    spark = _session(folder)
    names = ("join", "sum", "stateful")
    queries: dict[str, StreamingQuery] = {}
    sampler = Sampler(os.getpid())
    took: dict[str, list[float]] = {}
    memory: list[int] = []
    try:
        # One after the other: each begins with all rows.
        for name, query in zip(names, _queries(spark, folder), strict=True):
            queries[name] = query
            query.processAllAvailable()
        for _ in range(1 + rounds):
            done = {name: _batches(query) for name, query in queries.items()}
            sampler.take()
            tables["orders"].append(rows.changed_orders())
            tables["customers"].append(rows.changed_customers())
            for name, query in queries.items():
                # Twice: a question that was under way when the rows came ends the first wait.
                query.processAllAvailable()
                query.processAllAvailable()
                took.setdefault(name, []).append(_seconds_behind(query, done[name]))
            memory.append(sampler.take()["python_anonymous"])
            for name, compute in _again(spark, folder).items():
                took.setdefault(name, []).append(_timed(compute))
        same = _same(spark, folder)
    finally:
        sampler.close()
        for query in queries.values():
            query.stop()
    told = {name: spread(seconds[1:]) for name, seconds in took.items()}
    return {
        "orders": orders,
        "join": {
            "upsertflow": told["join"],
            "Spark, again from Parquet": told["spark join"],
            "DuckDB, again from Parquet": told["duckdb join"],
        },
        "sum": {
            "upsertflow": told["sum"],
            "Spark, again from Parquet": told["spark sum"],
            "Spark's stateful aggregation": told["stateful"],
            "DuckDB, again from Parquet": told["duckdb sum"],
        },
        "memory": {"first": memory[1], "last": memory[-1]},
        "same": same,
    }


def _make(folder: Path, rows: Rows) -> dict[str, Table]:
    """Make both tables, and the same rows as Parquet files."""
    orders = Table.create(
        str(folder / "orders"),
        ORDERS,
        keys=["order_id"],
        properties={"indexBy": "customer_id"},
    )
    (folder / "parquet" / "orders").mkdir(parents=True)
    for number, part in enumerate(rows.first_orders()):
        orders.append(part)
        pq.write_table(part, folder / "parquet" / "orders" / f"{number}.parquet")
    customers = Table.create(str(folder / "customers"), CUSTOMERS, keys=["id"])
    first = rows.first_customers()
    customers.append(first)
    pq.write_table(first, folder / "parquet" / "customers.parquet")
    for table in (orders, customers):
        table.compact()
    return {"orders": orders, "customers": customers}


def _queries(spark: SparkSession, folder: Path) -> Iterator[StreamingQuery]:
    orders, customers = view(str(folder / "orders")), view(str(folder / "customers"))
    joined = orders.join(customers, {"customer_id": "id"}, how="left").stream(spark)
    yield _into_nothing(joined, folder / "checkpoint-join")
    summed = orders.group_by("customer_id").agg(n=agg.count(), total=agg.sum("amount"))
    yield summed.keep(spark, str(folder / "sums"), str(folder / "checkpoint-sum"))
    changes = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    signed = changes.load(str(folder / "orders")).selectExpr(
        "customer_id", "_diff AS n", "_diff * amount AS total"
    )
    stateful = signed.groupBy("customer_id").sum("n", "total")
    yield _into_nothing(stateful, folder / "checkpoint-stateful", "update")


def _into_nothing(rows: DataFrame, checkpoint: Path, mode: str = "append") -> StreamingQuery:
    writer = rows.writeStream.format("noop").outputMode(mode)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _batches(query: StreamingQuery) -> dict[int, float]:
    """Return how long each batch with rows took, by its number."""
    return {
        # A query that is idle tells the number of the batch that it has not begun.
        each["batchId"]: each["durationMs"]["triggerExecution"] / 1000
        for each in query.recentProgress
        if each["numInputRows"]
    }


def _seconds_behind(query: StreamingQuery, known: dict[int, float]) -> float:
    """Return how long the batches took that are not known yet."""
    found = [took for batch, took in _batches(query).items() if batch not in known]
    assert found, "the changes came in no batch"
    return sum(found)


def _again(spark: SparkSession, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return who computes both views from files."""
    parquet = folder / "parquet"
    own = duckdb.connect()
    files = {"orders": parquet / "orders" / "*.parquet", "customers": parquet / "customers.parquet"}
    for name, path in files.items():
        own.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
        spark.read.parquet(str(path)).createOrReplaceTempView(name)

    def by_spark(query: str) -> Callable[[], Any]:
        return lambda: spark.sql(query).write.format("noop").mode("overwrite").save()

    def by_duckdb(query: str) -> Callable[[], Any]:
        return lambda: own.execute(query).to_arrow_table()

    return {
        "spark join": by_spark(JOIN),
        "duckdb join": by_duckdb(JOIN),
        "spark sum": by_spark(SUM),
        "duckdb sum": by_duckdb(SUM),
    }


def _same(spark: SparkSession, folder: Path) -> bool:
    """Return whether the kept sums are those of the rows."""
    read = spark.read.format("upsertflow")
    read.load(str(folder / "orders")).createOrReplaceTempView("orders")
    wanted = spark.sql(SUM)
    kept = read.load(str(folder / "sums")).selectExpr(
        "customer_id", "n", "CAST(total AS BIGINT) AS total"
    )
    return bool(kept.exceptAll(wanted).isEmpty() and kept.count() == wanted.count())


def _timed(compute: Callable[[], Any]) -> float:
    before = time.perf_counter()
    compute()
    return time.perf_counter() - before


def _session(folder: Path) -> SparkSession:
    # The process that looks for sources heeds no configuration.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    cores = os.cpu_count() or 1
    found = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    found.sparkContext.setLogLevel("ERROR")
    return found


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--orders", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), orders=options.orders, rounds=options.rounds)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
