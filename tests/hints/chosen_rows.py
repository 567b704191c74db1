"""Hints of reads that want some of the rows: by a condition, or by keys."""

from __future__ import annotations

import pyarrow as pa
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.core.schema import Ties
from spark_upsert.options.read import ReadOptions
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows
from tests.hints.reads import Query, batch, inputs_of, lake


@follows("options.read:ReadOptions._refuse_filter")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    given = {"path": path, "filter": "id = 1"}
    for how in ({"readChangeFeed": "true"}, {}):
        with told:
            options = ReadOptions.parse({**given, **how})
            options.require_batch() if how else options.require_stream()
    told("read a view, whose changes are exact, by pyspark_upsertflow.view(path).filter(...)")
    view = {"plan": Plan.of_table(path).filter("id = 1").to_json()}
    assert Query().run({**view, "readChangeFeed": "true"})
    told("filter behind the read, with where(...)")
    ReadOptions.parse({"path": path, "readChangeFeed": "true"}).require_batch()


@follows("streams.inputs.batch:BatchRead.steps")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    exact = inputs_of(paths, merge="concat")
    with told:
        batch({**exact, "filter": "id = 1"})
    told("filter behind the read, with where(...)")
    whole = batch(exact)
    told("leave out 'merge' and 'interleaveSeed'")
    assert len(batch(inputs_of(paths, filter="id = 1"))) == len(whole) == 2


def _pairs(told: Told) -> Table:
    columns = pa.schema({"region": pa.string(), "id": pa.int64()})
    table = Table.create(str(told.folder / "pairs"), columns, keys=["region", "id"])
    table.upsert(pa.table({"region": ["eu", "us"], "id": [7, 8]}))
    return table


@follows("table.arguments:_of_one_column")
def _(told: Told) -> None:
    table = _pairs(told)
    with told:
        table.get("eu")
    told("give tuples of 2")
    assert table.get([("eu", 7), ("us", 8)]).num_rows == 2
    told("a mapping or a frame with the columns region, id")
    assert table.get({"region": "eu", "id": 7}).num_rows == 1
    assert table.get(pa.table({"id": [7, 8], "region": ["eu", "us"]})).num_rows == 2


@follows("table.arguments:_row")
def _(told: Told) -> None:
    table = _pairs(told)
    with told:
        table.get([("eu", 7, 1)])
    told("give tuples of 2")
    assert table.get([("eu", 7)]).num_rows == 1
    told("a mapping or a frame with the columns region, id")
    assert table.get({"region": ["eu"], "id": [7]}).num_rows == 1


@follows("table.arguments:as_keys")
def _(told: Told) -> None:
    table = _pairs(told)
    with told:
        table.get({"region": ["eu", "us"], "id": 7})
    told("give each key column as many values as keys")
    assert table.get({"region": ["eu", "us"], "id": [7, 8]}).num_rows == 2


@follows("table.arguments:as_values")
def _(told: Told) -> None:
    table = _pairs(told)
    with told:
        table.get(("eu", 7.5))
    told("give values of type int64")
    assert table.get(("eu", 7)).num_rows == 1


@follows("cli.tables:_keys")
def _(told: Told) -> None:
    path = _pairs(told).store.url.removeprefix("file://")
    command = upsertflow.commands["get"].callback
    assert command is not None
    with told:
        command(path=path, storage={}, values=("eu",), version=None, as_json=True)
    told("give a value for each")
    assert len(_lines("get", path, "eu", "7")) == 1
    told("of several keys: --filter")
    asked = "region IN ('eu', 'us') AND id IN (7, 8)"
    assert len(_lines("snapshot", path, "--filter", asked)) == 2


def _lines(*arguments: str) -> list[str]:
    found = CliRunner().invoke(upsertflow, [*arguments, "--json"])
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


@follows("table.table:Table.delete")
def _(told: Told) -> None:
    table = _pairs(told)
    with told:
        table.delete()
    told("delete(keys)")
    assert table.delete(("eu", 7)) is not None
    told("delete(filter='id IN (1, 2)')")
    assert table.delete(filter="id IN (1, 2)") is None
    told("of all rows, filter='TRUE'")
    assert table.delete(filter="TRUE") is not None
    assert not table.snapshot().num_rows


@follows("table.arguments:require_deletes_win")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "at": pa.int64()})
    table = Table.create(
        str(told.folder / "first"), columns, keys=["id"], sequence_by=["at"], ties=Ties.FIRST
    )
    table.upsert(pa.table({"id": [1], "at": [5]}))
    with told:
        table.delete(1)
    told("write the deletes with an order of their own: upsert(rows, deletes=...)")
    table.upsert(pa.table({"id": [1], "at": [6], "gone": [True]}), deletes="gone")
    assert not table.snapshot().num_rows
