"""Hints of what only Spark brings: its frames, its types, other Python sources."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import LongType, StructField, StructType, TimeType

from pyspark_upsertflow import flow as flows
from pyspark_upsertflow.python_source import KINDS, find_source
from pyspark_upsertflow.readers import read_schema
from pyspark_upsertflow.views import _require_own_checkpoint
from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Graph,
    InputRows,
    PythonFunction,
    TableSink,
)
from spark_upsert.flow.graph import Work
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.views import ViewOptions, put_off_text
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    stream_inputs,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.table import Table
from spark_upsert.task import ArrowScan, Limit
from spark_upsert.views.plan_builder import Plan
from spark_upsert_sink.deferred import SPLIT, rows_behind, without_split
from spark_upsert_sink.types import require_kept
from spark_upsert_sink.worker import refuse_application
from spark_upsert_sink.writers import UpsertBatchWriter
from tests.hints.hint import Told, follows, follows_on_spark
from tests.hints.options import changed
from tests.hints.reads import Query
from tests.hints.tables import write, write_and_open
from tests.support import python_sources
from tests.unit.test_python_input import world_of

# Flows --------------------------------------------------------------------------------------

ROWS = pa.table({"k": [1, 2], "v": [3, 4]})


def flow_of(source: Work, *works: Work, sinks: tuple[Work, ...] = (CollectSink(),)) -> Graph:
    flow = Flow()
    rows = flow.source("rows", source)
    for number, work in enumerate(works):
        rows = flow.operator(f"o{number}", work, rows)
    for number, sink in enumerate(sinks):
        flow.sink(f"to{number}", sink, rows)
    return flow.graph()


def frame_of(spark: SparkSession, folder: Path, *, is_stream: bool) -> Any:
    path = str(folder / "table")
    if not Path(path).exists():
        Table.create(path, ROWS.schema, keys=["k"]).upsert(ROWS)
    reader = spark.readStream if is_stream else spark.read
    return reader.format("upsertflow").load(path)


@follows_on_spark("pyspark_upsertflow.flow:_sources")
@follows_on_spark("pyspark_upsertflow.flow:_require_kind")
def _(told: Told, spark: SparkSession) -> None:
    still = frame_of(spark, told.folder, is_stream=False)
    moving = frame_of(spark, told.folder, is_stream=True)
    to = TableSink(str(told.folder / "to"), {"keys": "k"})
    checkpoint = str(told.folder / "checkpoint")

    def started(graph: Graph, given: Any = None) -> None:
        flows.start(spark, graph, checkpoint, given, available_now=True).awaitTermination()

    with told:
        if "_sources" in told.site.name:
            started(flow_of(ArrowSource(ROWS), sinks=(to,)))
        else:
            started(flow_of(InputRows(ROWS.schema), sinks=(to,)), {"rows": still})
    if "_sources" in told.site.name:
        told("make it Given(schema), and give a streaming frame")
    else:
        told("give spark.readStream to `start`")
    started(flow_of(InputRows(ROWS.schema), sinks=(to,)), {"rows": moving})
    assert Table.open(to.path).snapshot().num_rows == 2


@follows_on_spark("pyspark_upsertflow.flow:_sources:2")
def _(told: Told, spark: SparkSession) -> None:
    graph = flow_of(InputRows(ROWS.schema))
    with told:
        flows.frames(spark, graph)
    told("give it a frame: given={'rows': frame}")
    still = frame_of(spark, told.folder, is_stream=False)
    assert flows.frames(spark, graph, {"rows": still})["to0"].count() == 2


@follows_on_spark("pyspark_upsertflow.flow:_sources:3")
def _(told: Told, spark: SparkSession) -> None:
    with told:
        flows.frames(spark, flow_of(CollectSink(), PythonFunction(iter, ROWS.schema)))
    told("an ArrowSource")
    assert flows.frames(spark, flow_of(ArrowSource(ROWS)))["to0"].count() == 2


@follows_on_spark("pyspark_upsertflow.flow:start")
def _(told: Told, spark: SparkSession) -> None:
    moving = frame_of(spark, told.folder, is_stream=True)
    sinks = tuple(TableSink(str(told.folder / name), {"keys": "k"}) for name in "ab")
    graph = flow_of(InputRows(ROWS.schema), sinks=sinks)
    with told:
        flows.start(spark, graph, "hdfs://name/checkpoint", {"rows": moving}, available_now=True)
    told("put it where tables can lie")
    own = str(told.folder / "checkpoint")
    flows.start(spark, graph, own, {"rows": moving}, available_now=True).awaitTermination()
    assert Table.open(sinks[1].path).snapshot().num_rows == 2


@follows_on_spark("pyspark_upsertflow.flow:_require_no_counters")
def _(told: Told, spark: SparkSession) -> None:
    few = Limit(id="few", input=ArrowScan(id="input", schema=ROWS.schema), count=1)
    to = TableSink(str(told.folder / "to"), {"keys": "k"})
    moving = frame_of(spark, told.folder, is_stream=True)
    checkpoint = str(told.folder / "checkpoint")
    with told:
        graph = flow_of(InputRows(ROWS.schema), few, sinks=(to,))
        flows.start(spark, graph, checkpoint, {"rows": moving}, available_now=True)
    told("run the flow as a batch")
    flows.run(spark, flow_of(ArrowSource(ROWS), few, sinks=(to,)))
    assert Table.open(to.path).snapshot().num_rows == 1


@follows_on_spark("pyspark_upsertflow.flow:_require_carried")
def _(told: Told, spark: SparkSession) -> None:
    twice = pa.Table.from_arrays([ROWS["k"], ROWS["v"]], names=["k", "k"])
    with told:
        flows.frames(spark, flow_of(ArrowSource(twice)))
    told("rename all but one of them")
    assert flows.frames(spark, flow_of(ArrowSource(ROWS)))["to0"].count() == 2


@follows_on_spark("pyspark_upsertflow.flow:_require_carried:2")
def _(told: Told, spark: SparkSession) -> None:
    halves = ROWS.append_column("h", pa.array([0.5, 1.5], pa.float16()))

    def cast(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (batch.select(["k", "v"]) for batch in batches)

    with told:
        flows.frames(spark, flow_of(ArrowSource(ROWS), PythonFunction(iter, halves.schema)))
    told("leave it out")
    graph = flow_of(ArrowSource(ROWS), PythonFunction(cast, ROWS.schema))
    assert flows.frames(spark, graph)["to0"].count() == 2


@follows_on_spark("pyspark_upsertflow.flow:_require_pickled")
def _(told: Told, spark: SparkSession) -> None:
    lock = threading.Lock()

    def locked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    def own(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with threading.Lock():
            yield from batches

    with told:
        flows.frames(spark, flow_of(ArrowSource(ROWS), PythonFunction(locked, ROWS.schema)))
    told("open files, locks and sessions within the function")
    graph = flow_of(ArrowSource(ROWS), PythonFunction(own, ROWS.schema))
    assert flows.frames(spark, graph)["to0"].count() == 2


# Views --------------------------------------------------------------------------------------


@follows("pyspark_upsertflow.views:_require_own_checkpoint")
def _(told: Told) -> None:
    from spark_upsert.table.log.manifest import Transaction

    writer = Transaction.writer_of_query("one")
    table = Table.create(str(told.folder / "kept"), ROWS.schema, keys=["k"])
    table.upsert(ROWS, transaction=Transaction(writer=writer, number=0))
    for query in ("one", "two"):
        (told.folder / query).mkdir()
        (told.folder / query / "metadata").write_text(json.dumps({"id": query}))
    with told:
        _require_own_checkpoint(table, str(told.folder / "two"), {})
    told("go on with the checkpoint of that query")
    _require_own_checkpoint(table, str(told.folder / "one"), {})
    told("keep the view in a new path")
    new = Table.create(str(told.folder / "new"), ROWS.schema, keys=["k"])
    _require_own_checkpoint(new, str(told.folder / "two"), {})


# Other Python sources -----------------------------------------------------------------------

MODULE = python_sources.__name__


def lines(folder: Path, cls: str, count: int = 2, **more: str) -> dict[str, str]:
    (folder / "lines").write_text("".join(f"{n},text\n" for n in range(count)))
    path = str(folder / "lines")
    name = cls if ":" in cls or not cls else f"python:{MODULE}:{cls}"
    return {"inputs": "it", "input.it.format": name, "input.it.path": path, **more}


def streamed(given: dict[str, str]) -> None:
    plan = ReadPlan.parse(given)
    stream = Stream(stream_inputs(plan, plan_columns(plan, KINDS), KINDS), plan.query)
    try:
        start = stream.initial()
        end = stream.latest(start, everything=True)
        for work in stream.splits(start, end):
            list(stream.read(work))
    finally:
        stream.stop()


def batch(given: dict[str, str]) -> int:
    plan = ReadPlan.parse(given)
    read = MergedRead(batch_inputs(plan, plan_columns(plan, KINDS), KINDS), plan.query)
    return sum(each.num_rows for work in read.splits() for each in read.read(work))


@follows("pyspark_upsertflow.python_source:find_source")
def _(told: Told) -> None:
    with told:
        find_source("not_installed_here:Source")
    told("install its package on the driver and on every executor")
    assert find_source(f"{MODULE}:{SOURCE}")


@follows("pyspark_upsertflow.python_source:find_source:2")
def _(told: Told) -> None:
    with told:
        find_source(f"{MODULE}:Range")
    told("write python:<module>:<Class>")
    assert find_source(f"{MODULE}:{SOURCE}")


@follows("pyspark_upsertflow.python_source:_discovered")
def _(told: Told) -> None:
    with told:
        find_source("upsertflw")
    assert find_source(told.meant)
    told("Or write python:<module>:<Class>")
    assert find_source(f"{MODULE}:{SOURCE}")


SOURCE = next(
    name
    for name, each in vars(python_sources).items()
    if isinstance(each, type) and issubclass(each, DataSource) and each is not DataSource
)


@follows("pyspark_upsertflow.python_source:source_failed")
def _(told: Told) -> None:
    given = lines(told.folder, SOURCE)
    (told.folder / "lines").unlink()
    with told:
        streamed(given)
    told("the fault is that source's, or that of its options")
    streamed(lines(told.folder, SOURCE))


@follows("pyspark_upsertflow.python_source:_steps.rows")
def _(told: Told) -> None:
    given = lines(told.folder, SOURCE, merge="roundrobin")
    with told:
        streamed(given)
    told("use merge=concat without 'maxRowsPerTrigger' and without '_merge_seq'")
    streamed({**given, "merge": "concat"})
    told("leave out 'merge' and 'interleaveSeed'")
    streamed(changed(given, {"merge": None}))


@follows("pyspark_upsertflow.python_source:_unpacked")
def _(told: Told) -> None:
    path = write_and_open(told.folder).store.url
    query = Query()
    query.run({"inputs": "it", "input.it.path": path})
    checkpoint = json.loads(query.checkpoint or "")
    plan = ReadPlan.parse(lines(told.folder, SOURCE))
    stream = Stream(stream_inputs(plan, plan_columns(plan, KINDS), KINDS), plan.query)
    with told:
        stream.latest(checkpoint, everything=True)
    told("give the query a new checkpointLocation")
    streamed(lines(told.folder, SOURCE))


# Types and options --------------------------------------------------------------------------


@follows("pyspark_upsertflow.readers:_require_spark_has")
def _(told: Told) -> None:
    path = str(told.folder / "table")
    schema = pa.schema({"k": pa.int64(), "h": pa.uint64()})
    table = Table.create(path, schema, keys=["k"])
    with told:
        read_schema({"path": path})
    told('choose other columns by .option("columns", ...)')
    assert read_schema({"path": path, "columns": "k"}).names == ["k"]
    told("read this one with spark_upsert.table.table.Table")
    assert table.snapshot().num_rows == 0


@follows("pyspark_upsertflow.catalog:_no_holder")
def _(told: Told) -> None:
    path = write_and_open(told.folder).store.url
    made = {"path": path, "provider": "upsertflow"}
    with told:
        read_schema({**made, "columns": "v"})
    told("choose a key column by 'columns'")
    (held,) = read_schema({**made, "columns": "id"})
    assert not held.nullable
    told("CREATE TEMPORARY VIEW v USING upsertflow OPTIONS (path '...')")
    assert read_schema({"path": path, "columns": "v"}).names == ["v"]


@follows("pyspark_upsertflow.catalog:refuse_secrets")
def _(told: Told) -> None:
    path = write_and_open(told.folder).store.url
    made = {"path": path, "provider": "upsertflow"}
    with told:
        read_schema({**made, "storage.secret_access_key": "x"})
    told("leave it away")
    assert read_schema(made).names[0] == "id"
    told("OPTIONS (path '...', `storage.secret_access_key` '...')")
    view = {"path": path, "storage.secret_access_key": "x"}
    (only,) = ReadPlan.parse(view).inputs
    assert only.of_table().storage == {"secret_access_key": "x"}


@follows("spark_upsert_sink.types:_require")
def _(told: Told) -> None:
    nested = StructType([StructField("t", TimeType(3))])
    with told:
        require_kept(nested)
    told("write cast(t AS TIME(6)) instead")
    require_kept(StructType([StructField("t", TimeType(6))]))
    told("or drop 't' before the write")
    require_kept(StructType([]))


@follows("spark_upsert_sink.worker:refuse_application")
def _(told: Told) -> None:
    with told:
        refuse_application("nightly")
    told("drop them")
    refuse_application(None)


@follows("spark_upsert_sink.deferred:without_split")
def _(told: Told) -> None:
    columns = StructType([])
    with told:
        without_split(columns)
    told("drop the option")
    assert SPLIT not in columns.names


class OnlyBatches(python_sources.Lines):
    """A source that has no stream reader."""

    streamReader = DataSource.streamReader


@follows("pyspark_upsertflow.python_source:PythonSource.stream")
def _(told: Told) -> None:
    given = lines(told.folder, f"python:{__name__}:OnlyBatches")
    with told:
        streamed(given)
    told("read it in a batch")
    assert batch(given) == 2
    told("choose another source")
    streamed(lines(told.folder, SOURCE))


@follows_on_spark("pyspark_upsertflow.flow:_frame_of")
def _(told: Told, spark: SparkSession) -> None:
    exact = pa.table({"k": [1], "t": pa.array([1], pa.timestamp("ns"))})
    with told:
        flows.frames(spark, flow_of(ArrowSource(exact)))
    told("cast them before, as they are to be")
    rough = exact.set_column(1, "t", exact["t"].cast(pa.timestamp("us"), safe=False))
    assert flows.frames(spark, flow_of(ArrowSource(rough)))["to0"].count() == 1


@follows("pyspark_upsertflow.python_source:_batches")
def _(told: Told) -> None:
    with told:
        streamed(lines(told.folder, "BrokenLines"))
    told("the fault is that source's")
    streamed(lines(told.folder, "Lines"))


@follows("pyspark_upsertflow.python_source:PythonInput._require_forward")
def _(told: Told) -> None:
    world = world_of(told.folder, "ForgetfulLines")
    world.write("a", "b", "c")
    world.query.drain()
    world.query.restart()
    with told:
        world.query.plan()
    told("give the query a new checkpointLocation")
    fresh = world_of(told.folder, "ForgetfulLines")
    fresh.write("a", "b", "c")
    fresh.query.drain()
    assert fresh.texts == ["a", "b", "c"]
    told("set fail_on_data_loss=false")
    world.given["failOnDataLoss"] = "false"
    world.query.restart()
    assert world.query.plan()


@follows("spark_upsert_sink.writers:_Write.__init__")
def _(told: Told) -> None:
    path = write_and_open(told.folder).store.url
    columns = StructType([StructField("id", LongType())])
    given = {"path": path, "operation": "delete"}
    with told:
        UpsertBatchWriter(given, columns, True)
    told("write the keys with mode 'append'")
    UpsertBatchWriter(given, columns, False)


@follows("spark_upsert_sink.writers:UpsertBatchWriter.__init__")
def _(told: Told) -> None:
    path = write_and_open(told.folder).store.url
    columns = StructType([StructField("id", LongType())])
    given = {"path": path, "keys": "id", "mergeSchema": "true"}
    view = Plan.of_table(path)
    deferred = {"deferred": put_off_text({"plan": view.to_json()})}
    with told:
        UpsertBatchWriter({**given, **deferred}, columns, False)
    told("drop it")
    UpsertBatchWriter(given, columns, False)


@follows("spark_upsert_sink.deferred:_require_nothing_else")
@follows("streams.reads.views:_foreign")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    view = ViewOptions.put_off(put_off_text({"plan": Plan.of_table(table.store.url).to_json()}), {})
    columns = table.schema.columns
    row = {"id": 7} if "_require" in told.site.name else {SPLIT: b"no split"}
    rows = pa.RecordBatch.from_pylist([row], schema=pa.schema([*columns, (SPLIT, pa.binary())]))
    with told:
        list(rows_behind(iter([rows]), view, columns, None))
    told("drop 'deferred', which only 'keep' sets")
    write(told.folder, pa.table({"id": [7], "n": [7], "v": ["a"]}))
    assert Table.open(table.store.url).snapshot().num_rows == 2
