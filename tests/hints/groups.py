"""Hints of reads of the tables that one query writes, at one of its batches."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.hints.reads import Query, batch
from tests.hints.tables import write
from tests.unit.test_parking import write as write_batch


def group(folder: Path, *, batches: int = 1) -> dict[str, str]:
    """Return the root of two tables that have some batches of one query, as options."""
    root = LocalStore(str(folder))
    for number in range(batches):
        write_batch(root, number, [("a", 1, number), ("b", 1, number)])
    return {"path": str(folder), "inputsPattern": "*", "consistent": "true"}


@follows("streams.planner.formats:_refuse_as_of_batch")
def _(told: Told) -> None:
    given = group(told.folder)
    with told:
        Query().run({**given, "asOfBatch": "0"})
    told("use spark.read")
    assert len(batch({**given, "asOfBatch": "0"})) == 2
    told("or consistent=true for a stream")
    assert len(Query().run(given)) == 2


@follows("streams.inputs.group:pins")
def _(told: Told) -> None:
    given = group(told.folder)
    named = {"path": given["path"], "consistent": "true"}
    with told:
        batch({**named, "inputs": "c"})
    told("check the path")
    assert len(batch({**named, "inputs": "a"})) == 1


@follows("streams.inputs.group:pins:2")
def _(told: Told) -> None:
    given = group(told.folder)
    with told:
        batch({**given, "inputsPattern": "c*"})
    told("check 'inputsPattern'")
    assert len(batch(given)) == 2


@follows("streams.inputs.table:no_group")
def _(told: Told) -> None:
    write(told.folder)
    with told:
        batch({"path": str(told.folder), "metadata": "group"})
    told("from its first whole batch on")
    given = group(told.folder / "root")
    assert batch({"path": given["path"], "metadata": "group"})


@follows("streams.inputs.group:GroupInputs.settle")
def _(told: Told) -> None:
    given = group(told.folder)
    one = {"path": str(told.folder / "a")}
    query = Query()
    query.run(one)
    before = query.checkpoint
    with told:
        query.run(given)
    told("leave 'inputsPattern' out")
    query.checkpoint = before
    query.run(one)
    told("give the query a new checkpointLocation")
    assert len(Query().run(given)) == 2


@follows("streams.inputs.group:GroupInputs.settle:2")
def _(told: Told) -> None:
    given = group(told.folder)
    query = Query()
    query.run(given)
    before = query.checkpoint
    with told:
        query.run({**given, "inputsPattern": "a"})
    told("check 'inputsPattern'")
    query.checkpoint = before
    query.run(given)
    told("begins with a new checkpointLocation")
    assert len(Query().run({**given, "inputsPattern": "a"})) == 1


@follows("streams.inputs.group:at_batch:2")
def _(told: Told) -> None:
    given = group(told.folder, batches=3)
    Table.open(str(told.folder / "a")).expire(retain_versions=0, safety_ms=0)
    with told:
        batch({**given, "asOfBatch": "0"})
    told("read without 'consistent'")
    assert len(batch({"path": given["path"], "inputsPattern": "*"})) == 2
    told("or again when the query has written to this table next")
    assert len(batch(given)) == 2


def remade(given: Mapping[str, str]) -> Path:
    """Make a table of a group anew; return where the one that was there is."""
    path = Path(given["path"]) / "a"
    shutil.move(path, path.parent.parent / "before")
    write(path.parent, {"id": [1], "v": [1]}, "a")
    return path.parent.parent / "before"


@follows("streams.inputs.group:at_batch")
@follows("streams.inputs.table:_require_batch")
def _(told: Told) -> None:
    given = group(told.folder / "root", batches=2)
    before = remade(given)
    is_stream = "table_input" in told.site.name
    with told:
        if is_stream:
            Query().run(given)
        else:
            batch(given)
    told("until then, read without 'consistent'")
    assert len(batch({"path": given["path"], "inputsPattern": "*"})) == 2
    told("put the table back that was replaced")
    shutil.rmtree(Path(given["path"]) / "a")
    shutil.move(before, Path(given["path"]) / "a")
    assert len(Query().run(given) if is_stream else batch(given)) == 2
