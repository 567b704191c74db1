"""Hints of files as inputs: their formats, their columns, and files that change or come late."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.store.folder import LocalFolder
from spark_upsert.streams.inputs.files import position as file_position
from spark_upsert.streams.planner.kinds import batch_inputs, plan_columns, shared_columns
from spark_upsert.streams.planner.merged_read import MergedRead
from tests.hints.hint import Told, follows
from tests.hints.reads import (
    SMALL,
    Given,
    Query,
    Rows,
    batch,
    files_of,
    inputs_of,
    lake,
    put,
    replayed,
)
from tests.hints.tables import ROW

WIDE = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]})
MORE = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"], "w": [1]})
TEXTS = pa.table({"id": ["one"], "v": ["a"]})


@follows("streams.inputs.files.input:file_columns")
def _(told: Told) -> None:
    folder = told.folder / "files"
    folder.mkdir()
    with told:
        batch(files_of(folder))
    told("give the option 'schema', for example \"id BIGINT, name STRING\"")
    assert batch(files_of(folder, schema="id BIGINT, name STRING")) == []
    told("begin once a file is there")
    put(folder, "a", SMALL)
    assert len(batch(files_of(folder))) == 1


@follows("streams.inputs.files.input:_Files.listed")
def _(told: Told) -> None:
    folder = told.folder / "files"
    with told:
        batch(files_of(folder, schema="id INT, v STRING"))
    told("make the folder: it may be empty")
    folder.mkdir()
    assert batch(files_of(folder, schema="id INT, v STRING")) == []
    told("check the 'path' option")


@follows("streams.inputs.files.input:_merged")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", SMALL)
    put(folder, "b", TEXTS, at_s=2)
    with told:
        batch(files_of(folder, mergeSchema="true"))
    told("write one type")
    put(folder, "b", WIDE, at_s=2)
    assert len(batch(files_of(folder, mergeSchema="true"))) == 2
    told("give the option 'schema'")
    assert len(batch(files_of(folder, mergeSchema="true", schema="id BIGINT, v STRING"))) == 2


@follows("payloads.files.formats:require_fits")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", MORE)
    put(folder, "b", SMALL, at_s=2)
    with told:
        batch(files_of(folder))
    told("with mergeSchema=true it would be null")
    found = batch(files_of(folder, mergeSchema="true"))
    assert [row["w"] for row in found] == [1, None]


@follows("payloads.files.formats:require_fits:2")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", WIDE)
    put(folder, "b", SMALL, at_s=2)
    with told:
        batch(files_of(folder))
    told("with mergeSchema=true it would be widened")
    assert len(batch(files_of(folder, mergeSchema="true"))) == 2


@follows("payloads.files.formats:require_fits:3")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", SMALL)
    query = Query()
    query.run(files_of(folder))
    put(folder, "b", MORE, at_s=2)
    before = query.checkpoint
    with told:
        query.run(files_of(folder))
    told("restart the query with mergeSchema=true to take it in")
    query.checkpoint = before
    assert query.run(files_of(folder, mergeSchema="true"))[0]["w"] == 1
    told("choose the columns by 'schema'")
    query.checkpoint = before
    assert len(query.run(files_of(folder, schema="id INT, v STRING"))) == 1


@follows("streams.inputs.files.input:_Files._unreadable")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", SMALL)
    half = put(folder, "b", b"PAR1 not yet written", at_s=2)
    with told:
        batch(files_of(folder))
    told("write each file under a name that begins with '_' or '.', then rename it")
    half.unlink()
    put(folder, "_b", SMALL, at_s=2).rename(half)
    assert len(batch(files_of(folder))) == 2


@follows("payloads.files.texts:JsonReader.columns")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"\n")
    with told:
        batch(files_of(folder, "json"))
    told("schema")
    assert batch(files_of(folder, "json", schema="id BIGINT")) == []


@follows("payloads.files.texts:JsonReader.columns:2")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id": null}\n')
    with told:
        batch(files_of(folder, "json"))
    told("schema")
    assert batch(files_of(folder, "json", schema="id BIGINT")) == [{"id": None}]


@follows("payloads.files.texts:JsonReader.read")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id":\n1}\n')
    given = files_of(folder, "json", schema="id BIGINT")
    with told:
        batch(given)
    told("JSON is read line by line, one object in each")
    put(folder, "a", b'{"id": 1}\n')
    assert batch(given) == [{"id": 1}]


@follows("payloads.files.texts:CsvReader.columns")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"")
    with told:
        batch(files_of(folder, "csv"))
    told("schema")
    assert batch(files_of(folder, "csv", schema="id BIGINT")) == []


@follows("payloads.files.texts:CsvReader._own_names")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"1,a\n")
    with told:
        batch(files_of(folder, "csv", header="false", schema="id BIGINT"))
    told("declare all of them")
    found = batch(files_of(folder, "csv", header="false", schema="id BIGINT, v STRING"))
    assert found == [{"id": 1, "v": "a"}]


@follows("streams.inputs.files.position:replaced_error")
def _(told: Told) -> None:
    folder = told.folder / "files"
    file = put(folder, "a", SMALL)
    whole = file.read_bytes()
    query = Query()
    query.run(files_of(folder))
    before = query.checkpoint
    put(folder, "a", pa.concat_tables([SMALL, SMALL]), at_s=9)
    with told:
        query.run(files_of(folder))
    told("by fail_on_data_loss=false")
    query.checkpoint = before
    query.run(files_of(folder, failOnDataLoss="false"))
    told("Put back the file that was there")
    query.checkpoint = before
    put(folder, "a", whole)
    query.run(files_of(folder))
    told("write each file under a name of its own")
    put(folder, "b", SMALL, at_s=9)
    assert len(query.run(files_of(folder))) == 1


@follows("streams.inputs.files.position:FilePosition.unpacked")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    put(told.folder / "files", "a", SMALL)
    query = Query()
    query.run({"inputs": "files", "input.files.path": path})
    with told:
        query.run(files_of(told.folder / "files"))
    told("give the query a new checkpointLocation")
    assert Query().run(files_of(told.folder / "files"))


# What changes between the plan of a batch and its reading -----------------------------------


def planned_then(given: Given, between: Callable[[], object]) -> Rows:
    """Plan a batch read, let something happen, and read."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    read = MergedRead(
        batch_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns)
    )
    splits = list(read.splits())
    between()
    return [row for work in splits for each in read.read(work) for row in each.to_pylist()]


@follows("streams.inputs.files.input:_Files.translated")
@follows("streams.inputs.files.input:_Files.require_same")
def _(told: Told) -> None:
    folder = told.folder / "files"
    file = put(folder, "a", SMALL)
    whole = file.read_bytes()
    is_gone = "translated" in told.site.name

    def change() -> None:
        file.unlink()
        if not is_gone:
            put(folder, "a", pa.concat_tables([SMALL, SMALL]), at_s=9)

    with told:
        planned_then(files_of(folder), change)
    put(folder, "a", whole)
    told("go on without its rows by fail_on_data_loss=false")
    assert planned_then(files_of(folder, failOnDataLoss="false"), change) == []
    put(folder, "a", whole)
    if is_gone:
        told("put it back")
    else:
        told("write each file under a name that begins with '_' or '.', then rename it")
    assert len(batch(files_of(folder))) == 1


@follows("streams.inputs.files.input:_Files.translated:3")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id": 1}\n{"id": "one"}\n')
    given = files_of(folder, "json", schema="id BIGINT")
    with told:
        batch(given)
    told("JSON is read line by line, one object in each")
    put(folder, "a", b'{"id": 1}\n')
    assert batch(given) == [{"id": 1}]


@follows("streams.inputs.files.input:_Files.translated:2")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", WIDE)
    bad = put(folder, "b", TEXTS, at_s=2)
    with told:
        batch(files_of(folder))

    def mend() -> None:
        bad.unlink()
        put(folder, "mended", WIDE, at_s=3)

    told("Take the file away, and bring it back mended under another name")
    told("the query goes on with fail_on_data_loss=false")
    lenient = files_of(folder, failOnDataLoss="false")
    assert len(planned_then(lenient, mend)) == 1
    assert len(batch(lenient)) == 2


replayed(
    "streams.inputs.files.position:FilePosition.delivered_since",
    lambda o: o["positions"]["files"].update(batch=[]),
    "parquet",
)


class Days:
    """A folder of files of one day each, and a query whose checkpoint tells few apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.query = Query()
        for day in range(1, 6):
            self.put(f"f{day}", day)
        self.run()

    def put(self, name: str, day: int) -> None:
        put(self.folder, name, SMALL, at_s=day * 86_400)

    def run(self, **more: str) -> Rows:
        with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 3):
            return self.query.run({**files_of(self.folder), **more})


@follows("streams.inputs.files.position:_came_late")
def _(told: Told) -> None:
    days = Days(told.folder / "files")
    days.put("late", 1)
    before = days.query.checkpoint
    with told:
        days.run()
    told("go on without it by fail_on_data_loss=false")
    assert days.run(failOnDataLoss="false") == []
    told("renew its time (touch, or copy it in place)")
    days.query.checkpoint = before
    days.put("late", 9)
    assert len(days.run()) == 1


@follows("streams.inputs.files.position:_went_away")
def _(told: Told) -> None:
    days = Days(told.folder / "files")
    (days.folder / "f2").unlink()
    before = days.query.checkpoint
    with told:
        days.run()
    told("remove delivered files from the oldest on")
    (days.folder / "f1").unlink()
    days.run()
    days.put("f1", 1)
    days.query.checkpoint = before
    told("go on by fail_on_data_loss=false, until the next file is delivered")
    assert days.run(failOnDataLoss="false") == []
    days.put("f6", 7)
    assert len(days.run(failOnDataLoss="false")) == 1
    assert days.run() == []


@follows("streams.inputs.files.input:_Files.translated:4")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", SMALL)
    given = files_of(folder, schema="id INT, v STRING")
    hangs = patch.object(LocalFolder, "open", side_effect=OSError(errno.EIO, "the disk hangs"))
    with hangs, told:
        batch(given)
    told("try again")
    assert len(batch(given)) == 1


@follows("options.inputs:_refuse_of_tables")
def _(told: Told) -> None:
    paths = lake(told.folder, "files")
    given = {**files_of(told.folder / "files"), "readHistory": "true"}
    with told:
        batch(given)
    told("drop 'readHistory'")
    put(told.folder / "others", "a", SMALL)
    assert len(batch(files_of(told.folder / "others"))) == 1
    told("if 'files' is a table, 'input.files.format'")
    assert len(batch({**inputs_of(paths), "readHistory": "true"})) == 1


@follows("options.inputs:_refuse_of_tables:2")
def _(told: Told) -> None:
    paths = lake(told.folder, "table")
    put(told.folder / "files", "a", pa.table(ROW))
    given = {**files_of(told.folder / "files"), "inputs": "files,table"}
    given["input.table.path"] = paths["table"]
    with told:
        batch({**given, "filter": "false"})
    told("give 'input.table.filter', for that table alone")
    assert len(batch({**given, "input.table.filter": "false"})) == 1
    told("or filter behind the read")
    assert len(batch(given)) == 2
