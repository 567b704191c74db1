"""A program that tries one release of Spark: prints a line of JSON for each thing that it does.

It runs in environments of `tools/matrix.py`, which have nothing but Spark, Arrow and this package.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from spark_upsert.table.table import Table

COLUMNS = "k BIGINT, v STRING"

_LITERALS = (
    "true",
    "CAST(1 AS TINYINT)",
    "CAST(1 AS SMALLINT)",
    "1",
    "CAST(1.5 AS FLOAT)",
    "1.5D",
    "CAST('12.34' AS DECIMAL(10, 2))",
    "DATE'2024-01-02'",
    "TIMESTAMP_NTZ'2024-01-02 03:04:05'",
    "TIMESTAMP'2024-01-02 03:04:05'",
    "X'0102'",
    "array(1, 2)",
    "map('x', 1)",
    "CAST(array() AS ARRAY<ARRAY<INT>>)",
    "map('x', CAST(map() AS MAP<INT, STRING>))",
    "named_struct('t', TIMESTAMP'2024-01-02 03:04:05')",
    "array(TIMESTAMP'2024-01-02 03:04:05')",
)
VALUES = tuple(enumerate(_LITERALS))
WORDS_MAX = 200


@contextmanager
def running(kind: str, folder: Path) -> Iterator[SparkSession]:
    """Give a session: of Spark in this process, or of Sail's server."""
    if kind == "sail":
        from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]

        from pyspark_upsertflow import register

        server = SparkConnectServer(port=0)  # It runs as long as this value lives.
        server.start(background=True)
        _, port = server.listening_address
        session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
        register(session)
        yield session
        session.stop()
        server.stop()
        return
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    yield session
    session.stop()


class Probe:
    """What is tried, one after the other, upon one table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.path = spark, folder, str(folder / "table")

    def rows(self, **options: str) -> set[tuple[Any, ...]]:
        frame = self.spark.read.format("upsertflow").options(**options).load(self.path)
        return {tuple(row) for row in frame.collect()}

    def batch_write(self) -> None:
        frame = self.spark.createDataFrame([(1, "a"), (2, "b")], COLUMNS)
        frame.write.format("upsertflow").option("keys", "k").mode("append").save(self.path)

    def batch_read(self) -> None:
        assert self.rows() == {(1, "a"), (2, "b")}

    def delete(self) -> None:
        keys = self.spark.createDataFrame([(2,)], "k BIGINT")
        writer = keys.write.format("upsertflow").option("operation", "delete")
        writer.mode("append").save(self.path)
        assert self.rows() == {(1, "a")}

    def change_feed(self) -> None:
        [row] = self.rows(readChangeFeed="true", startingVersion="1")
        assert "delete" in row

    def stream_write(self) -> None:
        feed = str(self.folder / "feed")
        self.spark.createDataFrame([(3, "c")], COLUMNS).write.parquet(feed)
        self._run(
            self.spark.readStream.schema(COLUMNS).parquet(feed).writeStream.format("upsertflow"),
            self.path,
        )
        assert self.rows() == {(1, "a"), (3, "c")}

    def stream_read(self) -> None:
        stream = self.spark.readStream.format("upsertflow").option("readChangeFeed", "true")
        out = str(self.folder / "out")
        self._run(stream.load(self.path).writeStream.format("parquet"), out)
        assert self.spark.read.parquet(out).count() == 2

    def bounded_stream(self) -> None:
        """Make a batch of each epoch, and go on with the next one behind a restart."""
        self._epochs(range(4))
        assert self._followed() == [4]  # The table as it is.
        self._epochs(range(4, 6))
        assert self._followed() == [1, 1]
        assert self._copied() == set(range(6))

    def batch_again(self) -> None:
        """Do a batch that is planned and was written, and is not known to be done, once."""
        newest = max((self.folder / "copy.checkpoint" / "commits").glob("[0-9]*"), key=_number)
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink()
        versions = Table.open(str(self.folder / "copy")).log.head().version
        self._epochs([6])
        self._followed()
        assert self._copied() == set(range(7))
        assert Table.open(str(self.folder / "copy")).log.head().version == versions + 1

    def routed_write(self) -> None:
        rows = self.spark.createDataFrame([(1, "a"), (2, "b")], "k BIGINT, tenant STRING")
        writer = rows.write.format("upsertflow").option("keys", "k").mode("append")
        writer.save(str(self.folder / "tenants" / "{tenant}"))
        for each in ((1, "a"), (2, "b")):
            frame = self.spark.read.format("upsertflow").load(
                str(self.folder / "tenants" / each[1])
            )
            assert {tuple(row) for row in frame.collect()} == {each}

    def types(self) -> None:
        """Give back the values of each type, and a timestamp with its instant."""
        path = str(self.folder / "types")
        frame = self.spark.sql(f"SELECT 1L AS k, {', '.join(f'{t} AS c{i}' for i, t in VALUES)}")
        frame.write.format("upsertflow").option("keys", "k").mode("append").save(path)
        again = self.spark.read.format("upsertflow").load(path)
        assert again.collect() == frame.collect()
        assert again.dtypes == frame.dtypes
        assert again.where("c9 = TIMESTAMP'2024-01-02 03:04:05'").count() == 1

    def _epochs(self, keys: Iterable[int]) -> None:
        path = str(self.folder / "epochs")
        if not Path(path).exists():
            Table.create(path, pa.schema([("k", pa.int64())]), keys=["k"])
        for key in keys:
            Table.open(path).upsert(pa.table({"k": [key]}))

    def _followed(self) -> list[int]:
        """Copy what is new, an epoch in a batch; return how many rows each batch had."""
        frame = self.spark.readStream.format("upsertflow").option("maxEpochsPerTrigger", 1)
        writer = frame.load(str(self.folder / "epochs")).writeStream.format("upsertflow")
        writer = writer.option("checkpointLocation", str(self.folder / "copy.checkpoint"))
        query = writer.option("keys", "k").start(str(self.folder / "copy"))
        try:
            query.processAllAvailable()
            return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()

    def _copied(self) -> set[int]:
        frame = self.spark.read.format("upsertflow").load(str(self.folder / "copy"))
        return {row["k"] for row in frame.collect()}

    def sql_name(self) -> None:
        self.spark.sql(f"CREATE TABLE orders USING upsertflow LOCATION '{self.path}'")
        assert self.spark.sql("SELECT * FROM orders").count() == 2

    def _run(self, writer: Any, path: str) -> None:
        writer = writer.option("checkpointLocation", f"{path}.checkpoint").option("path", path)
        writer.trigger(availableNow=True).start().awaitTermination()


def _number(file: Path) -> int:
    return int(file.name)


TRIED: dict[str, Callable[[Probe], None]] = {
    "batch write": Probe.batch_write,
    "batch read": Probe.batch_read,
    "delete": Probe.delete,
    "change feed": Probe.change_feed,
    "stream write": Probe.stream_write,
    "stream read": Probe.stream_read,
    "SQL name": Probe.sql_name,
    "routed write": Probe.routed_write,
    "types": Probe.types,
    "stream in bounds": Probe.bounded_stream,
    "batch again": Probe.batch_again,
}
"""In this order: each builds upon the ones before."""


def main() -> None:
    found = {"pyspark": pyspark.__version__, "pyarrow": pa.__version__}
    print(json.dumps({**found, "python": ".".join(map(str, sys.version_info[:3]))}), flush=True)
    folder = Path(tempfile.mkdtemp())
    with running(sys.argv[1], folder) as session:
        tell(Probe(session, folder))


def tell(probe: Probe) -> None:
    """Try all, and print of each whether it works."""
    for name, work in TRIED.items():
        problem = ""
        try:
            work(probe)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the matrix says
            # What Python raised stands at the end of what Spark tells.
            text = " ".join(str(error).split())
            told = text.rpartition("Error: ")[2]
            if told.startswith("Traceback"):  # Sail tells it before what led there.
                told = text.partition(" Traceback")[0]
            problem = told[:WORDS_MAX] or type(error).__name__
        print(json.dumps({"tried": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
