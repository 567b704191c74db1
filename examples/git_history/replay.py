"""The Spark side: one query into the table, one query out of it, and reads of what they made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from examples.git_history.errors import DemoError

COMMANDS = "path string, blob string, mode string, bytes bigint, seq bigint, deleted boolean"
ROWS = ("path", "blob", "mode", "bytes", "seq")
"""Columns of the table: those of the commands without `deleted`, which is about the command."""


def start_session(master: str, work: Path, conf: Path) -> SparkSession:
    """Start Spark with this interpreter, this Spark and the settings in ``conf``.

    Raises
    ------
    DemoError
        Spark does not start.
    """
    # Java and its Python workers inherit these. Their own choices would be `python3` and whatever
    # Spark the machine has.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_CONF_DIR"] = str(conf)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(master)
        .appName("upsertflow: a git history")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
    )
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise DemoError(
            f"Spark did not start: {error}",
            hint="install Java 17 or newer, and let JAVA_HOME name its folder.",
        ) from error


def write_history(
    spark: SparkSession, chapters: Path, table: Path, checkpoint: Path
) -> StreamingQuery:
    """Start the query that applies each file of a folder as one epoch, and ends with the last."""
    commands = spark.readStream.schema(COMMANDS).option("maxFilesPerTrigger", 1)
    return (
        commands.parquet(str(chapters))
        .writeStream.format("upsertflow")
        .option("path", str(table))
        .option("keys", "path")
        .option("sequenceBy", "seq")
        .option("applyAsDeletes", "deleted")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def read_changes(
    spark: SparkSession, table: Path, changes: Path, checkpoint: Path, *, epochs_per_batch: int
) -> StreamingQuery:
    """Start the query that appends the table's changelog to Parquet files."""
    return (
        spark.readStream.format("upsertflow")
        .option("path", str(table))
        .option("readChangeFeed", "true")
        .option("startingVersion", "earliest")
        .option("maxEpochsPerTrigger", epochs_per_batch)
        .load()
        .writeStream.format("parquet")
        .option("path", str(changes))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def snapshot(spark: SparkSession, table: Path, version: int) -> pa.Table:
    """Return the rows of the table as of a version."""
    reader = spark.read.format("upsertflow").option("path", str(table))
    return reader.option("versionAsOf", version).load().select(*ROWS).toArrow()


def fold(spark: SparkSession, changes: Path, version: int) -> pa.Table:
    """Return the rows that the changes up to a version add up to.

    Returns
    -------
    pyarrow.Table
        Columns `ROWS` and ``diff``: how often the row is there, never 0.
    """
    return (
        spark.read.parquet(str(changes))
        .where(f.col("_commit_version") <= version)
        .groupBy(*ROWS)
        .agg(f.sum("_diff").alias("diff"))
        .where("diff <> 0")
        .toArrow()
    )


def count_changes(spark: SparkSession, changes: Path) -> int:
    """Return the number of rows of the changelog."""
    return spark.read.parquet(str(changes)).count()
