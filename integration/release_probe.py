"""A program that tries one release of Spark: prints a line of JSON for each thing that it does.

It runs in environments of `tools/matrix.py`, which have nothing but Spark, Arrow and this package.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

COLUMNS = "k BIGINT, v STRING"
WORDS_MAX = 200


def started(kind: str, folder: Path) -> SparkSession:
    """Return a session: of Spark in this process, or of Sail's server."""
    if kind == "sail":
        from pysail.spark import SparkConnectServer  # type: ignore[import-not-found]

        from pyspark_upsertflow import DefaultSource

        server = SparkConnectServer(port=0)
        server.start(background=True)
        _, port = server.listening_address
        session = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
        session.dataSource.register(DefaultSource)
        return session
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


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

    def sql_name(self) -> None:
        self.spark.sql(f"CREATE TABLE orders USING upsertflow LOCATION '{self.path}'")
        assert self.spark.sql("SELECT * FROM orders").count() == 2

    def _run(self, writer: Any, path: str) -> None:
        writer = writer.option("checkpointLocation", f"{path}.checkpoint").option("path", path)
        writer.trigger(availableNow=True).start().awaitTermination()


TRIED: dict[str, Callable[[Probe], None]] = {
    "batch write": Probe.batch_write,
    "batch read": Probe.batch_read,
    "delete": Probe.delete,
    "change feed": Probe.change_feed,
    "stream write": Probe.stream_write,
    "stream read": Probe.stream_read,
    "SQL name": Probe.sql_name,
}
"""In this order: each builds upon the ones before."""


def main() -> None:
    found = {"pyspark": pyspark.__version__, "pyarrow": pa.__version__}
    print(json.dumps({**found, "python": ".".join(map(str, sys.version_info[:3]))}), flush=True)
    folder = Path(tempfile.mkdtemp())
    probe = Probe(started(sys.argv[1], folder), folder)
    for name, work in TRIED.items():
        problem = ""
        try:
            work(probe)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the matrix says
            # What Python raised stands at the end of what Spark tells.
            told = " ".join(str(error).split()).rpartition("Error: ")[2]
            problem = told[:WORDS_MAX] or type(error).__name__
        print(json.dumps({"tried": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
