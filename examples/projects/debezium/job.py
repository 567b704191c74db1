"""A table of PostgreSQL, by Debezium and Kafka, into a table; a Delta table follows.

    python job.py [--servers localhost:9092] [--lake lake] [--once]

The rows that are there come first, then each change in the order of the database's own log, exactly
once. Without `--once` it goes on until it is stopped, and from its checkpoint then.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "shop.public.orders"
ROW = "id BIGINT, customer STRING, amount DECIMAL(12, 2), due DATE, changed TIMESTAMP"


def session() -> SparkSession:
    """Start Spark, with the settings of `conf/`."""
    # Spark starts its Python workers by this name; its default is the python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("orders").getOrCreate()


def topic_of(spark: SparkSession, servers: str) -> DataFrame:
    """Return Debezium's events, from the beginning."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()


def follow(events: DataFrame, lake: str, *, once: bool) -> StreamingQuery:
    """Start the query that applies each change exactly once."""
    writer = (
        events.writeStream.format("upsertflow")
        .option("path", f"{lake}/orders")
        .option("checkpointLocation", f"{lake}/checkpoints/orders")
        .option("envelope", "debezium")
        .option("valueFormat", "json")
        .option("valueSchema", ROW)
        .option("decimalHandling", "precise")
        .option("keys", "id")
        # The place of a change in the database's log: whatever order they arrive in, it decides.
        .option("sequenceBy", "source.lsn")
        .option("publish", "delta")
    )
    return writer.trigger(availableNow=True).start() if once else writer.start()


def orders(spark: SparkSession, lake: str) -> DataFrame:
    """Return the rows that the database has."""
    return spark.read.format("upsertflow").load(f"{lake}/orders")


def main() -> None:
    """Follow the database; with `--once`, read what is there and show the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--servers", default="localhost:9092")
    parser.add_argument("--lake", default="lake")
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()
    spark = session()
    follow(topic_of(spark, given.servers), given.lake, once=given.once).awaitTermination()
    orders(spark, given.lake).orderBy("id").show()


if __name__ == "__main__":
    main()
