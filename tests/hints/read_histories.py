"""Hints of reads of a history: where it begins, what it is told by, and which columns it has."""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.options.read import ReadOptions
from spark_upsert.plan import agg
from spark_upsert.table.changes.modes import ValidBy
from spark_upsert.table.table import Table
from spark_upsert.views.builder import Plan
from tests.hints.hint import Told, follows
from tests.hints.reads import Query, batch, inputs_of, lake

HISTORY = {"readHistory": "true"}


@follows("options.read:ReadOptions._refuse_history")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "table")["table"]}
    with told:
        ReadOptions.parse({**given, **HISTORY}).require_stream()
    told("use spark.read")
    assert batch({**given, **HISTORY})
    told("read the changes, by .option('readChangeFeed', 'true')")
    assert Query().run({**given, "readChangeFeed": "true"})


@follows("options.read:ReadOptions._refuse_apart_from_history")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "table")["table"]}
    for wrong in ({"validBy": "version"}, {"trackHistoryColumnList": "id"}):
        with told:
            batch({**given, **wrong})
        told("add read_history=true")
        assert batch({**given, **wrong, **HISTORY})
        told("drop it")
        assert batch(given)


@follows("options.read:ReadOptions._refuse_apart_from_history:2")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "table")["table"], "startingVersion": "0", **HISTORY}
    with told:
        batch({**given, "startingBoundInclusive": "false"})
    told("name the version with which it is to begin")
    assert batch({**given, "startingVersion": "1"})


@follows("streams.inputs.batch:BatchRead.steps:2")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    with told:
        batch(inputs_of(paths, merge="concat", **HISTORY))
    told("leave out 'merge' and 'interleaveSeed'")
    assert len(batch(inputs_of(paths, **HISTORY))) == 2


@follows("table.changes.history:history_stretches")
def _(told: Told) -> None:
    table = Table.create(str(told.folder / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    table.append(pa.table({"id": [1]}))
    given = {"path": table.store.url, "startingVersion": "1", **HISTORY}
    with told:
        batch({**given, "endingVersion": "0"})
    told("let 'endingVersion' or 'endingTimestamp' be behind the start")
    assert batch({**given, "endingVersion": "1"})
    assert batch({**given, "endingTimestamp": "2100-01-01"})
    told("or drop it")
    assert batch(given)


@follows("table.changes.history:valid_fields")
def _(told: Told) -> None:
    view = Plan.of_table(lake(told.folder, "table")["table"]).group_by("id").agg(n=agg.count())
    given = {"path": str(told.folder / "counts")}
    view.refresh(given["path"])
    with told:
        batch({**given, **HISTORY})
    told("read its changes by read_change_feed=true")
    assert batch({**given, "readChangeFeed": "true", "startingVersion": "0"})


@follows("table.changes.history:valid_fields:2")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "valid_to": pa.string()})
    table = Table.create(str(told.folder / "t"), columns, keys=["id"])
    table.append(pa.table({"id": [1], "valid_to": ["x"]}))
    given = {"path": table.store.url, **HISTORY}
    with told:
        batch(given)
    told("choose other columns by columns=...")
    assert batch({**given, "columns": "id"})


@follows("table.changes.history:_require_axis")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "seq": pa.int64()})
    table = Table.create(str(told.folder / "t"), columns, keys=["id"], sequence_by=["seq"])
    table.append(pa.table({"id": [1], "seq": [1]}))
    table.append(pa.table({"id": [2], "seq": [1]}), overwrite=True)
    given = {"path": table.store.url, **HISTORY}
    with told:
        batch({**given, "validBy": "order"})
    told("use validBy=time or validBy=version")
    for by in (ValidBy.TIME, ValidBy.VERSION):
        assert len(batch({**given, "validBy": by.value})) == 2
    told("begin behind it by 'startingVersion'")
    assert len(batch({**given, "validBy": "order", "startingVersion": "2"})) == 1
