"""Hints of reads, as batches and as streams that are restarted with other options."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs import discovered
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    explain_read,
    plan_columns,
    shared_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.work import refuse_own_epochs, splits_of
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.hints.options import Change, changed
from tests.hints.tables import ROW, write
from tests.support.notebooks import few_are_many

InputRows = Mapping[str, str]
Rows = list[dict[str, Any]]


def batch(given: InputRows) -> Rows:
    """Return the rows of a batch read, as Spark's reader would."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    read = MergedRead(
        batch_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns)
    )
    return [row for work in read.splits() for each in read.read(work) for row in each.to_pylist()]


def stream_of(given: InputRows) -> Stream:
    """Return the stream of some options, as a process has it that has just begun."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    inputs = stream_inputs(plan, columns)
    return Stream(
        inputs,
        plan.query,
        heads=stream_heads(plan, inputs),
        offsets=stream_offsets(plan),
        columns=shared_columns(plan, columns),
    )


class Query:
    """A streaming query that goes on from its checkpoint, with options anew in each life."""

    def __init__(self) -> None:
        self.checkpoint: str | None = None

    def run(self, given: InputRows, *, batches_max: int = 9) -> Rows:
        """Live once: deliver what there is, and return it."""
        stream = stream_of(given)
        rows: Rows = []
        try:
            for _ in range(batches_max):
                end = self._batch(stream, rows)
                if end == self.checkpoint:
                    break
                self.checkpoint = end
        finally:
            stream.stop()
        return rows

    def planned(self, given: InputRows, *, everything: bool = False) -> tuple[Any, Any]:
        """Plan a batch and deliver nothing of it; return its offsets."""
        stream = stream_of(given)
        start = self._start(stream)
        return start, json.loads(json.dumps(stream.latest(start, everything=everything)))

    def replay(self, given: InputRows, start: Any, end: Any) -> Rows:
        """Return the rows of a batch that was planned, in another life."""
        stream = stream_of(given)
        works = stream.splits(start, end)
        return [row for work in works for each in stream.read(work) for row in each.to_pylist()]

    def _start(self, stream: Stream) -> Any:
        return stream.initial() if self.checkpoint is None else json.loads(self.checkpoint)

    def _batch(self, stream: Stream, rows: Rows) -> str:
        start = self._start(stream)
        end = stream.latest(start, everything=False)
        for work in stream.splits(start, end):
            rows += [row for each in stream.read(work) for row in each.to_pylist()]
        stream.commit(end)
        return json.dumps(end)


def lake(folder: Path, *names: str, **options: str) -> dict[str, str]:
    """Return the path of each of some tables, which have a row."""
    for name in names:
        write(folder, ROW, name, **options)
    return {name: str(folder / name) for name in names}


def inputs_of(paths: Mapping[str, str], **more: str) -> dict[str, str]:
    own = {f"input.{name}.path": path for name, path in paths.items()}
    return {"inputs": ",".join(paths), **own, **more}


# One table ----------------------------------------------------------------------------------


def of_read(
    site: str,
    wrong: Change,
    advice: Mapping[str, Change],
    read: Callable[[InputRows], Rows] = batch,
) -> None:
    """Follow a hint about a read of one table with a row."""

    @follows(site)
    def _(told: Told) -> None:
        given = changed({"path": lake(told.folder, "table")["table"]}, wrong)
        with told:
            read(given)
        for quoted, change in advice.items():
            told(quoted)
            read(changed(given, change))


def stream(given: InputRows) -> Rows:
    return Query().run(given)


CHANGES = {"readChangeFeed": "true"}

of_read(
    "errors:VersionNotFoundError.future",
    {**CHANGES, "startingVersion": "9"},
    {"give a version from 0 to 1": {"startingVersion": "1"}},
)


@follows("streams.planner.formats:_refuse_of_the_log")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]

    def explained(given: InputRows) -> str:
        plan = ReadPlan.parse(given)
        return explain_read(plan)

    with told:
        explained({"path": path, "metadata": "epochs"})
    told("drop 'metadata'")
    assert explained({"path": path})


@follows("streams.reads.columns:require_columns")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    plan = ReadPlan.parse({"path": path})
    columns = plan_columns(plan)
    given = columns.set(1, pa.field("n", pa.string()))
    with told:
        batch_inputs(plan, given)[""].splits()
    told("drop .schema(...) if you gave one")
    batch_inputs(plan, columns)[""].splits()


@follows("streams.reads.columns:require_columns:2")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    plan = ReadPlan.parse({"path": path, **CHANGES, "startingVersion": "0"})
    columns = plan_columns(plan)
    with told:
        batch_inputs(plan, columns.remove(len(columns) - 1))[""].splits()
    told("drop .schema(...)")
    batch_inputs(plan, columns)[""].splits()
    told("choose by columns=...")
    assert set(batch({"path": path, "columns": "id"})[0]) == {"id"}


@follows("streams.inputs.table:TableInput._newest")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.run({"path": path})
    shutil.move(path, f"{path}_before")
    lake(told.folder, "table")
    with told:
        query.run({"path": path})
    told("give the query a new checkpointLocation")
    assert Query().run({"path": path})
    told("put it back")
    shutil.rmtree(path)
    shutil.move(f"{path}_before", path)
    query.run({"path": path})


@follows("streams.offsets.offset:no_offset")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.checkpoint = '{"partition": 3}'
    with told:
        query.run({"path": path})
    told("give the query a new checkpointLocation")
    assert Query().run({"path": path})


# Several inputs -----------------------------------------------------------------------------


@follows("streams.inputs.inputs:_disagreement")
def _(told: Told) -> None:
    paths = lake(told.folder, "east")
    write(told.folder, {"id": [2], "n": [2]}, "west")
    given = inputs_of({**paths, "west": str(told.folder / "west")})
    with told:
        batch(given)
    told("give merge_schema=true for nulls")
    assert {row["v"] for row in batch({**given, **told.options})} == {"a", None}
    told("choose what all have alike by columns=...")
    assert len(batch({**given, "columns": "id,n"})) == 2


@follows("streams.inputs.inputs:merged")
def _(told: Told) -> None:
    paths = lake(told.folder, "east")
    write(told.folder, {"id": [2], "n": [2], "v": [7]}, "west")
    given = inputs_of({**paths, "west": str(told.folder / "west")}, mergeSchema="true")
    with told:
        batch(given)
    told("leave it out by columns=...")
    assert len(batch({**given, "columns": "id,n"})) == 2


@follows("streams.inputs.inputs:_require_distinct")
def _(told: Told) -> None:
    paths = lake(told.folder, "east")
    write(told.folder, {"id": [2], "n": [2], "V": ["b"]}, "west")
    given = inputs_of({**paths, "west": str(told.folder / "west")}, mergeSchema="true")
    with told:
        batch(given)
    told("leave one out by columns=...")
    assert len(batch({**given, "columns": "id,v"})) == 2


@follows("streams.reads.columns:require_free")
def _(told: Told) -> None:
    write(told.folder, {**ROW, "_input": ["mine"]}, "east")
    given = inputs_of({"east": str(told.folder / "east")}, mergeColumns="_input")
    with told:
        batch(given)
    told("drop it from 'mergeColumns'")
    assert batch(changed(given, {"mergeColumns": None}))[0]["_input"] == "mine"
    told("leave theirs out by 'columns'")
    assert batch({**given, "columns": "id"})[0]["_input"] == "east"


@follows("streams.inputs.inputs:NamedInputs._require")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    query.run(inputs_of(paths))
    fewer = inputs_of({"east": paths["east"]})
    before = query.checkpoint
    with told:
        query.run(fewer)
    told("name them again")
    query.run(inputs_of(paths))
    told("give the query a new checkpointLocation")
    assert len(Query().run(fewer)) == 1
    told("give allow_input_removal=true")
    query.checkpoint = before
    query.run({**fewer, **told.options})


@follows("streams.planner.formats:with_found_inputs")
def _(told: Told) -> None:
    lake(told.folder, "east")
    with told:
        batch({"path": str(told.folder), "inputsPattern": "eats*"})
    told("check 'path' and 'inputsPattern'")
    assert batch({"path": str(told.folder), "inputsPattern": "*"})


@follows("streams.inputs.discovered:FoundInputs._gone")
def _(told: Told) -> None:
    path = lake(told.folder, "east")["east"]
    query = Query()
    query.run({"path": path})
    found = {"path": str(told.folder), "inputsPattern": "*"}
    with told:
        query.run(found)
    told("leave 'inputsPattern' out")
    query.run({"path": path})
    told("give the query a new checkpointLocation")
    assert Query().run(found)


@follows("streams.inputs.discovered:FoundInputs._gone:2")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    given = {"path": str(told.folder), "inputsPattern": "*"}
    query.run(given)
    shutil.move(paths["west"], told.folder / "_west")
    with told:
        query.run(given)
    told("put back what was moved")
    shutil.move(told.folder / "_west", paths["west"])
    query.run(given)
    shutil.rmtree(paths["west"])
    told("give fail_on_data_loss=false")
    query.run({**given, **told.options})


@follows("streams.inputs.table:TablePosition.unpacked")
def _(told: Told) -> None:
    table = inputs_of(lake(told.folder, "table"))
    query = Query()
    query.run(table)
    assert query.checkpoint is not None
    checkpoint = json.loads(query.checkpoint)
    checkpoint["positions"]["table"] = {"offset": 1}  # As of a Python source of that name.
    query.checkpoint = json.dumps(checkpoint)
    with told:
        query.run(table)
    told("give the query a new checkpointLocation")
    assert Query().run(table)


# Checkpoints that were altered --------------------------------------------------------------

Alter = Callable[[dict[str, Any]], object]


def state(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = offset["state"]["order"]
    return found


def replayed(site: str, alter: Alter, **more: str) -> None:
    """Follow the hint about a batch whose offset was altered before it was replayed."""

    @follows(site)
    def _(told: Told) -> None:
        rows = {"id": [1, 2, 3], "n": [1, 2, 3], "v": ["a", "b", "c"]}
        for name in ("east", "west"):
            write(told.folder, rows, name)
        paths = {name: str(told.folder / name) for name in ("east", "west")}
        given = inputs_of(paths, **more)
        query = Query()
        start, end = query.planned(given)
        count = len(query.replay(given, start, end))
        altered_end = json.loads(json.dumps(end))
        alter(altered_end)
        with told:
            query.replay(given, start, altered_end)
        told("give the query a new checkpointLocation")
        assert len(Query().run(given)) >= count


TURNS = {"merge": "roundrobin", "maxRowsPerTrigger": "3"}
replayed(
    "streams.reads.ordered:_rows_and_no_more",
    lambda o: state(o)["given"].update(east=1, west=2),
    **TURNS,
)


@follows("streams.reads.ordered:_rows")
def _(told: Told) -> None:
    given = {**inputs_of(lake(told.folder, "table")), **TURNS}
    query = Query()
    start, end = query.planned(given)
    counted = json.loads(json.dumps(end))
    state(counted).update(given={"table": 9}, rows=9)
    with told:
        query.replay(given, start, counted)
    told("restore it")
    assert len(query.replay(given, start, end)) == 1
    told("give the query a new checkpointLocation")
    assert len(Query().run(given)) == 1


@follows("streams.inputs.discovered:Discovery._bounded")
def _(told: Told) -> None:
    lake(told.folder, "east", "west", "north")
    given = {"path": str(told.folder), "inputsPattern": "*"}
    with patch.object(discovered, "FOLDERS_MAX", 2):
        with told:
            batch(given)
        told("narrow 'inputsPattern'")
        assert len(batch({**given, "inputsPattern": "*east*"})) == 1
        told("or read with several queries")
        assert len(batch({**given, "inputsPattern": "*st"})) == 2
        assert len(batch({**given, "inputsPattern": "n*"})) == 1


@follows("streams.offsets.delta:_unusable")
def _(told: Told) -> None:
    lake(told.folder / "lake", "east", "west")
    offsets, moved = told.folder / "offsets", told.folder / "moved"
    given = {"path": str(told.folder / "lake"), "inputsPattern": "*", "offsetsPath": str(offsets)}
    query = Query()
    with few_are_many(inputs=1):
        query.run(given)
        shutil.move(offsets, moved)
        with told:
            query.run(given)
        told("If the folder was moved, name it by offsets_path=...")
        query.run({**given, "offsetsPath": str(moved)})
        told("restore that file from a copy")
        shutil.copytree(moved, offsets)
        query.run(given)
        told("give the query a new checkpointLocation")
        shutil.rmtree(offsets)
        assert len(Query().run(given)) == 2


@follows("streams.reads.work:refuse_own_epochs")
def _(told: Told) -> None:
    own = Transaction(writer=Transaction.writer_of_query("one"), number=0)
    paths = lake(told.folder, "east", "west")
    Table.open(paths["east"]).upsert(pa.table(ROW), transaction=own)

    def checked(path: str) -> None:
        given = {"path": path}
        stream = stream_of(given)
        end = stream.latest(stream.initial(), everything=True)
        for work in stream.splits(stream.initial(), end):
            refuse_own_epochs(splits_of(work), "one")

    with told:
        checked(paths["east"])
    told("write into another table")
    checked(paths["west"])
