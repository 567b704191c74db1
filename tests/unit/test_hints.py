"""Errors name a setting as the one who reads them gives it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from pyspark_upsertflow.metadata import MetadataReader
from pyspark_upsertflow.readers import BatchReader, batch_reader, read_schema
from pyspark_upsertflow.stream import ChangeStreamReader
from spark_upsert.errors import (
    DataError,
    OptionError,
    SchemaError,
    TableFullError,
    UpsertFlowError,
    as_option,
    setting,
)
from spark_upsert.options.hints import called_by_spark, spoken_to_spark
from spark_upsert.table import Table
from spark_upsert_sink import UpsertBatchWriter, UpsertStreamWriter

LATE = '.option("lateRows", "apply")'


def fail() -> None:
    raise DataError("late.", hint=f"give {setting('lateRows', 'apply')}.")


@called_by_spark
class Reader:
    """What Spark would call."""

    def __init__(self, *, is_bad: bool = False) -> None:
        if is_bad:
            fail()

    def plan(self) -> None:
        self._fail()

    def read(self) -> Iterator[int]:
        yield 1
        self._fail()

    def _fail(self) -> None:
        fail()


def test_what_is_raised_through_a_method_names_options() -> None:
    with pytest.raises(DataError) as made:
        Reader(is_bad=True)
    with pytest.raises(DataError) as planned:
        Reader().plan()
    assert LATE in made.value.hint
    assert LATE in str(planned.value)


def test_what_is_raised_while_a_split_is_read_names_options() -> None:
    rows = Reader().read()
    assert next(rows) == 1
    with pytest.raises(DataError) as error:
        next(rows)
    assert LATE in str(error.value)


def test_a_function_stays_what_it_was() -> None:
    assert spoken_to_spark(len)("abc") == 3
    assert inspect.isgeneratorfunction(Reader.read)
    assert Reader._fail.__qualname__ == "Reader._fail"


@pytest.mark.parametrize(
    "cls",
    [BatchReader, ChangeStreamReader, MetadataReader, UpsertBatchWriter, UpsertStreamWriter],
    ids=lambda cls: cls.__name__,
)
def test_spark_is_spoken_to_in_options(cls: type) -> None:
    own = [
        m for m in vars(cls).values() if inspect.isfunction(m) and not m.__name__.startswith("_")
    ]
    assert own
    assert all(hasattr(method, "__wrapped__") for method in own)
    assert hasattr(read_schema, "__wrapped__")
    assert hasattr(batch_reader, "__wrapped__")


def written(path: Path, options: Mapping[str, str]) -> UpsertFlowError:
    given = {"path": str(path), **options}
    fields = StructType().add("id", LongType()).add("extra", LongType())
    with pytest.raises(UpsertFlowError) as error:
        pickle.dumps(UpsertBatchWriter(given, fields, False))
    return error.value


def test_keys_that_are_missing_are_an_option_in_spark_and_an_argument_in_python(
    tmp_path: Path,
) -> None:
    assert 'give .option("keys", ...)' in written(tmp_path / "new", {}).hint
    with pytest.raises(OptionError) as error:
        Table.create(str(tmp_path / "other"), pa.schema({"id": pa.int64()}), keys=[])
    assert "give keys=..." in error.value.hint
    assert ".option(" not in str(error.value)


def test_a_column_that_the_table_lacks_is_gained_by_an_option_in_spark(tmp_path: Path) -> None:
    Table.create(str(tmp_path), pa.schema({"id": pa.int64()}), keys=["id"])
    error = written(tmp_path, {})
    assert isinstance(error, SchemaError)
    assert '.option("mergeSchema", "true")' in error.hint
    assert '.option("exceptColumnList", "extra")' in error.hint


def test_rows_that_plain_python_appends_are_told_of_arguments(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), pa.schema({"id": pa.int64()}), keys=["id"])
    with pytest.raises(DataError) as error:
        table.append(pa.table({"id": pa.array([None], pa.int64())}))
    assert "on_error=quarantine" in error.value.hint
    assert ".option(" not in str(error.value)


def test_a_property_is_no_argument_in_plain_python() -> None:
    full = TableFullError.of(
        "/t", epochs=1, bytes=1, epochs_max=1, bytes_max=None, upper=2, consumer="r", version=0
    )
    assert "the table's maxBacklogEpochs=..." in full.hint
    assert "onFull=wait" in full.hint
    full.name_settings(as_option)
    assert '.option("onFull", "wait")' in full.hint
