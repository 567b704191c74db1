"""A feed of changes into a table, in a declarative pipeline; and what is made of the table.

`spark-pipelines run` plans all reads before its flows write, so that what is read of the table is
what the run before left there. The table must be there when it is planned.
"""

from contextlib import suppress

import pyarrow as pa
from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_upsert.errors import TableExistsError
from upsertflow import Table

LAKE = "/lake"
FEED = "order_id BIGINT, country STRING, amount BIGINT, seq BIGINT, gone BOOLEAN"
COLUMNS = pa.schema(
    {"order_id": pa.int64(), "country": pa.string(), "amount": pa.int64(), "seq": pa.int64()}
)

with suppress(TableExistsError):
    Table.create(f"{LAKE}/orders", COLUMNS, keys=["order_id"], sequence_by=["seq"])

spark = SparkSession.active()

pipelines.create_sink(
    "orders",
    "upsertflow",
    {"path": f"{LAKE}/orders", "applyAsDeletes": "gone", "publish": "delta"},
)


@pipelines.append_flow(target="orders")
def into_orders() -> DataFrame:
    """Read the feed: JSON here, a topic or a table in life."""
    return spark.readStream.schema(FEED).json(f"{LAKE}/feed")


@pipelines.table
def order_changes() -> DataFrame:
    """Follow every change of the table, with its retractions."""
    reader = spark.readStream.format("upsertflow").option("readChangeFeed", "true")
    return reader.load(f"{LAKE}/orders")


@pipelines.materialized_view
def sales() -> DataFrame:
    """Sum up the newest version."""
    orders = spark.read.format("upsertflow").load(f"{LAKE}/orders")
    return orders.groupBy("country").agg(F.sum("amount").alias("amount"))
