"""Hints of reads of a history: where it begins, what it is told by, and which columns it has."""

from __future__ import annotations

import shutil
from unittest.mock import patch

import pyarrow as pa
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.errors import ContentionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan import agg
from spark_upsert.store.open import open_store
from spark_upsert.table.changelog.render import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import UnchangedRowsGuard
from spark_upsert.views.plan_builder import Plan
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
    told("keep the history in a table ('upsertflow keep-history')")
    kept = str(told.folder / "kept")
    assert (
        CliRunner().invoke(upsertflow, ["keep-history", given["path"], "--in", kept]).exit_code == 0
    )
    told("read the changes of that")
    assert Query().run({"path": kept, "readChangeFeed": "true"})


@follows("options.read:ReadOptions._refuse_apart_from_history")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "table")["table"]}
    for wrong in (
        {"validBy": "version"},
        {"trackHistoryColumnList": "id"},
        {"trackHistoryExceptColumnList": "id"},
    ):
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


@follows("table.changelog.history:history_stretches")
def _(told: Told) -> None:
    table = Table.create(str(told.folder / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(pa.table({"id": [1]}))
    given = {"path": table.store.url, "startingVersion": "1", **HISTORY}
    with told:
        table.history(1, 1)
    told("let 'endingVersion' or 'endingTimestamp' be behind the start")
    assert batch({**given, "endingVersion": "1"})
    assert batch({**given, "endingTimestamp": str(table.log.now_ms())})
    told("or drop it")
    assert batch(given)


@follows("table.changelog.history:valid_fields")
def _(told: Told) -> None:
    view = Plan.of_table(lake(told.folder, "table")["table"]).group_by("id").agg(n=agg.count())
    given = {"path": str(told.folder / "counts")}
    view.refresh(given["path"])
    with told:
        batch({**given, **HISTORY})
    told("read its changes by read_change_feed=true")
    assert batch({**given, "readChangeFeed": "true", "startingVersion": "0"})


@follows("table.changelog.history:valid_fields:2")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "valid_to": pa.string()})
    table = Table.create(str(told.folder / "t"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1], "valid_to": ["x"]}))
    given = {"path": table.store.url, **HISTORY}
    with told:
        batch(given)
    told("choose other columns by columns=...")
    assert batch({**given, "columns": "id"})


@follows("table.changelog.history:require_axis")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "seq": pa.int64()})
    table = Table.create(str(told.folder / "t"), columns, keys=["id"], sequence_by=["seq"])
    table.upsert(pa.table({"id": [1], "seq": [1]}))
    table.upsert(pa.table({"id": [2], "seq": [1]}), overwrite=True)
    given = {"path": table.store.url, **HISTORY}
    with told:
        batch({**given, "validBy": "order"})
    told("use validBy=time or validBy=version")
    for by in (ValidBy.TIME, ValidBy.VERSION):
        assert len(batch({**given, "validBy": by.value})) == 2
    told("begin behind it by 'startingVersion'")
    assert len(batch({**given, "validBy": "order", "startingVersion": "2"})) == 1


# -- kept histories --------------------------------------------------------------------


def _source(told: Told, name: str = "table") -> tuple[Table, Table]:
    """Return a table with a row, and where its history is to be kept."""
    return Table.open(lake(told.folder, name)[name]), Table(open_store(str(told.folder / "kept")))


@follows("table.keep_history:_kept_up")
def _(told: Told) -> None:
    table, kept = _source(told)
    with told, patch.object(UnchangedRowsGuard, "__call__", _never):
        keep_history(table, kept)
    told("let one process keep the history")
    assert keep_history(table, kept) is not None


def _never(guard: UnchangedRowsGuard, head: object) -> ContentionError:
    guard.has_changed = True
    return ContentionError("other rows came between.")


@follows("table.keep_history:_made")
def _(told: Told) -> None:
    table, kept = _source(told)
    keep_history(table, kept)
    with told:
        keep_history(table, kept, by=ValidBy.VERSION)
    told("give the same columns and options as at first")
    assert keep_history(table, kept) is None
    told("keep this history in a new path")
    new = Table(open_store(str(told.folder / "by_version")))
    assert keep_history(table, new, by=ValidBy.VERSION) is not None
    other, _ = _source(told, "anew")
    with told:
        keep_history(other, kept)
    told("a source that was made anew has a new history")
    assert keep_history(other, Table(open_store(str(told.folder / "of_anew")))) is not None


@follows("table.keep_history:_position")
def _(told: Told) -> None:
    table, kept = _source(told)
    copy = told.folder / "copy"
    shutil.copytree(told.folder / "table", copy)
    table.upsert(pa.table({"id": [9]}), merge_schema=True)
    keep_history(table, kept)
    set_back = Table.open(str(copy))
    with told:
        keep_history(set_back, kept)
    told("put the table back if it was set back from a copy")
    assert keep_history(table, kept) is None
    told("keep its history in a new path")
    assert keep_history(set_back, Table(open_store(str(told.folder / "of_copy")))) is not None


@follows("table.keep_history:_require_same_past")
def _(told: Told) -> None:
    table, kept = _source(told)
    copy = told.folder / "copy"
    shutil.copytree(told.folder / "table", copy)
    table.upsert(pa.table({"id": [9]}), merge_schema=True)
    keep_history(table, kept)
    set_back = Table.open(str(copy))
    set_back.upsert(pa.table({"id": [8]}), merge_schema=True)
    with told:
        keep_history(set_back, kept)
    told("put the table back if it was set back from a copy by mistake")
    assert keep_history(table, kept) is None
    told("keep its history in a new path")
    assert keep_history(set_back, Table(open_store(str(told.folder / "of_copy")))) is not None


@follows("table.write.guards:_require_historian")
def _(told: Told) -> None:
    table, kept = _source(told)
    keep_history(table, kept)
    with told:
        kept.delete(filter="TRUE")
    told("write to the table whose history it is")
    table.delete(filter="TRUE")
    assert keep_history(table, kept) is not None
    told("or into another table")
    assert lake(told.folder, "another")
