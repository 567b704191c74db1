"""Rows by key through Spark, of a table in a bucket: large files stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_upsert import Table
from tests.support.s3 import S3, running_s3

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 600_000
"""So many have a file above 8 MiB, which a smaller one would not be."""


@pytest.fixture
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


def test_a_filter_by_keys_copies_no_file_and_a_scan_does(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    url = f"s3://{s3.new_bucket()}/orders"
    written = {**s3.storage, "cache_dir": str(tmp_path / "writer")}
    columns = pa.schema({"k": pa.int64(), "s": pa.string()})
    table = Table.create(url, columns, keys=["k"], storage_options=written)
    table.upsert(pa.table({"k": range(ROWS), "s": [f"text {n}" for n in range(ROWS)]}))
    [slice_] = table.log.head().slices
    assert slice_.file.bytes > 8 << 20
    here = tmp_path / "reader"
    given = {**s3.storage, "cache_dir": str(here)}
    reader = spark.read.format("upsertflow").options(
        **{f"storage.{name}": value for name, value in given.items()}
    )
    found = reader.option("filter", "k IN (7, 500000, 900000)").load(url).collect()
    assert sorted(map(tuple, found)) == [(7, "text 7"), (500_000, "text 500000")]
    assert not copied_bytes(here)
    assert reader.option("filter", "s = 'text 7'").load(url).count() == 1
    assert copied_bytes(here) >= slice_.file.bytes, "to look at all rows the file is copied"


def copied_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
