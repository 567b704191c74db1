"""A Kafka topic into a table of the newest value per key; a Delta table follows.

    python job.py [--servers localhost:9092] [--topic customers] [--lake lake] [--once]

A record without a value deletes its key. A record that is no row is kept apart, under its key, and
the others go on. Without `--once` it goes on until it is stopped, and from its checkpoint then.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

KEY, VALUE = "id BIGINT", "name STRING, city STRING"


def session() -> SparkSession:
    """Start Spark, with the settings of `conf/`."""
    # Spark starts its Python workers by this name; its default is the python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("customers").getOrCreate()


def topic_of(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """Return the records of a topic, from its beginning."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def follow(records: DataFrame, lake: str, *, once: bool) -> StreamingQuery:
    """Start the query that applies each record exactly once."""
    writer = (
        records.writeStream.format("upsertflow")
        .option("path", f"{lake}/customers")
        .option("checkpointLocation", f"{lake}/checkpoints/customers")
        .option("envelope", "kafka")
        .option("keyFormat", "json")
        .option("keySchema", KEY)
        .option("valueFormat", "json")
        .option("valueSchema", VALUE)
        .option("onError", "quarantine")
        .option("publish", "delta")
    )
    return writer.trigger(availableNow=True).start() if once else writer.start()


def customers(spark: SparkSession, lake: str) -> DataFrame:
    """Return the newest row of each customer."""
    return spark.read.format("upsertflow").load(f"{lake}/customers")


def errors(spark: SparkSession, lake: str) -> DataFrame:
    """Return the records that are no rows, until a good one of their key comes."""
    reader = spark.read.format("upsertflow").option("metadata", "quarantine")
    return reader.load(f"{lake}/customers")


def main() -> None:
    """Follow the topic; with `--once`, read what is there and show the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--servers", default="localhost:9092")
    parser.add_argument("--topic", default="customers")
    parser.add_argument("--lake", default="lake")
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()
    spark = session()
    records = topic_of(spark, given.servers, given.topic)
    follow(records, given.lake, once=given.once).awaitTermination()
    customers(spark, given.lake).orderBy("id").show()
    errors(spark, given.lake).select("id", "_reason").show(truncate=False)


if __name__ == "__main__":
    main()
