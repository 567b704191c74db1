"""Errors on their way through Spark: under their own names, and without the places they passed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.errors import OptionError, SchemaError, TableNotFoundError, UpsertFlowError
from spark_upsert.options.spark import name_options_in_errors
from spark_upsert.table.table import Table
from spark_upsert_sink import RoutedBatchWriter, UpsertBatchWriter, UpsertStreamWriter
from spark_upsert_sink.writers import passing_pickle
from tests.unit.test_errors import ALL

COLUMNS = StructType([StructField("id", LongType())])

HIDDEN = "SPARK_HIDE_TRACEBACK"


def pickled(writer: object) -> None:
    """Pickle a writer as Spark does."""
    CloudPickleSerializer().dumps(writer)  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setenv(HIDDEN, "")


@pytest.mark.parametrize("writer", [UpsertBatchWriter, UpsertStreamWriter, RoutedBatchWriter])
def test_a_plan_that_is_refused_while_it_is_pickled_is_told_as_it_is(
    writer: type[UpsertBatchWriter | UpsertStreamWriter | RoutedBatchWriter], tmp_path: Path
) -> None:
    path = f"{tmp_path}/{{nope}}" if writer is RoutedBatchWriter else str(tmp_path / "t")
    with pytest.raises(
        SchemaError, match=r"^\[SCHEMA\] .*'nope' is not among the columns"
    ) as caught:
        pickled(writer({"path": path, "keys": "nope"}, COLUMNS, False))
    kind = type(caught.value)
    assert f"{kind.__module__}.{kind.__qualname__}" == "spark_upsert.errors.SchemaError"
    assert os.environ[HIDDEN] == "1"


def test_its_hint_names_settings_as_options(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"k": pa.int64()}), keys=["k"])
    with pytest.raises(SchemaError, match=r'\.option\("mergeSchema", "true"\)'):
        pickled(UpsertBatchWriter({"path": str(tmp_path / "t")}, COLUMNS, False))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_passes_and_is_itself_again_behind(cls: type[UpsertFlowError]) -> None:
    with pytest.raises(cls) as caught, passing_pickle():
        raise cls("what happened.", hint="do this.", column="id")
    assert isinstance(caught.value, pickle.PickleError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.fields, str(copy)) == (cls, {"column": "id"}, str(caught.value))


@pytest.mark.parametrize(
    ("error", "of_spark", "is_hidden"),
    [
        (OptionError("no."), True, True),
        (TableNotFoundError("no."), True, True),
        (IndexError("bug"), True, False),
        (OptionError("no."), False, False),
    ],
    ids=["ours", "of the system, too", "a bug", "outside of Spark's processes"],
)
def test_only_errors_of_ours_leave_their_places_out(
    error: Exception, of_spark: bool, is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not of_spark:
        monkeypatch.delenv("SPARK_REUSE_WORKER")

    @name_options_in_errors
    def called() -> None:
        raise error

    with pytest.raises(type(error)):
        called()
    assert os.environ[HIDDEN] == ("1" if is_hidden else "")
