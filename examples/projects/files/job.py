"""Files of JSON, as they land, into a table by a stream of Spark; and its changes as a feed.

    python job.py [--landing landing] [--lake lake] [--once]

Without `--once` it goes on until it is stopped. It goes on from its checkpoint after any crash.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

ROWS = "order_id BIGINT, country STRING, amount BIGINT, at BIGINT, gone BOOLEAN"


def session() -> SparkSession:
    """Start Spark, with the settings of `conf/`."""
    # Spark starts its Python workers by this name; its default is the python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("orders").getOrCreate()


def follow(spark: SparkSession, landing: str, lake: str, *, once: bool) -> StreamingQuery:
    """Start the query that applies each file exactly once."""
    writer = (
        spark.readStream.schema(ROWS)
        .json(landing)
        .writeStream.format("upsertflow")
        .option("path", f"{lake}/orders")
        .option("checkpointLocation", f"{lake}/checkpoints/orders")
        .option("keys", "order_id")
        .option("sequenceBy", "at")
        .option("applyAsDeletes", "gone")
        .option("publish", "delta")
    )
    return writer.trigger(availableNow=True).start() if once else writer.start()


def orders(spark: SparkSession, lake: str) -> DataFrame:
    """Return the newest row of each order."""
    return spark.read.format("upsertflow").load(f"{lake}/orders")


def changes(spark: SparkSession, lake: str) -> DataFrame:
    """Return every change of the table, each row with `_diff`: +1 as it came, -1 as it went."""
    feed = spark.read.format("upsertflow").option("readChangeFeed", "true")
    return feed.option("startingVersion", "earliest").load(f"{lake}/orders")


def main() -> None:
    """Follow the folder; with `--once`, load what is there and show the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--landing", default="landing")
    parser.add_argument("--lake", default="lake")
    parser.add_argument("--once", action="store_true", help="load what is there, and end")
    given = parser.parse_args()
    spark = session()
    follow(spark, given.landing, given.lake, once=given.once).awaitTermination()
    orders(spark, given.lake).orderBy("order_id").show()


if __name__ == "__main__":
    main()
