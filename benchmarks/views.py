"""What it costs to keep views when one row in a hundred changes, against computing them again.

python -m benchmarks.views --orders 10000000

Orders of customers, a tenth as many: *join* is each order with the country of its customer, *sum* the
number and the amount of each customer's orders. A hundredth of the orders gets another amount, three in ten
of these another customer, too; then one customer in a thousand moves. Each view follows as a query that
runs all the time, alone on the machine; and so, in turn: Spark's own stateful aggregation of the same
changes, Spark and DuckDB that compute the view from Parquet files, thrown away or written as Parquet, with
all cores, and `refresh`, which keeps the sums in this process, without Spark.

What counts is the work: the time of the micro-batches that hold the changes, or of the computation. What a
micro-batch costs that has next to nothing to do is told beside it: nothing that goes through Spark is below it.

Last one query keeps groups of the join over hundreds of small rounds, while somebody compacts and expires the
tables: what its processes take then is to be what they took before.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.measure import Sampler, spread
from benchmarks.session import session
from pyspark_upsertflow import agg, view
from pyspark_upsertflow.views import SparkView
from spark_upsert.table.table import Table

ORDERS = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})
PER_CUSTOMER = 10
LOADED_AT_ONCE = 1_000_000
COUNTRIES = 200
MOVED = 1_000
"""One customer in so many moves in a round."""

WARM_UP = 2
"""Rounds that do not count, of everybody: Java compiles what is run often."""

LIVED_ORDERS, LIVED_CHANGED, LIVED_MOVED = 400_000, 20_000, 40
"""Orders of the long run, and how many of them and of their customers change in a round."""

LIVED_CARED_FOR = 10
"""Rounds of the long run behind which its tables are compacted and expired."""

EVERY = "1 second"
"""How often a query looks for changes: those of a round mostly come in one micro-batch."""

JOIN = "SELECT o.*, c.country FROM orders o LEFT JOIN customers c ON o.customer_id = c.id"
SUM = "SELECT customer_id, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer_id"


class Took(NamedTuple):
    """What a round took."""

    seconds: float
    cpu_s: float


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


def measure(folder: Path, *, orders: int, rounds: int, lived: int = 0) -> dict[str, Any]:
    """Keep both views over some rounds of changes, everybody alone and in turn.

    Returns
    -------
    dict
        By view, then by its keeper: spreads of seconds over the rounds that count, and below
        ``cpu_s`` of processor time, of all processes; ``floor``, those of a micro-batch of one row; ``memory``, bytes of the largest Python worker without mapped
        files, in the first of these rounds and in the last; ``lived``, what a long run takes (`_lived`),
        if it has rounds; ``not used again``, spreads of both views where Spark makes a process of Python for
        each task; and ``same``, whether what was kept is what the rows say.
    """
    rows = Rows(orders)
    _make(folder, rows)
    spark = _session(folder)
    took: dict[str, list[Took]] = {}
    peaks: list[list[int]] = []
    same: list[bool] = []
    count = WARM_UP + rounds
    for name, start in QUERIES.items():
        with _copied(folder, rows) as (own, changes):
            took[name], peak = _followed(start(spark, own), own, changes, count)
            peaks.append(peak)
            if name == "sum":
                same.append(_same(spark, own))
    with _copied(folder, rows) as (own, changes):
        took["refresh"] = _refreshed(own, changes, count)
        same.append(_same(spark, own))
    for name, compute in _again(spark, folder).items():
        took[name] = [_timed(compute) for _ in range(count)]
    took["floor"] = _floor(spark, folder, count)
    told = {name: _spread(each[WARM_UP:]) for name, each in took.items()}
    long_run = {"lived": _lived(spark, folder / "lived", lived)} if lived else {}
    spark.stop()
    spark = _session(folder, is_used_again=False)
    anew = {}
    for name in ("join", "sum"):
        with _copied(folder, rows) as (own, changes):
            anew[name] = _spread(
                _followed(QUERIES[name](spark, own), own, changes, count)[0][WARM_UP:]
            )
    return {
        "orders": orders,
        **long_run,
        "not used again": anew,
        "join": {
            "upsertflow": told["join"],
            "Spark, again from Parquet": told["spark join"],
            "upsertflow, kept in a table": told["kept join"],
            "Spark, again from Parquet, and written as Parquet": told["spark join, written"],
            "DuckDB, again from Parquet": told["duckdb join"],
            "DuckDB, again from Parquet, and written as Parquet": told["duckdb join, written"],
        },
        "sum": {
            "upsertflow": told["sum"],
            "upsertflow, in one process by `refresh`": told["refresh"],
            "Spark, again from Parquet": told["spark sum"],
            "Spark, again from Parquet, and written as Parquet": told["spark sum, written"],
            "Spark's stateful aggregation": told["stateful"],
            "DuckDB, again from Parquet": told["duckdb sum"],
            "DuckDB, again from Parquet, and written as Parquet": told["duckdb sum, written"],
        },
        "floor": told["floor"],
        "memory": {
            "first": max(peak[WARM_UP] for peak in peaks),
            "last": max(peak[-1] for peak in peaks),
        },
        "same": all(same),
    }


def _make(folder: Path, rows: Rows) -> None:
    """Make both tables, and the same rows as Parquet files."""
    orders = Table.create(
        str(folder / "tables" / "orders"),
        ORDERS,
        keys=["order_id"],
        properties={"indexBy": "customer_id"},
    )
    (folder / "parquet" / "orders").mkdir(parents=True)
    for number, part in enumerate(rows.first_orders()):
        orders.upsert(part)
        pq.write_table(part, folder / "parquet" / "orders" / f"{number}.parquet")
    customers = Table.create(str(folder / "tables" / "customers"), CUSTOMERS, keys=["id"])
    first = rows.first_customers()
    customers.upsert(first)
    pq.write_table(first, folder / "parquet" / "customers.parquet")
    for table in (orders, customers):
        table.compact()


@contextmanager
def _copied(folder: Path, rows: Rows) -> Iterator[tuple[Path, Rows]]:
    """Lend the tables as they were made, and what draws the same changes for everybody."""
    own = folder / "copy"
    shutil.copytree(folder / "tables", own)
    try:
        yield own, copy.deepcopy(rows)
    finally:
        shutil.rmtree(own)


def _change(folder: Path, rows: Rows) -> None:
    Table.open(str(folder / "orders")).upsert(rows.changed_orders())
    Table.open(str(folder / "customers")).upsert(rows.changed_customers())


def _followed(
    query: StreamingQuery, folder: Path, rows: Rows, rounds: int
) -> tuple[list[Took], list[int]]:
    """Return how long a query worked in each round, and how much memory a worker had."""
    sampler = Sampler(os.getpid())
    took, memory = [], []
    try:
        query.processAllAvailable()
        for _ in range(rounds):
            done = _batches(query)
            sampler.take()
            before = _cpu_below()
            _change(folder, rows)
            # Twice: a question that was under way when the rows came ends the first wait.
            query.processAllAvailable()
            query.processAllAvailable()
            took.append(Took(_seconds_behind(query, done), _spent(before)))
            memory.append(sampler.take()["python_anonymous"])
    finally:
        sampler.close()
        query.stop()
    return took, memory


def _refreshed(folder: Path, rows: Rows, rounds: int) -> list[Took]:
    """Return how long each round takes in this process."""
    summed, path = _summed(folder), str(folder / "sums")
    summed.refresh(path)
    took = []
    for _ in range(rounds):
        _change(folder, rows)
        took.append(_timed(lambda: summed.refresh(path)))
    return took


def _join(spark: SparkSession, folder: Path) -> StreamingQuery:
    return _into_nothing(_joined(folder).stream(spark), folder / "checkpoint")


def _kept_join(spark: SparkSession, folder: Path) -> StreamingQuery:
    return _joined(folder).keep(
        spark, str(folder / "kept"), str(folder / "checkpoint"), every=EVERY
    )


def _joined(folder: Path) -> SparkView:
    orders, customers = view(str(folder / "orders")), view(str(folder / "customers"))
    return orders.join(customers, {"customer_id": "id"}, how="left")


def _sum(spark: SparkSession, folder: Path) -> StreamingQuery:
    return _summed(folder).keep(
        spark, str(folder / "sums"), str(folder / "checkpoint"), every=EVERY
    )


def _summed(folder: Path) -> SparkView:
    orders = view(str(folder / "orders"))
    return orders.group_by("customer_id").agg(n=agg.count(), total=agg.sum("amount"))


def _stateful(spark: SparkSession, folder: Path) -> StreamingQuery:
    changes = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    signed = changes.load(str(folder / "orders")).selectExpr(
        "customer_id", "_diff AS n", "_diff * amount AS total"
    )
    stateful = signed.groupBy("customer_id").sum("n", "total")
    return _into_nothing(stateful, folder / "checkpoint", "update")


QUERIES: dict[str, Callable[[SparkSession, Path], StreamingQuery]] = {
    "join": _join,
    "kept join": _kept_join,
    "sum": _sum,
    "stateful": _stateful,
}
"""What follows the tables in a folder."""


def _floor(spark: SparkSession, folder: Path, rounds: int) -> list[Took]:
    """Return how long micro-batches take that have one row, which is read from nowhere."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    query = _into_nothing(rows, folder / "checkpoint-floor")
    try:
        before = _cpu_below()
        while len(_batches(query)) < rounds:
            query.awaitTermination(1)
        seconds = list(_batches(query).values())
        cpu = _spent(before) / len(seconds)
        return [Took(each, cpu) for each in seconds[:rounds]]
    finally:
        query.stop()


def _lived(spark: SparkSession, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the memory of the largest Python process in the fifths of a long run.

    Returns
    -------
    dict
        ``rounds``, ``changed`` rows of each, and for each fifth in ``stretches`` the medians of
        the rounds' peaks: ``python_anonymous`` and ``python_rss``, bytes.
    """
    dice = np.random.Generator(np.random.PCG64(3))
    owners = LIVED_ORDERS // PER_CUSTOMER

    def orders_of(keys: Any) -> pa.Table:
        drawn = [dice.integers(owners, size=len(keys)), dice.integers(10_000, size=len(keys))]
        return pa.table([keys, *drawn], schema=ORDERS)

    def customers_of(keys: Any) -> pa.Table:
        drawn = [f"country-{number}" for number in dice.integers(COUNTRIES, size=len(keys))]
        return pa.table([keys, drawn], schema=CUSTOMERS)

    indexed = {"indexBy": "customer_id"}
    orders = Table.create(str(folder / "orders"), ORDERS, keys=["order_id"], properties=indexed)
    customers = Table.create(str(folder / "customers"), CUSTOMERS, keys=["id"])
    orders.upsert(orders_of(np.arange(LIVED_ORDERS)))
    customers.upsert(customers_of(np.arange(owners)))
    wanted = {"n": agg.count(), "total": agg.sum("amount"), "top": agg.max("amount")}
    kept = _joined(folder).group_by("country").agg(**wanted)
    query = kept.keep(spark, str(folder / "kept"), str(folder / "checkpoint"))
    sampler = Sampler(os.getpid())
    peaks = []
    try:
        query.processAllAvailable()
        for number in range(1, rounds + 1):
            sampler.take()
            orders.upsert(orders_of(dice.choice(LIVED_ORDERS, LIVED_CHANGED, replace=False)))
            customers.upsert(customers_of(dice.choice(owners, LIVED_MOVED, replace=False)))
            query.processAllAvailable()
            query.processAllAvailable()
            peaks.append(sampler.take())
            if number % LIVED_CARED_FOR == 0:
                for table in (orders, customers):
                    table.compact()
                    table.expire(retain_versions=2 * LIVED_CARED_FOR)
    finally:
        sampler.close()
        query.stop()
    fifths = [peaks[at * rounds // 5 : (at + 1) * rounds // 5] for at in range(5)]
    names = ("python_anonymous", "python_rss")
    stretches = [
        {name: int(np.median([peak[name] for peak in fifth])) for name in names} for fifth in fifths
    ]
    return {"rounds": rounds, "changed": LIVED_CHANGED, "stretches": stretches}


def _into_nothing(rows: DataFrame, checkpoint: Path, mode: str = "append") -> StreamingQuery:
    writer = rows.writeStream.format("noop").outputMode(mode)
    writer = writer.trigger(processingTime=EVERY)
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
    """Return what computes both views from files."""
    parquet = folder / "parquet"
    own = duckdb.connect()
    files = {"orders": parquet / "orders" / "*.parquet", "customers": parquet / "customers.parquet"}
    for name, path in files.items():
        own.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
        spark.read.parquet(str(path)).createOrReplaceTempView(name)

    def by_spark(query: str) -> Callable[[], Any]:
        return lambda: spark.sql(query).write.format("noop").mode("overwrite").save()

    def by_duckdb(query: str) -> Callable[[], Any]:
        return lambda: own.sql(query).to_arrow_table()

    def written_by_duckdb(query: str) -> Callable[[], Any]:
        return lambda: own.sql(query).write_parquet(str(folder / "again.parquet"))

    def written(query: str) -> Callable[[], Any]:
        path = str(folder / "again")
        return lambda: spark.sql(query).write.mode("overwrite").parquet(path)

    found: dict[str, Callable[[], Any]] = {}
    for name, query in {"join": JOIN, "sum": SUM}.items():
        found[f"spark {name}"] = by_spark(query)
        found[f"spark {name}, written"] = written(query)
        found[f"duckdb {name}"] = by_duckdb(query)
        found[f"duckdb {name}, written"] = written_by_duckdb(query)
    return found


def _same(spark: SparkSession, folder: Path) -> bool:
    """Return whether the kept sums are those of the rows."""
    read = spark.read.format("upsertflow")
    read.load(str(folder / "orders")).createOrReplaceTempView("orders")
    wanted = spark.sql(SUM)
    kept = read.load(str(folder / "sums")).selectExpr(
        "customer_id", "n", "CAST(total AS BIGINT) AS total"
    )
    return bool(kept.exceptAll(wanted).isEmpty() and kept.count() == wanted.count())


def _timed(compute: Callable[[], Any]) -> Took:
    before = time.perf_counter(), time.process_time(), _cpu_below()
    compute()
    own = time.process_time() - before[1]
    return Took(time.perf_counter() - before[0], own + _spent(before[2]))


def _cpu_below() -> dict[int, float]:
    """Return the processor time of each process below this one, which makes the changes."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _spent(before: dict[int, float]) -> float:
    """Return what was spent since; what a process spent that has ended meanwhile is lost."""
    return sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in _cpu_below().items())


def _spread(took: list[Took]) -> dict[str, Any]:
    cpu = spread([each.cpu_s for each in took])
    return {**spread([each.seconds for each in took]), "cpu_s": cpu}


def _session(folder: Path, *, is_used_again: bool = True) -> SparkSession:
    state = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {
        "spark.driver.memory": "6g",
        "spark.python.worker.reuse": str(is_used_again).lower(),
        "spark.sql.streaming.stateStore.providerClass": state,
    }
    return session(folder, settings)


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--orders", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lived", type=int, default=0, help="rounds of the long run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder), orders=options.orders, rounds=options.rounds, lived=options.lived
        )
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
