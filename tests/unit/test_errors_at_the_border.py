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
from spark_upsert.options.spark import spoken_to_spark
from spark_upsert.table.table import Table
from spark_upsert_sink import RoutedBatchWriter, UpsertBatchWriter, UpsertStreamWriter
from spark_upsert_sink.writers import passing_pickle
from tests.unit.test_errors import ALL

COLUMNS = StructType([StructField("id", LongType())])

HIDDEN = "SPARK_HIDE_TRACEBACK"


def pickled(made: object) -> None:
    """Pickle a writer as Spark does."""
    CloudPickleSerializer().dumps(made)  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setenv(HIDDEN, "")


@pytest.mark.parametrize("writer", [UpsertBatchWriter, UpsertStreamWriter, RoutedBatchWriter])
def test_a_plan_that_is_refused_while_it_is_pickled_is_told_as_it_is(
    writer: type[UpsertBatchWriter | UpsertStreamWriter | RoutedBatchWriter], tmp_path: Path
) -> None:
    path = f"{tmp_path}/{{nope}}" if writer is RoutedBatchWriter else str(tmp_path / "t")
    made = writer({"path": path, "keys": "nope"}, COLUMNS, False)
    with pytest.raises(SchemaError, match="'nope' is not among the columns") as caught:
        pickled(made)
    assert str(caught.value).startswith("[SCHEMA] ")
    assert f"{type(caught.value).__module__}.{type(caught.value).__qualname__}" == (
        "spark_upsert.errors.SchemaError"
    )
    assert os.environ[HIDDEN] == "1"


def test_its_hint_names_settings_as_options(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"k": pa.int64()}), keys=["k"])
    made = UpsertBatchWriter({"path": str(tmp_path / "t")}, COLUMNS, False)
    with pytest.raises(SchemaError, match=r'\.option\("mergeSchema", "true"\)'):
        pickled(made)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_passes_and_is_itself_again_behind(cls: type[UpsertFlowError]) -> None:
    with pytest.raises(cls) as caught, passing_pickle():
        raise cls("what happened.", hint="do this.", column="id")
    assert isinstance(caught.value, pickle.PickleError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.fields, str(copy)) == (cls, {"column": "id"}, str(caught.value))


@pytest.mark.parametrize(
    ("error", "is_hidden"),
    [(OptionError("no."), True), (TableNotFoundError("no."), True), (IndexError("bug"), False)],
    ids=["ours", "of the system, too", "a bug"],
)
def test_only_errors_of_ours_leave_their_places_out(error: Exception, is_hidden: bool) -> None:
    @spoken_to_spark
    def called() -> None:
        raise error

    with pytest.raises(type(error)):
        called()
    assert os.environ[HIDDEN] == ("1" if is_hidden else "")


def test_outside_of_sparks_processes_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER")

    @spoken_to_spark
    def called() -> None:
        raise OptionError("no.")

    with pytest.raises(OptionError):
        called()
    assert os.environ[HIDDEN] == ""
