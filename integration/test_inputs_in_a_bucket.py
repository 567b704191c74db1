"""Tables and growing files in a bucket as the inputs of one query, on a real S3 server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.promises import assert_sound, rows_of
from integration.queries import Batches, drain, forget_last_commit, upserts, wait_until
from integration.tables import ROWS, Epoch, append, make_table
from spark_upsert.table.table import Table
from tests.support.s3 import S3

pytestmark = pytest.mark.spark

REGIONS = ("east", "north", "south", "west")


class Lake:
    """A bucket of tables and files."""

    def __init__(self, server: S3) -> None:
        self._server = server
        self._bucket = server.new_bucket()
        self.storage = server.storage
        self.options = {f"storage.{name}": value for name, value in server.storage.items()}

    def url(self, name: str) -> str:
        return f"s3://{self._bucket}/{name}"

    def table(self, name: str, *epochs: Epoch) -> Table:
        return make_table(self.url(name), *epochs, storage=self.storage)

    def put(self, name: str, data: bytes) -> None:
        self._server.client().put_object(Bucket=self._bucket, Key=name, Body=data)

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


def test_files_of_every_format_are_inputs_beside_a_table(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.table("table")
    formats = ("parquet", "arrow", "json", "csv")
    given = {"inputs": "table", "input.table.path": lake.url("table"), "mergeColumns": "_input"}
    for name in formats:
        given["inputs"] += f",{name}"
        given |= {f"input.{name}.path": lake.url(name), f"input.{name}.format": name}
        given |= {f"input.{name}.schema": "k BIGINT, v STRING"}
    written: list[tuple[str, int, str]] = []

    def write(k: int) -> None:
        v = f"the {k}th"
        append(table, {k: v})
        rows = pa.Table.from_pylist([{"k": k, "v": v}], schema=ROWS)
        lake.put(f"parquet/{k}", packed(rows, is_parquet=True))
        lake.put(f"arrow/{k}", packed(rows, is_parquet=False))
        lake.put(f"json/{k}", f"{json.dumps({'k': k, 'v': v})}\n".encode())
        lake.put(f"csv/{k}", f"k,v\n{k},{v}\n".encode())
        written.extend((name, k, v) for name in ("table", *formats))

    def read(**more: Any) -> DataFrame:
        return spark.readStream.format("upsertflow").options(**lake.options, **given, **more).load()

    batches, checkpoint = Batches(), tmp_path / "checkpoint"
    write(1)
    drain(batches.collect(read(), checkpoint))
    write(2)
    write(3)
    drain(batches.collect(read(maxEpochsPerTrigger=3), checkpoint))
    forget_last_commit(checkpoint)
    write(4)
    drain(batches.collect(read(), checkpoint))
    once = dict(batches.runs)
    assert len(batches.runs) == len(once) + 1, "the last batch is replayed, once"
    found = [row for rows in once.values() for row in rows]
    assert sorted((row["_input"], row["k"], row["v"]) for row in found) == sorted(written)

    batch = spark.read.format("upsertflow").options(**lake.options, **given).load()
    assert sorted((row["_input"], row["k"], row["v"]) for row in batch.collect()) == sorted(written)


def packed(rows: pa.Table, *, is_parquet: bool) -> bytes:
    """Return a file of rows."""
    sink = io.BytesIO()
    if is_parquet:
        pq.write_table(rows, sink)
    else:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    return sink.getvalue()
