"""The program of `docs/kafka.md`: change events into a table, the table into sums.

    python -m integration.deployment FOLDER BROKER

It runs the page's code, and goes on until it is killed or a query fails. It may be started again
and again on the same folder: `orders`, `totals` and `checkpoints` below it are what it keeps.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from integration.pages import code_of
from integration.queries import wait_until
from integration.servers.kafka import spark_jars
from spark_upsert.errors import TableNotFoundError
from spark_upsert.table.table import Table

PAGE = "docs/kafka.md"
RUNNER = "integration/test_deployment.py"
MODULE = "integration.deployment"


def is_there(path: str) -> bool:
    """Return whether a table has rows."""
    try:
        return Table.open(path).log.head().upper > 1
    except TableNotFoundError:
        return False


def main(folder: Path, servers: str) -> None:
    """Start the queries; raise what the first of them fails with."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("upsertflow deployment")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    own = {name: str(folder / name) for name in ("orders", "totals", "checkpoints")}
    names = {"spark": spark, "servers": servers, **own}
    into_table, into_sums = code_of(PAGE, "python", runner=RUNNER)
    exec(into_table, names)
    wait_until(lambda: is_there(own["orders"]) or not spark.streams.active, "there is a table")
    if spark.streams.active:
        exec(into_sums, names)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
