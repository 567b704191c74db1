"""What `Table.upsert` takes: Arrow, frames that give Arrow, and columns that the table lacks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import SchemaError
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.int32()})
ROWS = pa.table({"id": [1, 2], "v": pa.array([10, 20], pa.int32())})


class Frame:
    """What gives Arrow, and is nothing else."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return ROWS.__arrow_c_stream__(requested_schema)


def table(columns: pa.Schema = COLUMNS, **more: Any) -> Table:
    made = Table(MemoryStore())
    made.ensure(TableSchema.of(columns, keys=["id"], **more))
    return made


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.to_batches()[0],
        ROWS.to_reader(),
        Frame(),
        ROWS.to_pandas().set_index("id"),
        pd.DataFrame({"id": [1, 2], "v": [10, 20]}, index=["a", "b"]),
    ],
    ids=["batch", "reader", "stream", "pandas by key", "pandas by no name"],
)
def test_whatever_gives_arrow_is_taken(rows: Any) -> None:
    to = table()
    to.upsert(rows)
    assert to.snapshot().sort_by("id").to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("rows", [ROWS.to_pylist(), ROWS.to_pydict(), None, "rows"], ids=repr)
def test_what_gives_none_is_refused_in_a_sentence(rows: Any) -> None:
    with pytest.raises(SchemaError, match="rows are taken as a table") as caught:
        table().upsert(rows)
    assert type(rows).__name__ in caught.value.message


@pytest.mark.parametrize(
    ("names", "how"),
    [
        (["id", "v", "v"], {}),
        (["id", "v", "V"], {}),
        (["id", "ID", "v"], {}),
        (["id", "v", "w", "w"], {"merge_schema": True}),
        (["id", "v", "gone", "gone"], {"deletes": "gone", "merge_schema": True}),
    ],
    ids=str,
)
def test_two_columns_of_one_name_are_refused(names: list[str], how: dict[str, Any]) -> None:
    to = table()
    rows = pa.table([[1], *([value] for value in range(len(names) - 1))], names=names)
    with pytest.raises(SchemaError, match="column names must differ"):
        to.upsert(rows, **how)
    assert to.log.head().version == 0


@pytest.mark.parametrize("type_", [pl.Categorical, pl.Enum(["b", "a"])], ids=str)
def test_dictionaries_of_polars_are_texts(type_: Any) -> None:
    series = pl.Series(["a", None, "b"], dtype=type_)
    frame = pl.DataFrame({"id": range(3), "v": series})
    nested = pl.DataFrame({"id": [3], "w": pl.Series([series], dtype=pl.List(type_))})
    to = table(pa.schema({"id": pa.int64(), "v": pa.string()}))
    to.upsert(frame)
    to.upsert(nested, merge_schema=True)
    rows = to.snapshot().sort_by("id")
    assert rows.column("v").to_pylist() == ["a", None, "b", None]
    assert rows.column("w").to_pylist() == [None, None, None, ["a", None, "b"]]


def test_objects_of_polars_are_not_stored_by_their_address() -> None:
    frame = pl.DataFrame({"id": [1], "v": pl.Series([b"x"], dtype=pl.Object)})
    to = table(pa.schema({"id": pa.int64(), "v": pa.binary()}))
    with pytest.raises(SchemaError, match="the column 'v' of the frame has the type Object"):
        to.upsert(frame)
    with pytest.raises(SchemaError, match="'id' of the frame has the type Object"):
        to.get(pl.DataFrame({"id": pl.Series([1], dtype=pl.Object)}))
    to.upsert(pa.table({"id": [1], "v": [b"x"]}))
    assert to.rows_having("v", frame["v"]).num_rows == 1


def test_a_table_gains_columns_and_wider_types_where_it_may() -> None:
    to = table()
    to.upsert(ROWS)
    wider = pa.table({"id": [1, 3], "v": [2**40, 1], "w": ["x", "y"]})
    with pytest.raises(SchemaError, match="a column 'w' that the table does not"):
        to.upsert(wider)
    to.upsert(wider, merge_schema=True)
    to.upsert(pa.table({"id": [4]}), merge_schema=True)
    assert to.snapshot().sort_by("id").to_pylist() == [
        {"id": 1, "v": 2**40, "w": "x"},
        {"id": 2, "v": 20, "w": None},
        {"id": 3, "v": 1, "w": "y"},
        {"id": 4, "v": None, "w": None},
    ]
    assert to.log.head().version == 4, "a table that has all of it is not altered"
    with pytest.raises(SchemaError, match="'v' is int64 in the table, but string in the rows"):
        to.upsert(pa.table({"id": [1], "v": ["x"]}), merge_schema=True)
    assert to.log.head().version == 4


def test_what_orders_rows_or_marks_deletes_is_no_column_that_is_gained() -> None:
    to = table(order=[pa.field("n", pa.int64())])
    rows = pa.table({"id": [1], "v": [1], "n": [1], "gone": [False], "w": [5]})
    to.upsert(rows, deletes="gone", merge_schema=True)
    assert to.schema.columns.names == ["id", "v", "w"]


def test_a_collected_column_may_be_lacked() -> None:
    collecting = MergeEngine.chosen(Engine.AGGREGATION, {"v": Rule.COLLECT}, {})
    columns = pa.schema({"id": pa.int64(), "v": pa.list_(pa.int32())})
    to = table(columns, engine=collecting)
    to.upsert(ROWS)
    to.upsert(pa.table({"id": [1], "w": [3]}), merge_schema=True)
    found = to.snapshot().sort_by("id").to_pylist()
    assert [(row["v"], row["w"]) for row in found] == [([10], 3), ([20], None)]


def test_rows_without_the_column_that_orders_them_are_refused() -> None:
    with pytest.raises(SchemaError, match="'n'"):
        table(order=[pa.field("n", pa.int64())]).upsert(ROWS)
