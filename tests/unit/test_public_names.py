"""The public package: the names that `import upsertflow` offers, and its cost."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import pyspark_upsertflow
import spark_upsert
import upsertflow
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.flow.graph import Graph
from upsertflow import FeedbackUpsert, Table

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})


def is_python_function(each: object) -> bool:
    return inspect.isfunction(each) or inspect.ismethod(each)


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


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and methods, those of the module `flow` included."""
    for name in upsertflow.__all__:
        public = getattr(upsertflow, name)
        if inspect.isclass(public) or inspect.ismodule(public):
            members = inspect.getmembers(public, is_python_function)
            yield from ((f"{name}.{member}", each) for member, each in members if member[0] != "_")
        elif is_python_function(public):
            yield name, public


TAKING_STORAGE: dict[str, Callable[[Any], object]] = {
    "Table.create": lambda storage: Table.create(
        "s3://lake/users", COLUMNS, keys=["id"], storage_options=storage
    ),
    "Table.open": lambda storage: Table.open("s3://lake/users", storage_options=storage),
    "by_hash": lambda storage: upsertflow.by_hash(SPARK, "/users", storage_options=storage),
    "compact": lambda storage: upsertflow.compact(SPARK, "/users", storage_options=storage),
    "flow.start": lambda storage: upsertflow.flow.start(
        SPARK, Graph((), ()), "/checkpoint", storage_options=storage
    ),
    "view": lambda storage: upsertflow.view("/users", storage_options=storage),
    "wait_for_lsn": lambda storage: upsertflow.wait_for_lsn(
        "/lake", "0/1", timeout_s=0, storage_options=storage
    ),
    "watch": lambda storage: upsertflow.watch(SPARK, "/users", storage_options=storage),
}
SPARK: Any = None
"""No session is needed before the arguments are checked."""


def test_every_function_with_storage_options_is_tried() -> None:
    taking = {
        name
        for name, each in callables()
        if "storage_options" in inspect.signature(each).parameters
    }
    assert taking == set(TAKING_STORAGE)


@pytest.mark.parametrize("storage", ["region=eu", [("region", "eu")], {"region": 5}, {1: "x"}, 7])
@pytest.mark.parametrize("function", TAKING_STORAGE)
def test_storage_options_must_map_texts_to_texts(function: str, storage: Any) -> None:
    with pytest.raises(OptionError, match="'storage_options' expects a mapping of str to str"):
        TAKING_STORAGE[function](storage)


def test_a_value_of_storage_options_is_not_shown() -> None:
    with pytest.raises(OptionError) as caught:
        Table.open("s3://lake/users", storage_options={"secret_access_key": b"hush"})  # type: ignore[dict-item]
    assert "hush" not in f"{caught.value}{caught.value.hint}"


def test_a_path_may_be_a_path_object(tmp_path: Path) -> None:
    Table.create(tmp_path / "users", COLUMNS, keys=["id"])
    assert Table.open(tmp_path / "users").log.head().version == 0
    assert upsertflow.view(tmp_path / "users").to_json()
    with pytest.raises(OptionError, match=r"'path' expects a text or a pathlib\.Path, found 7"):
        Table.open(7)  # type: ignore[arg-type]


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
