"""Hints of reads, as batches and as streams that are restarted with other options."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.options.inputs import InputOptions, ReadPlan
from spark_upsert.source import discovery, file_position
from spark_upsert.source.explain_read import explain_read
from spark_upsert.source.kinds import (
    batch_inputs,
    plan_columns,
    shared_columns,
    stream_inputs,
    stream_lookout,
    stream_offsets,
)
from spark_upsert.source.merged_read import MergedRead
from spark_upsert.source.passage import steps_of
from spark_upsert.source.stream import Stream
from spark_upsert.source.view_kind import ViewKind
from spark_upsert.source.work import refuse_own_epochs, splits_of
from spark_upsert.state.log.manifest import Transaction
from spark_upsert.store.folder import LocalFolder
from spark_upsert.table import Table
from spark_upsert.views.builder import Plan
from tests.hints.hint import Told, follows
from tests.hints.options import Change, changed
from tests.hints.tables import ROW, write
from tests.support.notebooks import few_are_many

Given = Mapping[str, str]
Rows = list[dict[str, Any]]


def batch(given: Given) -> Rows:
    """Return the rows of a batch read, as Spark's reader would."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    read = MergedRead(
        batch_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns)
    )
    return [row for work in read.splits() for each in read.read(work) for row in each.to_pylist()]


def stream_of(given: Given) -> Stream:
    """Return the stream of some options, as a process has it that has just begun."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    inputs = stream_inputs(plan, columns)
    return Stream(
        inputs,
        plan.query,
        lookout=stream_lookout(plan, inputs),
        offsets=stream_offsets(plan),
        columns=shared_columns(plan, columns),
    )


class Query:
    """A streaming query that goes on from its checkpoint, with options anew in each life."""

    def __init__(self) -> None:
        self.checkpoint: str | None = None

    def run(self, given: Given, *, batches_max: int = 9) -> Rows:
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

    def planned(self, given: Given, *, everything: bool = False) -> tuple[Any, Any]:
        """Plan a batch and deliver nothing of it; return its offsets."""
        stream = stream_of(given)
        start = self._start(stream)
        return start, json.loads(json.dumps(stream.latest(start, everything=everything)))

    def replay(self, given: Given, start: Any, end: Any) -> Rows:
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
    read: Callable[[Given], Rows] = batch,
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


def stream(given: Given) -> Rows:
    return Query().run(given)


CHANGES = {"readChangeFeed": "true"}

of_read(
    "source.versions:first_wanted",
    {**CHANGES, "startingVersion": "9"},
    {"start at 1 or before": {"startingVersion": "1"}, "'latest'": {"startingVersion": "latest"}},
)
of_read(
    "source.versions:upper_wanted",
    {**CHANGES, "startingVersion": "0", "endingVersion": "9"},
    {"end at 0 or before": {"endingVersion": "0"}, "drop the option": {"endingVersion": None}},
)


@follows("source.explain_read:_refuse_of_the_log")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]

    def explained(given: Given) -> str:
        plan = ReadPlan.parse(given)
        return explain_read(plan)

    with told:
        explained({"path": path, "metadata": "epochs"})
    told("drop 'metadata'")
    assert explained({"path": path})


@follows("source.columns:require_columns")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    plan = ReadPlan.parse({"path": path})
    columns = plan_columns(plan)
    given = columns.set(1, pa.field("n", pa.string()))
    with told:
        batch_inputs(plan, given)[""].splits()
    told("drop .schema(...) if you gave one")
    batch_inputs(plan, columns)[""].splits()


@follows("source.columns:require_columns:2")
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


@follows("source.table_input:TableInput._newest")
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


@follows("source.offset:no_offset")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.checkpoint = '{"partition": 3}'
    with told:
        query.run({"path": path})
    told("give the query a new checkpointLocation")
    assert Query().run({"path": path})


# Several inputs -----------------------------------------------------------------------------


@follows("source.agreement:_disagreement")
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


@follows("source.agreement:merged")
def _(told: Told) -> None:
    paths = lake(told.folder, "east")
    write(told.folder, {"id": [2], "n": [2], "v": [7]}, "west")
    given = inputs_of({**paths, "west": str(told.folder / "west")}, mergeSchema="true")
    with told:
        batch(given)
    told("leave it out by columns=...")
    assert len(batch({**given, "columns": "id,n"})) == 2


@follows("source.agreement:_require_distinct")
def _(told: Told) -> None:
    paths = lake(told.folder, "east")
    write(told.folder, {"id": [2], "n": [2], "V": ["b"]}, "west")
    given = inputs_of({**paths, "west": str(told.folder / "west")}, mergeSchema="true")
    with told:
        batch(given)
    told("leave one out by columns=...")
    assert len(batch({**given, "columns": "id,v"})) == 2


@follows("source.merge_columns:require_free")
def _(told: Told) -> None:
    write(told.folder, {**ROW, "_input": ["mine"]}, "east")
    given = inputs_of({"east": str(told.folder / "east")}, mergeColumns="_input")
    with told:
        batch(given)
    told("drop it from 'mergeColumns'")
    assert batch(changed(given, {"mergeColumns": None}))[0]["_input"] == "mine"
    told("leave theirs out by 'columns'")
    assert batch({**given, "columns": "id"})[0]["_input"] == "east"


@follows("source.inputs:NamedInputs._require")
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


@follows("source.kinds:with_found_inputs")
def _(told: Told) -> None:
    lake(told.folder, "east")
    with told:
        batch({"path": str(told.folder), "inputsPattern": "eats*"})
    told("check 'path' and 'inputsPattern'")
    assert batch({"path": str(told.folder), "inputsPattern": "*"})


@follows("source.found_inputs:FoundInputs._gone")
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


@follows("source.found_inputs:FoundInputs._gone:2")
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


# Exact orders -------------------------------------------------------------------------------


@follows("source.exact:_require_mode")
@follows("source.exact:refuse_exact")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat")
    query.run(exact, batches_max=1)
    before = query.checkpoint
    other = {"merge": "roundrobin"} if "_require_mode" in told.site.name else {"merge": None}
    with told:
        query.run(changed(exact, other))
    told("give 'merge' and 'interleaveSeed' as they were")
    query.checkpoint = before
    query.run(exact)
    told("a new checkpointLocation")
    assert len(Query().run(changed(exact, other))) == 2


@follows("source.exact:_not_exact")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    live = inputs_of(paths)
    query.run(live)
    exact = {**live, "interleaveSeed": "7"}
    with told:
        query.run(exact)
    told("leave out 'merge' and 'interleaveSeed'")
    query.run(live)
    told("give the query a new checkpointLocation")
    assert len(Query().run(exact)) == 2


@follows("source.exact:_require_order_of")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="roundrobin")
    query.run({**exact, "maxRowsPerTrigger": "1"}, batches_max=1)
    other = {**exact, "inputs": "west,east"}
    with told:
        query.run(other)
    told("give 'inputs' in that order: east,west")
    assert len(query.run({**exact, "inputs": "east,west"})) == 1
    told("give the query a new checkpointLocation")
    assert len(Query().run(other)) == 2


@follows("source.lives:require_same_reads")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat", readChangeFeed="true")
    query.run({**exact, "maxRowsPerTrigger": "1"}, batches_max=1)
    with told:
        query.run({**exact, "emitUnchanged": "true"})
    told("give 'deduplicationMode' as it was")
    assert len(query.run({**exact, "deduplicationMode": "dropCarryovers"})) == 1
    told("give the query a new checkpointLocation")
    assert len(Query().run({**exact, "emitUnchanged": "true"})) == 2


@follows("source.lives:require_same_beginning")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    exact = inputs_of(paths, merge="concat")
    query = Query()
    query.run(exact)
    assert query.checkpoint is not None
    altered = json.loads(query.checkpoint)
    altered["state"]["began"] = {"east": 3}
    plan = ReadPlan.parse(exact)
    columns = plan_columns(plan)
    stream = Stream(stream_inputs(plan, columns), plan.query, columns=columns)
    with told:
        stream.splits(stream.initial(), altered)
    told("give the query a new checkpointLocation")
    assert len(Query().run(exact)) == 2


@follows("source.lives:require_same_beginning:2")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "east")["east"]}
    query = Query()
    planned = query.planned(given)
    later = {**given, "startingVersion": "0"}
    with told:
        query.replay(later, *planned)
    told("give 'startingVersion' as it was, at least until that batch is delivered")
    assert len(query.replay(given, *planned)) == 1
    query.checkpoint = json.dumps(planned[1])
    query.run(later)
    told("give the query a new checkpointLocation")
    assert len(Query().run(later)) == 1


@follows("source.exact:ExactOrder._standing")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat")
    query.run(exact, batches_max=1)
    counted = {**exact, "mergeColumns": "_merge_seq"}
    with told:
        query.run(counted)
    told("drop '_merge_seq'")
    query.run(exact)
    told("give the query a new checkpointLocation")
    assert [row["_merge_seq"] for row in Query().run(counted)] == [0, 1]


EXACT = {"merge": "concat"}

for _wrong, _quoted in (
    ({"deduplicationMode": "netChanges", **CHANGES}, "use another mode"),
    ({"failOnDataLoss": "false", **CHANGES}, "drop it"),
):

    def of_exact(wrong: dict[str, str], quoted: str) -> None:
        option = next(iter(wrong))
        site = "table_steps:TableSteps.__init__" if "dedup" in option else "steps:refuse_gaps"

        @follows(f"source.{site}")
        def _(told: Told) -> None:
            given = inputs_of(lake(told.folder, "east"), **EXACT, **wrong)
            with told:
                stream(given)
            told(quoted)
            stream(changed(given, {option: None}))
            told("leave out 'merge' and 'interleaveSeed'")
            stream(changed(given, {"merge": None}))

    of_exact(_wrong, _quoted)


# Files --------------------------------------------------------------------------------------

SMALL = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]})
WIDE = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]})
MORE = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"], "w": [1]})
TEXTS = pa.table({"id": ["one"], "v": ["a"]})


def put(folder: Path, name: str, rows: pa.Table | bytes, *, at_s: int = 1) -> Path:
    """Write a file whose time is some seconds behind 2026."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    else:
        pq.write_table(rows, path)
    os.utime(path, (1_767_225_600 + at_s,) * 2)
    return path


def files_of(folder: Path, format_: str = "parquet", **more: str) -> dict[str, str]:
    own = {f"input.files.{name}": text for name, text in more.items() if name[0].islower()}
    return {
        "inputs": "files",
        "input.files.path": str(folder),
        "input.files.format": format_,
        **own,
    }


@follows("source.file_input:file_columns")
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


@follows("source.file_input:_Files.listed")
def _(told: Told) -> None:
    folder = told.folder / "files"
    with told:
        batch(files_of(folder, schema="id INT, v STRING"))
    told("make the folder: it may be empty")
    folder.mkdir()
    assert batch(files_of(folder, schema="id INT, v STRING")) == []
    told("check the 'path' option")


@follows("source.file_input:_merged")
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


@follows("source.file_formats:require_fits")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", MORE)
    put(folder, "b", SMALL, at_s=2)
    with told:
        batch(files_of(folder))
    told("with mergeSchema=true it would be null")
    found = batch(files_of(folder, mergeSchema="true"))
    assert [row["w"] for row in found] == [1, None]


@follows("source.file_formats:require_fits:2")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", WIDE)
    put(folder, "b", SMALL, at_s=2)
    with told:
        batch(files_of(folder))
    told("with mergeSchema=true it would be widened")
    assert len(batch(files_of(folder, mergeSchema="true"))) == 2


@follows("source.file_formats:require_fits:3")
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


@follows("source.file_input:_Files._unreadable")
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


@follows("source.file_texts:JsonReader.columns")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"\n")
    with told:
        batch(files_of(folder, "json"))
    told("schema")
    assert batch(files_of(folder, "json", schema="id BIGINT")) == []


@follows("source.file_texts:JsonReader.columns:2")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id": null}\n')
    with told:
        batch(files_of(folder, "json"))
    told("schema")
    assert batch(files_of(folder, "json", schema="id BIGINT")) == [{"id": None}]


@follows("source.file_texts:JsonReader.read")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id":\n1}\n')
    given = files_of(folder, "json", schema="id BIGINT")
    with told:
        batch(given)
    told("JSON is read line by line, one object in each")
    put(folder, "a", b'{"id": 1}\n')
    assert batch(given) == [{"id": 1}]


@follows("source.file_texts:CsvReader.columns")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"")
    with told:
        batch(files_of(folder, "csv"))
    told("schema")
    assert batch(files_of(folder, "csv", schema="id BIGINT")) == []


@follows("source.file_texts:CsvReader._own_names")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b"1,a\n")
    with told:
        batch(files_of(folder, "csv", header="false", schema="id BIGINT"))
    told("declare all of them")
    found = batch(files_of(folder, "csv", header="false", schema="id BIGINT, v STRING"))
    assert found == [{"id": 1, "v": "a"}]


@follows("source.file_position:replaced_error")
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


@follows("source.file_position:FilePosition.unpacked")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    put(told.folder / "files", "a", SMALL)
    query = Query()
    query.run({"inputs": "files", "input.files.path": path})
    with told:
        query.run(files_of(told.folder / "files"))
    told("give the query a new checkpointLocation")
    assert Query().run(files_of(told.folder / "files"))


@follows("source.table_position:TablePosition.unpacked")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    put(told.folder / "files", "a", SMALL)
    query = Query()
    query.run(files_of(told.folder / "files"))
    table = {"inputs": "files", "input.files.path": path}
    with told:
        query.run(table)
    told("give the query a new checkpointLocation")
    assert Query().run(table)


# Views --------------------------------------------------------------------------------------


def view_of(*paths: str) -> dict[str, str]:
    first, *others = (Plan.of_table(path) for path in paths)
    for number, other in enumerate(others):
        first = first.join(other.select("id", **{f"n{number}": "n"}), on="id")
    return {"plan": first.to_json()}


@follows("source.view_bounds:require_bounds")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west", indexBy="")
    both = view_of(*paths.values())
    with told:
        batch({**both, "versionAsOf": "0"})
    told("use 'timestampAsOf'")
    now_ms = max(Table.open(path).log.commit(0).timestamp_ms for path in paths.values())
    assert len(batch({**both, "timestampAsOf": str(now_ms)})) == 1
    told("or pin one by at_version()")
    pinned = Plan.of_table(paths["west"]).at_version(0).select("id", n2="n")
    plan = Plan.of_table(paths["east"]).join(pinned, on="id")
    assert len(batch({"plan": plan.to_json(), "versionAsOf": "0"})) == 1


@follows("source.view_position:ViewPosition.unpacked")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.run({"path": path})
    with told:
        query.run(view_of(path))
    told("give the query a new checkpointLocation")
    assert Query().run(view_of(path))


@follows("source.view_position:ViewPosition.unpacked:2")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.run(view_of(path))
    other = {"plan": Plan.of_table(path).filter("n > 0").to_json()}
    with told:
        query.run(other)
    told("run the plan that it was begun with")
    query.run(view_of(path))
    told("give the query a new checkpointLocation")
    assert Query().run(other)


# Checkpoints that were altered --------------------------------------------------------------

Alter = Callable[[dict[str, Any]], object]


def altered(site: str, alter: Alter) -> None:
    """Follow the hint about an exact order whose checkpoint was altered within a step."""

    @follows(f"source.{site}")
    def _(told: Told) -> None:
        rows = {"id": [1, 2, 3], "n": [1, 2, 3], "v": ["a", "b", "c"]}
        for name in ("east", "west"):
            write(told.folder, rows, name)
        paths = {name: str(told.folder / name) for name in ("east", "west")}
        given = inputs_of(paths, merge="roundrobin", maxRowsPerTrigger="3")
        query = Query()
        query.run(given, batches_max=1)
        offset = json.loads(query.checkpoint or "")
        alter(offset)
        query.checkpoint = json.dumps(offset)
        with told:
            query.run(given)
        told("give the query a new checkpointLocation")
        assert len(Query().run(given)) == 6


def state(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = offset["state"]["order"]
    return found


altered("exact:Standing.from_json", lambda o: state(o).update(rows=-1))
altered("exact:_Front.count", lambda o: state(o).update(skip={"east": 9, "west": 9}))
altered("exact:_finished", lambda o: state(o).update(ahead=dict(o["positions"])))


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


@follows("source.file_input:_Files.translated")
@follows("source.file_input:_Files.require_same")
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


@follows("source.file_input:_Files.translated:3")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", b'{"id": 1}\n{"id": "one"}\n')
    given = files_of(folder, "json", schema="id BIGINT")
    with told:
        batch(given)
    told("JSON is read line by line, one object in each")
    put(folder, "a", b'{"id": 1}\n')
    assert batch(given) == [{"id": 1}]


@follows("source.file_input:_Files.translated:2")
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


@follows("source.view_kind:ViewKind.describe")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    with told:
        ViewKind().describe(InputOptions(name="v", format="view", own=view_of(path)))
    told("join within one plan")
    assert len(batch(view_of(path))) == 1


def replayed(site: str, alter: Alter, format_: str = "table", **more: str) -> None:
    """Follow the hint about a batch whose offset was altered before it was replayed."""

    @follows(f"source.{site}")
    def _(told: Told) -> None:
        if format_ == "table":
            rows = {"id": [1, 2, 3], "n": [1, 2, 3], "v": ["a", "b", "c"]}
            for name in ("east", "west"):
                write(told.folder, rows, name)
            paths = {name: str(told.folder / name) for name in ("east", "west")}
            given = inputs_of(paths, **more)
        else:
            put(told.folder / "files", "a", SMALL)
            given = files_of(told.folder / "files")
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

replayed("exact:ExactOrder.passages", lambda o: o["positions"].pop("west"), **TURNS)
replayed("passage:_rows_and_no_more", lambda o: state(o)["given"].update(east=1, west=2), **TURNS)
replayed(
    "file_position:FilePosition.delivered_since",
    lambda o: o["positions"]["files"].update(batch=[]),
    "parquet",
)


@follows("source.inputs:Removed.steps")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    given = inputs_of(paths, **TURNS)
    query = Query()
    start, end = query.planned(given)
    fewer = inputs_of({"east": paths["east"]}, **TURNS, allowInputRemoval="true")
    with told:
        query.replay(fewer, start, end)
    told("name it again until that batch is done")
    assert len(query.replay(given, start, end)) == 2
    query.checkpoint = json.dumps(end)
    told("and remove it then")
    assert query.run(fewer) == []


@follows("source.passage:_rows")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", pa.concat_tables([SMALL, SMALL]))
    given = {**files_of(folder), **TURNS}
    query = Query()
    start, end = query.planned(given)
    counted = json.loads(json.dumps(end))
    state(counted).update(given={"files": 9}, rows=9)
    with told:
        query.replay(given, start, counted)
    told("restore it")
    assert len(query.replay(given, start, end)) == 2
    told("give the query a new checkpointLocation")
    assert len(Query().run(given)) == 2


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


@follows("source.file_position:_came_late")
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


@follows("source.file_position:_went_away")
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


@follows("source.passage:without_order")
def _(told: Told) -> None:
    path = lake(told.folder, "east")["east"]
    with told:
        steps_of("east", object())
    told("leave out 'merge' and 'interleaveSeed' to take what is ready first")
    assert len(batch(inputs_of({"east": path}))) == 1


@follows("source.discovery:Discovery._bounded")
def _(told: Told) -> None:
    lake(told.folder, "east", "west", "north")
    given = {"path": str(told.folder), "inputsPattern": "*"}
    with patch.object(discovery, "FOLDERS_MAX", 2):
        with told:
            batch(given)
        told("narrow 'inputsPattern'")
        assert len(batch({**given, "inputsPattern": "*east*"})) == 1
        told("or read with several queries")
        assert len(batch({**given, "inputsPattern": "*st"})) == 2
        assert len(batch({**given, "inputsPattern": "n*"})) == 1


@follows("source.bases:_unusable")
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


@follows("source.work:refuse_own_epochs")
def _(told: Told) -> None:
    own = Transaction(writer=Transaction.writer_of_query("one"), number=0)
    paths = lake(told.folder, "east", "west")
    Table.open(paths["east"]).append(pa.table(ROW), transaction=own)

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


@follows("source.file_input:_Files.translated:4")
def _(told: Told) -> None:
    folder = told.folder / "files"
    put(folder, "a", SMALL)
    given = files_of(folder, schema="id INT, v STRING")
    hangs = patch.object(LocalFolder, "open", side_effect=OSError(errno.EIO, "the disk hangs"))
    with hangs, told:
        batch(given)
    told("try again")
    assert len(batch(given)) == 1
