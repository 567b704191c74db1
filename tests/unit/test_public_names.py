"""The public door: what `import spark_upsert` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import spark_upsert
from spark_upsert import FeedbackUpsert, Table
from spark_upsert.errors import SchemaError

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})


def users(path: Path) -> Table:
    table = Table.create(str(path / "users"), COLUMNS, keys=["id"])
    table.upsert(pa.table({"id": range(5), "name": [f"n{i}" for i in range(5)]}))
    return table


@pytest.mark.parametrize("name", spark_upsert.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(spark_upsert, name)
    assert name == "__version__" or found.__doc__
    assert name in dir(spark_upsert)


def test_an_unknown_name_is_an_error_of_python() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        _ = spark_upsert.Tabel  # type: ignore[attr-defined]


def test_the_package_costs_nothing_until_a_name_is_asked_for() -> None:
    code = (
        "import sys, spark_upsert\n"
        "assert not {'pyarrow', 'numpy', 'spark_upsert.table.table'} & set(sys.modules)\n"
        "spark_upsert.Table\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_scan_reads_some_columns_in_their_order_of_any_version(tmp_path: Path) -> None:
    table = users(tmp_path)
    table.upsert(pa.table({"id": [9], "name": ["z"]}))
    reader = table.scan(["name", "id"], version=1)
    assert reader.schema.names == ["name", "id"]
    assert sorted(reader.read_all()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert sum(batch.num_rows for batch in table.scan([])) == 6
    with pytest.raises(SchemaError, match=r"(?s)'nane'.*'name'"):
        table.scan(["nane"])


def test_plain_rows_need_no_envelope_in_a_loop(tmp_path: Path) -> None:
    table = users(tmp_path)
    with FeedbackUpsert(table, "s", deletes="gone") as loop:
        loop.ingest(pa.record_batch({"id": [1, 7], "name": ["x", "y"], "gone": [True, False]}), 3)
        loop.advance(4)
        [commit] = loop.run()
    assert (commit.counters["deletes"], commit.counters["inserts"]) == (1, 1)
