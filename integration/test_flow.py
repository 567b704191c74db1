"""Flows on Spark: what only its tasks, its exchange and its micro-batches can break.

Random graphs are in `test_random_flows`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flow import latest
from examples.flow.latest import Devices
from integration.queries import end, forget_last_commit
from pyspark_upsertflow import flow as flows
from pyspark_upsertflow import view
from spark_upsert.errors import GraphError, WidthError
from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    ChannelPath,
    CollectSink,
    Flow,
    FusedGraph,
    Graph,
    InputRows,
    Legacy,
    Manual,
    PythonFunction,
    Scheme,
    TableSink,
    expanded,
    fused,
)
from spark_upsert.flow.graph import Work
from spark_upsert.flow.local import collect
from spark_upsert.table.table import Table
from spark_upsert.task import (
    Aggregate,
    ArrowScan,
    Filter,
    Group,
    HashJoin,
    JoinKeys,
    JoinType,
    Limit,
    Project,
    ProjectedColumn,
)
from tests.support.flow_runs import sorted_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})
TAGGED = ROWS.append(pa.field("channel", pa.int64()))
SUMS = pa.schema({"k": pa.int64(), "channel": pa.int64(), "n": pa.int64(), "v": pa.int64()})


def rows_of(count: int) -> pa.Table:
    return pa.table({"k": [n % 5 for n in range(count)], "v": list(range(count))}, schema=ROWS)


def with_channel(
    batches: Iterator[pa.RecordBatch], channel: ChannelPath
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("channel", pa.array([channel.index] * len(batch), pa.int64()))


def pipeline(source: Work, sink: Work, *, clean: int = 3, totals: int = 2) -> Graph:
    """Return two adjacent regions: rows in turn, then by key; each notes its channel."""
    flow = Flow()
    rows = flow.source("orders", source, schema=ROWS)
    with flow.parallel("clean", clean):
        some = Filter(id="some", input=ArrowScan(id="input", schema=ROWS), where="v % 7 <> 0")
        rows = flow.operator("some", some, rows, schema=ROWS)
    with flow.parallel("totals", totals, partition_by=["k"]):
        rows = flow.operator("where", PythonFunction(with_channel, TAGGED, True), rows)
        sums = Group(
            id="sums",
            input=ArrowScan(id="input", schema=TAGGED),
            keys=("k", "channel"),
            aggregates=(Aggregate.of("n", "count"), Aggregate.of("v", "sum", "v")),
        )
        rows = flow.operator("sum", sums, rows, schema=SUMS)
    flow.sink("kept", sink, rows)
    return flow.graph()


def rows_in(frame: DataFrame) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in frame.collect())


SCHEMES: dict[str, Scheme] = {
    "apart": Legacy(),
    "automatic": Automatic(slots=2),
    "in three": Manual(3),
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_each_key_comes_to_the_task_of_its_channel(spark: SparkSession, scheme: Scheme) -> None:
    plan = fused(expanded(pipeline(ArrowSource(rows_of(60)), CollectSink())), scheme)
    [found] = flows.frames(spark, plan).values()
    expected = sorted(tuple(row.values()) for row in collect(plan)["kept"].to_pylist())
    assert rows_in(found) == expected
    assert {(k, channel) for k, channel, *_ in expected} == {(k, k % 2) for k in range(5)}


def test_channels_stay_apart_whatever_adaptive_execution_would_like(spark: SparkSession) -> None:
    flow = Flow()
    rows = flow.source("rows", InputRows(ROWS))
    with flow.parallel("wide", 5, partition_by=["k"]):
        rows = flow.operator("where", PythonFunction(with_channel, TAGGED, True), rows)
    flow.sink("kept", CollectSink(), rows)
    plan = fused(expanded(flow.graph()), Legacy())
    # All but three rows are of one key, and partitions of some kilobytes would be cut or merged.
    skewed = spark.range(0, 30_000, 1, 3).selectExpr("if(id < 29997, 1, id % 3 + 2) k", "id v")
    tiny = spark.range(0, 1).selectExpr("4L k", "id v")
    sizes = ("advisoryPartitionSizeInBytes", "skewJoin.skewedPartitionThresholdInBytes")
    settings = {f"spark.sql.adaptive.{name}": "1000" for name in sizes}
    settings["spark.sql.adaptive.forceOptimizeSkewedJoin"] = "true"
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for given, keys in ((skewed, {1, 2, 3, 4}), (tiny, {4}), (tiny.limit(0), set[int]())):
            [found] = flows.frames(spark, plan, {"rows": given}).values()
            placed = found.select("k", "channel", F.spark_partition_id()).distinct().collect()
            assert {tuple(row) for row in placed} == {(k, k, k) for k in keys}
            assert found.rdd.getNumPartitions() == 5
    finally:
        for name in settings:
            spark.conf.unset(name)


# -- any graph -------------------------------------------------------------------------------


def diamond() -> Graph:
    """Return a graph whose source feeds a nested region, an operator outside, and their join."""
    flow = Flow()
    rows = flow.source("rows", ArrowSource(rows_of(40)))
    with flow.parallel("outer", 2, partition_by=["k"]), flow.parallel("inner", 2):
        some = Filter(id="some", input=ArrowScan(id="input", schema=ROWS), where="v > 9")
        inside = flow.operator("some", some, rows, schema=ROWS)
    summed = Group(
        id="sums",
        input=ArrowScan(id="input", schema=ROWS),
        keys=("k",),
        aggregates=(Aggregate.of("total", "sum", "v"),),
    )
    named = Project(
        id="named",
        input=summed,
        columns=(ProjectedColumn("of", "k"), ProjectedColumn("total", "total")),
    )
    totals = flow.operator("sums", named, rows, schema=TOTALS)
    with flow.parallel("joined", 3, partition_by={"join.left": ["k"]}, broadcast=["join.right"]):
        join = HashJoin(
            id="join",
            left=ArrowScan(id="left", schema=ROWS),
            right=ArrowScan(id="right", schema=TOTALS),
            how=JoinType.INNER,
            on=JoinKeys.pairs(("k",), ("of",)),
        )
        both = flow.operator("join", join, ports={"left": inside, "right": totals}, schema=JOINED)
    flow.sink("both", CollectSink(), both)
    flow.sink("inside", CollectSink(), inside, flow.operator("again", plus(0), rows))
    return flow.graph()


TOTALS = pa.schema({"of": pa.int64(), "total": pa.int64()})
JOINED = pa.schema([*ROWS, *TOTALS])


def plus(number: int) -> PythonFunction:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([batch["k"], pc.add(batch["v"], number)], schema=ROWS)

    return PythonFunction(function, ROWS)


@pytest.mark.parametrize("scheme", [Legacy(), Automatic(slots=2)], ids=["apart", "automatic"])
def test_a_diamond_gives_what_it_gives_in_one_process(spark: SparkSession, scheme: Scheme) -> None:
    plan = fused(expanded(diamond()), scheme)
    expected = {name: sorted_rows(table) for name, table in collect(diamond()).items()}
    found = {name: rows_in(frame) for name, frame in flows.frames(spark, plan).items()}
    assert found == expected


def test_frames_may_be_united_and_come_to_fewer_partitions(spark: SparkSession) -> None:
    flow = Flow()
    rows = flow.source("rows", InputRows(ROWS))
    total = Group(
        id="total",
        input=ArrowScan(id="input", schema=TAGGED),
        aggregates=(Aggregate.of("n", "count"), Aggregate.of("channel", "max", "channel")),
    )
    with flow.parallel("wide", 3, partition_by=["k"]):
        rows = flow.operator("where", PythonFunction(with_channel, TAGGED, True), rows)
        rows = flow.operator("total", total, rows)
    flow.sink("kept", CollectSink(), rows)
    given = {"rows": spark.range(2).selectExpr("1L k", "id v")}
    [found] = flows.frames(spark, fused(expanded(flow.graph()), Legacy()), given).values()
    # Channels without rows count none; an operator that takes itself for another one counts otherwise.
    expected = [(0, None), (0, None), (2, 1)]
    many = spark.range(0, 2, 1, 2).selectExpr("id n", "id channel").where("n > 5")
    for each in (many.union(found), found.coalesce(1), many.union(found).coalesce(2)):
        assert sorted(map(tuple, each.collect()), key=str) == expected


def test_what_two_tables_take_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    seen = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add(len(batch))
            yield batch

    flow = Flow()
    rows = flow.source("rows", InputRows(ROWS))
    with flow.parallel("wide", 2):
        both = flow.operator("counted", PythonFunction(counted, ROWS), rows)
    for name in ("one", "other"):
        flow.sink(name, TableSink(str(tmp_path / name), {"keys": "v"}), both)
    flows.run(spark, flow.graph(), {"rows": spark.range(30).selectExpr("id % 3 k", "id v")})
    assert seen.value == 30
    for name in ("one", "other"):
        assert Table.open(str(tmp_path / name)).snapshot().num_rows == 30


# -- streams ---------------------------------------------------------------------------------


def run_on(spark: SparkSession, devices: Devices, plan: Graph | FusedGraph) -> None:
    """Run the flow until it has caught up."""
    end(flows.start(spark, plan, str(devices.root / "checkpoint"), available_now=True))


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    devices = Devices(tmp_path)
    for epoch in ((1, 2, 3), (1,), (2, 2, 4)):
        devices.read(*epoch)
    return devices


def test_a_stream_into_two_tables_goes_on_at_other_widths_and_in_other_elements(
    spark: SparkSession, devices: Devices
) -> None:
    run_on(spark, devices, fused(expanded(latest.graph(devices.root)), Legacy()))
    assert latest.rows_of(devices.root, "latest") == devices.latest
    # Spark fell right behind the commits of the tables: the batch comes again, otherwise shared out.
    forget_last_commit(devices.root / "checkpoint")
    devices.read(1, 5)
    run_on(
        spark,
        devices,
        fused(expanded(latest.graph(devices.root, parse=1, latest=3)), Automatic(slots=2)),
    )
    assert latest.rows_of(devices.root, "latest") == devices.latest
    assert len(latest.rows_of(devices.root, "all")) == devices.count
    # Each table took the batch that came twice once, and the one behind it.
    assert Table.open(str(devices.root / "all")).log.head().version == 1


def test_state_holds_the_width_under_a_checkpoint(spark: SparkSession, devices: Devices) -> None:
    run_on(spark, devices, latest.graph(devices.root, keeps_state=True))
    with pytest.raises(
        WidthError, match=r"'decide\.newest' has kept state with width 2 of 'decide'"
    ):
        run_on(spark, devices, latest.graph(devices.root, latest=3, keeps_state=True))
    devices.read(3, 6)
    # The region without state may get another width.
    run_on(spark, devices, latest.graph(devices.root, parse=2, keeps_state=True))
    assert latest.rows_of(devices.root, "latest") == devices.latest


# -- what is refused -------------------------------------------------------------------------


def test_a_function_that_lies_about_its_columns_is_named(spark: SparkSession) -> None:
    flow = Flow()
    rows = flow.source("rows", ArrowSource(rows_of(3)))
    with flow.parallel("wide", 1):
        rows = flow.operator("liar", PythonFunction(with_channel, ROWS, True), rows)
    flow.sink("kept", CollectSink(), rows)
    [found] = flows.frames(spark, flow.graph()).values()
    with pytest.raises(
        PythonException, match=r"operator 'wide.liar\[0\]' gave the columns k int64"
    ):
        found.collect()


def test_a_function_that_cannot_be_pickled_is_refused_before_anything_runs(
    spark: SparkSession,
) -> None:
    lock = threading.Lock()

    def locked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    flow = Flow()
    rows = flow.operator(
        "locked", PythonFunction(locked, ROWS), flow.source("rows", InputRows(ROWS))
    )
    flow.sink("kept", CollectSink(), rows)
    with pytest.raises(GraphError, match="function of operator 'locked' cannot be pickled"):
        flows.frames(spark, flow.graph(), {"rows": spark.range(0).selectExpr("id k", "id v")})


def test_what_cannot_run_on_spark_is_refused_by_the_name_of_its_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value k", "value v")
    scan = ArrowScan(id="input", schema=ROWS)
    halves = PythonFunction(iter, pa.schema({"half": pa.float16()}))
    twice = PythonFunction(iter, pa.schema([("k", pa.int64()), ("k", pa.int64())]))
    for work, given, text in (
        (halves, stream, "'odd' gives the column 'half' of the type halffloat, which Spark does"),
        (twice, stream, "'odd' gives 2 columns 'k', which Spark cannot tell apart"),
        (Limit(id="few", input=scan, count=3), stream, "operator 'odd' has a limit, whose counter"),
        (
            scan,
            spark.range(0).selectExpr("id k", "id v"),
            "source 'rows' is to be a stream, and is",
        ),
        (scan, ROWS.empty_table(), "no frame is given for the source 'rows', but Table"),
    ):
        flow = Flow()
        odd = flow.operator("odd", work, flow.source("rows", InputRows(ROWS)), schema=ROWS)
        flow.sink("kept", TableSink(str(tmp_path / "kept")), odd)
        with pytest.raises(GraphError, match=text):
            flows.start(spark, flow.graph(), str(tmp_path / "checkpoint"), {"rows": given})


def test_columns_come_back_as_they_were_said_whatever_spark_makes_of_them(
    spark: SparkSession,
) -> None:
    noon = datetime(2026, 3, 29, 12)
    given = pa.table(
        {
            "at": pa.array([noon], pa.timestamp("us")),
            "there": pa.array([noon.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Oslo")),
            "text": pa.array(["a"], pa.large_string()),
            "kind": pa.array(["b"]).dictionary_encode(),
        }
    )

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.types == given.schema.types
            yield batch

    flow = Flow()
    rows = flow.source("rows", ArrowSource(given))
    with flow.parallel("wide", 2):
        rows = flow.operator("seen", PythonFunction(seen, given.schema), rows)
    flow.sink("kept", CollectSink(), rows)
    [found] = flows.frames(spark, flow.graph()).values()
    assert found.toArrow().to_pylist() == given.to_pylist()


# -- the plans of the connector itself -------------------------------------------------------


def test_tables_of_one_key_are_joined_without_an_exchange(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("left", "right")]
    for path, column in zip(paths, "vw", strict=True):
        rows = pa.table({"k": range(40), column: range(40)})
        Table.create(path, rows.schema, keys=["k"]).upsert(rows)
    left, right = map(view, paths)
    together = left.join(right, on={"k": "k"}).read(spark, splits="2")
    # Each task has the hashes of both tables that lie in its range; Spark itself would move rows.
    apart = [spark.read.format("upsertflow").load(path) for path in paths]
    moved = apart[0].join(apart[1].withColumnRenamed("k", "of"), F.expr("k = of"))
    assert "Exchange" not in plan_of(together)
    assert "Exchange" in plan_of(moved)
    assert together.rdd.getNumPartitions() == 2
    assert {(row.v, row.w) for row in together.collect()} == {(n, n) for n in range(40)}


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan())
