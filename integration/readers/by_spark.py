"""Read Delta tables by Spark with Delta, whose jars are the arguments of this program."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from integration.readers.answers import Question, answer

END_SECONDS = 120
"""A stream over what is there that takes longer hangs."""


def _session(jars: list[str]) -> SparkSession:
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A log of some commits is read in 50 tasks otherwise.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Each version is another plan, of few rows: to compile it takes longer than to run it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("a reader of Delta")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Reader:
    """What is asked of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rows(self, question: Question) -> pa.Table:
        """Return the rows of a version, or of a time, that a condition keeps."""
        reader = self._spark.read.format("delta")
        for option, name in (("versionAsOf", "version"), ("timestampAsOf", "time")):
            if name in question:
                reader = reader.option(option, question[name])
        found = reader.load(question["place"])
        return (found.where(question["where"]) if "where" in question else found).toArrow()

    def feed(self, question: Question) -> pa.Table:
        """Return the change feed of versions, both included."""
        reader = self._spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", question["first"])
        return reader.option("endingVersion", question["last"]).load(question["place"]).toArrow()

    def stream(self, question: Question) -> pa.Table:
        """Return what a stream gives, file by file, with the micro-batch of each row.

        Without ``feed`` it is the stream of a table that is only appended to.
        """
        reader = self._spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        if question["feed"]:
            reader = reader.option("readChangeFeed", "true")
        reader = reader.option("startingVersion", question["first"])
        found: list[pa.Table] = []

        def keep(batch: DataFrame, number: int) -> None:
            rows = batch.toArrow()
            found.append(rows.append_column("_batch", pa.array([number] * rows.num_rows, "int64")))

        writer = reader.load(question["place"]).writeStream.foreachBatch(keep)
        query = (
            writer.option("checkpointLocation", question["to"] + ".checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(END_SECONDS):
            raise TimeoutError(f"the stream did not end in {END_SECONDS} s")
        return pa.concat_tables(found)

    def code(self, question: Question) -> pa.Table:
        """Run code that finds the session as ``spark``; return what it has put under a name."""
        names: dict[str, Any] = {"spark": self._spark}
        exec(question["code"], names)
        found: DataFrame = names[question["name"]]
        return found.toArrow()

    def statement(self, question: Question) -> pa.Table:
        """Run a statement of SQL."""
        return self._spark.sql(question["sql"]).toArrow()


def main() -> None:
    """Answer until the input ends."""
    reader = Reader(_session(sys.argv[1:]))
    kinds = {
        "rows": reader.rows,
        "feed": reader.feed,
        "stream": reader.stream,
        "code": reader.code,
        "statement": reader.statement,
    }
    answer(kinds)


if __name__ == "__main__":
    main()
