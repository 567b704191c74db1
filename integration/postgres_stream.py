"""A query that streams a PostgreSQL database into tables.

    python -m integration.postgres_stream URL SLOT FOLDER

is the query alone, until it is killed; it may be started again on the same folder:

    <folder>/lake               the tables and the group
    <folder>/spool
    <folder>/checkpoint
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS_MAX = 200


def written(
    spark: SparkSession, url: str, slot: str, folder: Path, **options: str
) -> DataStreamWriter:
    """Return the query."""
    return (
        spark.readStream.format("upsertflow.postgres")
        .option("url", url)
        .option("slotName", slot)
        .option("spool", str(folder / "spool"))
        .options(**options)
        .load()
        .writeStream.format("upsertflow")
        .option("path", f"{folder}/lake/{{_schema}}.{{_table}}")
        .option("envelope", "postgres")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def main() -> None:
    """Run the query."""
    url, slot, folder = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    query = written(spark, url, slot, Path(folder), maxRowsPerTrigger=str(ROWS_MAX)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
