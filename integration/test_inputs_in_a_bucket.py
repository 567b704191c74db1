"""Tables in a bucket as the inputs of one query, on a real S3 server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.promises import assert_sound, rows_of
from integration.queries import drain, forget_last_commit, upserts, wait_until
from integration.tables import Epoch, append, make_table
from spark_upsert.table.table import Table
from tests.support.s3 import S3

pytestmark = pytest.mark.spark

REGIONS = ("east", "north", "south", "west")


class Lake:
    """A bucket of tables."""

    def __init__(self, server: S3) -> None:
        self._server = server
        self._bucket = server.new_bucket()
        self.storage = server.storage
        self.options = {f"storage.{name}": value for name, value in server.storage.items()}

    def url(self, name: str) -> str:
        return f"s3://{self._bucket}/{name}"

    def table(self, name: str, *epochs: Epoch) -> Table:
        return make_table(self.url(name), *epochs, storage=self.storage)

    def drop(self, folder: str) -> None:
        for key in self._server.keys(self._bucket):
            if key.startswith(f"{folder}/"):
                self._server.client().delete_object(Bucket=self._bucket, Key=key)

    def rows(self, name: str) -> dict[Any, Any]:
        return rows_of(self.url(name), storage=self.storage)


@pytest.fixture
def lake(gateway: S3) -> Lake:
    return Lake(gateway)


def test_found_tables_become_one_and_come_and_go(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    tables = {
        region: lake.table(f"regions/{region}/orders", {1: "first", 2: region})
        for region in REGIONS
    }
    checkpoint = tmp_path / "checkpoint"

    def writer(**more: Any) -> Any:
        reader = spark.readStream.format("upsertflow").options(**lake.options, **more)
        reader = reader.options(
            inputsPattern="*/orders", mergeColumns="_input", readChangeFeed="true"
        )
        rows = reader.load(lake.url("regions")).withColumnRenamed("_input", "region")
        options = {**lake.options, "envelope": "changelog", "keys": "region,k"}
        return upserts(rows, lake.url("all"), checkpoint, **options)

    def expected() -> dict[Any, Any]:
        names = {name: f"{name}/orders" for name in tables}
        return {
            (path, k): value
            for path in names.values()
            for (k,), value in lake.rows(f"regions/{path}").items()
        }

    query = writer().start()
    try:
        query.processAllAvailable()
        tables["new"] = lake.table("regions/new/orders", {1: "came later"})
        wait_until(
            lambda: query.exception() or lake.rows("all") == expected(),
            "the new table has joined",
            every=0.5,  # A look reads six tables.
        )
    finally:
        query.stop()
    for number, table in enumerate(tables.values()):
        append(table, {1: None, 3: "third"} if number % 2 else {2: "changed"})
    drain(writer(maxRowsPerTrigger=4))
    forget_last_commit(checkpoint)  # Its batch comes again, and is known.
    append(tables["new"], {1: "again"})
    drain(writer())
    before = lake.rows("all")
    assert before == expected()

    lake.drop("regions/west/orders")
    with pytest.raises(StreamingQueryException, match="has read the input 'west/orders', but no"):
        drain(writer())
    append(tables["east"], {9: "behind it"})
    drain(writer(failOnDataLoss="false"))
    assert lake.rows("all") == {**before, ("east/orders", 9): ("behind it",)}
    assert_sound(lake.url("all"), lake.storage)
