"""The public package: the names that `import upsertflow` offers, and its cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

import pyspark_upsertflow
import spark_upsert
import upsertflow
from spark_upsert.errors import SchemaError
from upsertflow import FeedbackUpsert, Table

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})


def users(path: Path) -> Table:
    table = Table.create(str(path / "users"), COLUMNS, keys=["id"])
    table.upsert(pa.table({"id": range(5), "name": [f"n{i}" for i in range(5)]}))
    return table


@pytest.mark.parametrize("name", upsertflow.__all__)
def test_a_public_name_is_documented(name: str) -> None:
    assert name == "__version__" or getattr(upsertflow, name).__doc__
    assert name in dir(upsertflow)


def test_the_public_package_has_the_names_of_both_packages() -> None:
    spark_names = set(pyspark_upsertflow.__all__) - {"DefaultSource"}
    assert set(upsertflow.__all__) == {*spark_upsert.__all__, *spark_names, "agg", "flow"}


@pytest.mark.parametrize("module", [upsertflow, spark_upsert])
def test_an_unknown_name_is_an_error_of_python(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        _ = module.Tabel


def test_the_package_costs_nothing_until_a_name_is_used() -> None:
    code = (
        "import sys, upsertflow\n"
        "assert not {'pyarrow', 'numpy', 'spark_upsert.table.table'} & set(sys.modules)\n"
        "upsertflow.Table, upsertflow.agg\n"
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
