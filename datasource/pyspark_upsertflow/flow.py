"""Flows on Spark (`run`, `start`): one frame, with one ``mapInArrow`` pass per stage.

``repartitionById`` moves rows to their task. The end of a micro-batch is the barrier
(docs/adr/0041).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_upsertflow.registration import find_parallelism
from spark_upsert.core.casts import convert
from spark_upsert.errors import GraphError, OptionError
from spark_upsert.flow.expand import expanded
from spark_upsert.flow.fusion import Automatic, FusedGraph, RowTransfer, fused
from spark_upsert.flow.graph import (
    ArrowSource,
    Graph,
    InputRows,
    OperatorKind,
    PythonFunction,
    TableSource,
)
from spark_upsert.flow.local import targets_of
from spark_upsert.flow.passes import Pass
from spark_upsert.flow.rescale import remember
from spark_upsert.flow.stages import Stages, cut_into_stages, log_plan
from spark_upsert.flow.validate import require_sources, schemas_of
from spark_upsert.flow.wire_format import TASK_BITS, TO, WAKE, Border, wake
from spark_upsert.store.open import checked_storage
from spark_upsert.task import AssignUniqueId, Limit, Node
from spark_upsert_sink.types import to_arrow_columns, to_spark_columns, to_spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_FORMAT = "upsertflow"

_BATCH_ID = "streaming.sql.batchId"


def frames(
    spark: SparkSession,
    plan: Graph | FusedGraph,
    frames: Mapping[str, DataFrame] | None = None,
    *,
    is_stream: bool = False,
) -> dict[str, DataFrame]:
    """Return one frame per sink, by its full name; nothing runs before a frame is read.

    Each read runs the flow once. If a streaming frame is united with others, or coalesced to fewer
    partitions, its query fails.
    """
    compiled = _compile(spark, plan, frames, is_stream=is_stream, is_woken=not is_stream)
    _require_kind(frames or {}, is_stream=is_stream)
    return _frames_by_sink(*compiled)


def run(
    spark: SparkSession,
    plan: Graph | FusedGraph,
    frames: Mapping[str, DataFrame] | None = None,
) -> None:
    """Run a flow once over all rows, and write the rows for its sinks.

    Each sink is a table, written by one transaction; operators before the branches part run once.
    For the parameters and errors see `frames`.
    """
    stages, frame = _compile(spark, plan, frames, is_stream=False)
    _require_kind(frames or {}, is_stream=False)
    _write(stages, frame)


def start(
    spark: SparkSession,
    plan: Graph | FusedGraph,
    checkpoint: str,
    frames: Mapping[str, DataFrame] | None = None,
    *,
    available_now: bool = False,
    every: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query that runs a flow over new rows, micro-batch by micro-batch.

    The end of a micro-batch is a barrier: every operator drains. Each sink writes a batch exactly
    once, also after restarts.
    """
    storage = checked_storage(storage_options)
    if available_now and every is not None:
        raise OptionError.conflict("available_now", f"every={every}")
    stages, frame = _compile(spark, plan, frames, is_stream=True)
    _require_no_counters(stages.graph)
    _require_kind(frames or {}, is_stream=True)
    targets = targets_of(stages.graph)
    flow_id = remember(stages.graph, checkpoint, storage)
    if len(targets) == 1:
        [(name, sink)] = targets.items()
        writer = (
            _frames_by_sink(stages, frame)[name].writeStream.format(_FORMAT).options(**sink.options)
        )
        writer = writer.option("path", sink.path)
    else:
        if flow_id is None:
            raise GraphError(
                f"a flow into several tables cannot have its checkpoint at '{checkpoint}'.",
                hint="put it where tables can lie.",
                operators=tuple(targets),
            )
        writer = frame.writeStream.foreachBatch(partial(_write_batch, stages, flow_id))
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.option("checkpointLocation", checkpoint).start()


# -- from a plan to a frame ------------------------------------------------------------------


def _frames_by_sink(stages: Stages, frame: DataFrame) -> dict[str, DataFrame]:
    """Return the frame for each sink, selected from the last stage's rows."""
    if stages.is_plain:
        return dict.fromkeys(stages.sinks, frame)
    last = Border(stages, len(stages.stages), after_spark)
    return {
        name: _rows_for_sink(frame, last, addresses) for name, addresses in stages.sinks.items()
    }


def _compile(
    spark: SparkSession,
    plan: Graph | FusedGraph,
    frames: Mapping[str, DataFrame] | None,
    *,
    is_stream: bool,
    is_woken: bool = False,
) -> tuple[Stages, DataFrame]:
    """Return a flow's stages and the last stage's frame."""
    if isinstance(plan, Graph):
        slots = find_parallelism(spark) or 1
        plan = fused(expanded(plan), Automatic(slots=slots))
    graph = plan.physical.graph
    schema_by_name = {name: placed.operator.schema for name, placed in graph.places.items()}
    _require_carried(
        {name: schema for name, schema in schema_by_name.items() if schema is not None}
    )
    sources = _sources(spark, graph, frames or {}, is_stream=is_stream)
    _require_pickled(graph)
    columns = {name: _columns(frame, schema_by_name[name]) for name, frame in sources.items()}
    schemas = schemas_of(graph, columns)
    _require_carried(schemas)
    stages = cut_into_stages(plan, schemas)
    log_plan(plan, stages)
    frame = _union_sources(stages, sources)
    if is_woken and any(stage.transfer is RowTransfer.EXCHANGED for stage in stages.stages):
        frame = frame.union(_wake_rows(spark, stages))
    for index, stage in enumerate(stages.stages):
        if stage.transfer is RowTransfer.EXCHANGED:
            task = F.shiftright(F.col(TO), TASK_BITS).cast("int")
            frame = frame.repartitionById(len(stage.elements), task)
        step = Pass(stages, index, after_spark)
        frame = frame.mapInArrow(partial(_run, step), _shown(step.schema))
    return stages, frame


def after_spark(schema: pa.Schema) -> pa.Schema:
    """Return the columns' Arrow types after a trip through Spark."""
    return to_arrow_columns(_shown(schema))


def _shown(schema: pa.Schema) -> StructType:
    # A time without a zone stays one: no session's zone may move it.
    return to_spark_columns(schema)


def _columns(frame: DataFrame, declared: pa.Schema | None) -> pa.Schema:
    """Return a source's columns: the declared ones, if Spark represents them the same way."""
    schema = to_arrow_columns(frame.schema)
    if (
        declared is None
        or declared.names != schema.names
        or after_spark(declared).types != schema.types
    ):
        return schema
    return declared


def _run(step: Pass, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a stage in a Spark task."""
    context = TaskContext.get()
    assert context is not None
    batch_id = int(context.getLocalProperty(_BATCH_ID) or 0)
    task = context.partitionId()
    is_in_place = step.stages.stages[step.index].transfer is RowTransfer.IN_PLACE
    yield from step.run(batches, task=task, turn=batch_id + (task if is_in_place else 0))


# -- sources and sinks -----------------------------------------------------------------------


def _sources(
    spark: SparkSession, graph: Graph, frames: Mapping[str, DataFrame], *, is_stream: bool
) -> dict[str, DataFrame]:
    """Return each source's rows, by its full name."""
    source_frames: dict[str, DataFrame] = {}
    for name, placed in graph.places.items():
        work = placed.operator.work
        match work:
            case _ if placed.operator.kind is not OperatorKind.SOURCE:
                continue
            case ArrowSource() if not is_stream:
                source_frames[name] = _create_frame(spark, name, work.rows)
            case TableSource():
                reader = spark.readStream if is_stream else spark.read
                source_frames[name] = reader.format(_FORMAT).options(**work.options).load(work.path)
            case InputRows() if isinstance(frames.get(name), DataFrame):
                source_frames[name] = frames[name]
            case ArrowSource():
                raise GraphError(
                    f"source '{name}' has rows that are given with the graph, which are no stream.",
                    hint="make it InputRows(schema), and give a streaming frame.",
                    operators=(name,),
                )
            case InputRows():
                actual = f", but {type(frames[name]).__name__}" if name in frames else ""
                raise GraphError(
                    f"no frame is given for the source '{name}'{actual}.",
                    hint=f"give it a frame: frames={{'{name}': frame}}.",
                    operators=(name,),
                )
            case _:
                raise GraphError(
                    f"source '{name}': {type(work).__name__} is no work of a source.",
                    hint="give it a TableSource, an ArrowSource or InputRows.",
                    operators=(name,),
                )
    require_sources(frames, source_frames)
    return source_frames


def _create_frame(spark: SparkSession, name: str, rows: pa.Table) -> DataFrame:
    """Return a frame with the graph's rows for a source."""
    try:
        schema = after_spark(rows.schema)
        columns = map(convert, rows.columns, schema.types)
        rows = pa.Table.from_arrays(list(columns), schema=schema)
    except pa.ArrowInvalid as error:
        raise GraphError(
            f"source '{name}' has values that Spark cannot carry: {error}",
            hint="cast them before, as they are to be.",
            operators=(name,),
        ) from error
    return spark.createDataFrame(rows, _shown(rows.schema))


def _union_sources(stages: Stages, sources: Mapping[str, DataFrame]) -> DataFrame:
    """Return all sources' rows in the first stage's input form."""
    border = Border(stages, 0, after_spark)
    physical = stages.book.physical
    parts: list[DataFrame] = []
    for name, frame in sources.items():
        entries = [stages.entries[replica.name] for replica in physical.replicas_of[name]]
        # Replicas of a source share its partitions out.
        replica = F.spark_partition_id() % len(entries)
        to = _select_value([border.to(address) for address in entries], replica)
        column_names = dict(zip(border.columns(entries[0]), frame.columns, strict=True))
        columns = (
            (
                F.col(_quoted(column_names[field.name]))
                if field.name in column_names
                else F.lit(None)
            )
            .cast(field.dataType)
            .alias(field.name)
            for field in list(_shown(border.schema))[1:]
        )
        parts.append(frame.select(to.alias(TO), *columns))
    return reduce(lambda left, right: left.union(right), parts)


def _wake_rows(spark: SparkSession, stages: Stages) -> DataFrame:
    """Return a wake row for each task in the first stage, with the task's number."""
    schema = _shown(Border(stages, 0, after_spark).schema)
    nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in list(schema)[1:])
    task_count = stages.stages[0].task_count
    wakes = spark.range(wake(0), wake(task_count), wake(1) - wake(0), 1)
    return wakes.select(F.col("id").alias(TO), *nothing)


def _select_value(values: list[int], index: Column) -> Column:
    if len(set(values)) == 1:
        return F.lit(values[0]).cast("long")
    return F.get(F.array(*(F.lit(value).cast("long") for value in values)), index)


def _rows_for_sink(frame: DataFrame, last: Border, addresses: tuple[int, ...]) -> DataFrame:
    """Return the rows for one sink."""
    address = F.col(TO).bitwiseAND(F.lit(WAKE))
    columns = last.columns(addresses[0]).items()
    return frame.where(address.isin(*addresses)).select(
        *(F.col(name).alias(field.name) for name, field in columns)
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# -- writes ----------------------------------------------------------------------------------


def _write(stages: Stages, frame: DataFrame, **transaction: str) -> None:
    """Write the rows for each sink; with several sinks, shared operators run once."""
    targets = targets_of(stages.graph)
    is_shared = len(targets) > 1
    if is_shared:
        frame.persist()
    try:
        for name, rows in _frames_by_sink(stages, frame).items():
            sink = targets[name]
            options = {**sink.options, **transaction}
            rows.write.format(_FORMAT).options(**options).mode("append").save(sink.path)
    finally:
        if is_shared:
            frame.unpersist()


def _write_batch(stages: Stages, flow_id: str, frame: DataFrame, batch_id: int) -> None:
    """Write a micro-batch into several tables, each exactly once."""
    _write(stages, frame, txnAppId=f"flow-{flow_id}", txnVersion=str(batch_id))


# -- checks ----------------------------------------------------------------------------------


def _require_carried(schemas: Mapping[str, pa.Schema]) -> None:
    """Refuse columns unsupported by Spark: unknown types or duplicate names."""
    for name, schema in schemas.items():
        for column, count in Counter(schema.names).items():
            if count > 1:
                raise GraphError(
                    f"'{name}' gives {count} columns '{column}', which Spark cannot tell apart.",
                    hint="rename all but one of them.",
                    operators=(name,),
                )
        for field in schema:
            try:
                to_spark_type(field.type)
            except PySparkTypeError as error:
                raise GraphError(
                    f"'{name}' gives the column '{field.name}' of the type {field.type}, which "
                    "Spark does not have.",
                    hint="cast it in the operator, or leave it out.",
                    operators=(name,),
                ) from error


def _require_kind(frames: Mapping[str, DataFrame], *, is_stream: bool) -> None:
    """Refuse streaming frames in a batch run, and batch frames in a streaming query."""
    for name, frame in frames.items():
        if frame.isStreaming != is_stream:
            expected, actual = ("a stream", "none") if is_stream else ("no stream", "one")
            raise GraphError(
                f"the frame of the source '{name}' is to be {expected}, and is {actual}.",
                hint="give spark.readStream to `start`, spark.read to `run`.",
                operators=(name,),
            )


def _require_no_counters(graph: Graph) -> None:
    """Refuse counters spanning barriers: they would restart with each micro-batch."""
    for name, placed in graph.places.items():
        work = placed.operator.work
        if isinstance(work, Node):
            for node in work.walk():
                if isinstance(node, Limit | AssignUniqueId):
                    raise GraphError(
                        f"operator '{name}' has a {node.kind}, whose counter would begin anew with "
                        "each micro-batch.",
                        hint="leave it out, or run the flow as a batch.",
                        operators=(name,),
                    )


def _require_pickled(graph: Graph) -> None:
    """Refuse unpicklable functions before anything runs: tasks receive them pickled."""
    for name, placed in graph.places.items():
        work = placed.operator.work
        if isinstance(work, PythonFunction):
            try:
                cloudpickle.dumps(work.function)  # type: ignore[no-untyped-call]
            except Exception as error:
                raise GraphError(
                    f"the function of operator '{name}' cannot be pickled: {error}",
                    hint="open files, locks and sessions within the function; tasks run elsewhere.",
                    operators=(name,),
                ) from error
