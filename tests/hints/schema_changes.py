"""Hints of columns that a table gives up, and of names that it has given up."""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows

COLUMNS = pa.schema({"id": pa.int64(), "s": pa.string()})


def _made(told: Told) -> Table:
    table = Table.create(str(told.folder / "t"), COLUMNS, keys=["id"])
    table.upsert(pa.table({"id": [1], "s": ["a"]}))
    return table


@follows("table.schema_changes:require_not_dropped")
def _(told: Told) -> None:
    table = _made(told)
    table.drop_columns("s")
    with told:
        table.upsert(pa.table({"id": [2], "s": ["b"]}), merge_schema=True)
    told("leave it out of the rows")
    table.upsert(pa.table({"id": [2]}))
    told("write it under another name")
    table.upsert(pa.table({"id": [2], "t": ["b"]}), merge_schema=True)
    assert table.get(2).to_pylist() == [{"id": 2, "t": "b"}]


@follows("table.schema_changes:_require_droppable")
def _(told: Told) -> None:
    table = _made(told)
    with told:
        table.drop_columns("id")
    told("keep it")
    assert table.schema.keys == ("id",)
    told("write what is wanted of the table into a new one (read, leave the column out, write)")
    new = Table.create(str(told.folder / "new"), pa.schema({"s": pa.string()}), keys=["s"])
    new.upsert(table.scan(["s"]))
    assert new.snapshot().to_pylist() == [{"s": "a"}]
