"""Refusals that no other unit test meets: a mistake, and the beginning of its remedy.

Whether a remedy names what exists is checked for all hints by `tests.unit.test_hints`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_upsertflow.readers import read_schema
from spark_upsert.core.path_template import Template
from spark_upsert.errors import UpsertFlowError
from spark_upsert.flow import ArrowSource, CollectSink, Flow, PythonFunction
from spark_upsert.flow.local import collect
from spark_upsert.flow.rescale import remember
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.payloads.avro import read_avro
from spark_upsert.payloads.json import JsonDecoder
from spark_upsert.payloads.schema_registry import RegistrySettings, _fetch_of
from spark_upsert.plan import agg
from spark_upsert.routed.router import find_nested
from spark_upsert.store import object_store
from spark_upsert.store.open import open_store
from spark_upsert.store.settings import ObjectSettings
from spark_upsert.table.table import Table
from spark_upsert.task import ArrowScan, HashJoin, JoinKeys, JoinType, LocalPartition, Task
from spark_upsert.views.plan_builder import Plan
from spark_upsert_sink.worker import refuse_application
from spark_upsert_sink.writers import UpsertBatchWriter
from tests.support.column_types import TYPES
from tests.support.queries import Query, batch, inputs_of, lake
from tests.support.written import ROW, Rows, write

Mistake = Callable[[Path], object]

LISTS = pa.table({"id": [1], "v": [[1]]})
SCHEMA = pa.schema({"k": pa.int64(), "x": pa.list_(pa.int64())})
SCAN = ArrowScan(id="rows", schema=SCHEMA)
PARSED = pa.table(
    {
        "before": pa.array([None], pa.struct({"id": pa.int64(), "v": pa.string()})),
        "after": [{"id": 1, "v": "a"}],
        "op": ["c"],
    }
)
DEBEZIUM = {"envelope": "debezium", "valueFormat": "json", "valueSchema": "id BIGINT, v STRING"}
KAFKA = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "v STRING",
}
AVRO_EVENT = json.dumps(
    {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "before", "type": ["null", "int"]},
            {"name": "after", "type": ["null", "int"]},
            {"name": "op", "type": "string"},
        ],
    }
)
RECORDS = pa.schema({"key": pa.binary(), "value": pa.binary(), "offset": pa.int64()})


def writing(rows: Rows | pa.Table, **options: str) -> Mistake:
    return lambda folder: write(folder, rows, **options)


def writing_record(value: bytes, **options: str) -> Mistake:
    columns = {"key": [b'{"id": 1}'], "value": [value], "offset": [1]}
    return writing(pa.table(columns, schema=RECORDS), **options)


def options(**given: str) -> Mistake:
    return lambda _: WriteOptions.parse({"path": "/lake/orders", "keys": "id", **given})


def routed(**given: str) -> Mistake:
    every = {"path": "/lake/{topic}", "keys": "id", **given}
    return lambda _: RoutedOptions.parse(every).of("shop.orders", "shop.orders")


def template(path: str) -> Mistake:
    return lambda _: Template.parse(path)


def exact(**given: str) -> Mistake:
    return lambda folder: batch(inputs_of(lake(folder, "east"), merge="concat", **given))


def reading_counts(folder: Path) -> object:
    view = Plan.of_table(lake(folder, "table")["table"]).group_by("id").agg(n=agg.count())
    view.refresh(str(folder / "counts"))
    return batch({"path": str(folder / "counts"), "readHistory": "true"})


def reading_a_column_of_histories(folder: Path) -> object:
    write(folder, {"id": [1], "valid_to": ["x"]})
    return batch({"path": str(folder / "table"), "readHistory": "true"})


def exact_net_changes(folder: Path) -> object:
    given = inputs_of(lake(folder, "east"), merge="concat", readChangeFeed="true")
    return Query().run({**given, "deduplicationMode": "netChanges"})


def reading_a_mirror(folder: Path) -> object:
    write(folder)
    return batch({"path": Table.open(str(folder / "table")).publish().place})


def view(make: Callable[[Plan, Plan], object]) -> Mistake:
    def made(folder: Path) -> object:
        write(folder, {"id": [1], "x": [[1]]}, "one", indexBy="")
        write(folder, {"id": [1], "y": [[1]]}, "other", indexBy="")
        return make(*(Plan.of_table(str(folder / name)) for name in ("one", "other")))

    return made


def without_package(name: str, mistake: Callable[[], object]) -> Mistake:
    def made(_: Path) -> object:
        with patch.dict(sys.modules, {name: None}):
            return mistake()

    return made


def other_endpoint(_: Path) -> object:
    name = object_store._ENDPOINT_VARIABLE
    with patch.dict(os.environ, {name: "http://127.0.0.1:8"}):
        given = {"endpoint": "http://127.0.0.1:9", "allow_http": "true"}
        return open_store("s3://bucket/orders", given)


def after_fork(_: Path) -> None:
    with patch.object(object_store, "_runtime_process", os.getpid() + 1):
        object_store._refuse_after_fork()


def flow_of(work: Any) -> Mistake:
    def run(_: Path) -> object:
        flow = Flow()
        rows = flow.source("Src", ArrowSource(pa.table({"k": [1]})))
        flow.sink("Snk", CollectSink(), flow.operator("A", work, rows))
        return collect(flow.graph())

    return run


def flow_without_a_place(_: Path) -> object:
    flow = Flow()
    rows = flow.source("Src", ArrowSource(pa.table({"k": [1]})))
    with flow.parallel("R", 2, partition_by=["k"]):
        work = PythonFunction(iter, pa.schema({"k": pa.int64()}))
        rows = flow.operator("A", work, rows, keeps_state=True)
    flow.sink("Snk", CollectSink(), rows)
    return remember(flow.graph(), "hdfs://name/checkpoint", {})


def join_without_keys(_: Path) -> object:
    on = JoinKeys.pairs((), ())
    right = ArrowScan(id="right", schema=pa.schema({"k2": pa.int64()}))
    return Task(HashJoin(id="j", left=SCAN, right=right, how=JoinType.INNER, on=on))


def schema_of_catalog(**given: str) -> Mistake:
    def read(folder: Path) -> object:
        write(folder)
        return read_schema({"path": str(folder / "table"), "provider": "upsertflow", **given})

    return read


def overwriting_by_deletes(folder: Path) -> object:
    write(folder)
    columns = StructType([StructField("id", LongType())])
    given = {"path": str(folder / "table"), "operation": "delete"}
    return UpsertBatchWriter(given, columns, True)


def source_of_another_schema(_: Path) -> object:
    flow = Flow()
    rows = flow.source("Src", ArrowSource(pa.table({"k": [1]})), schema=SCHEMA)
    flow.sink("Snk", CollectSink(), rows)
    return collect(flow.graph())


AGGREGATION = {"mergeEngine": "aggregation"}

MISTAKES: dict[str, tuple[Mistake, str]] = {
    "a path without a column": (template("/lake/topics"), "write columns in braces"),
    "an open brace": (template("/lake/{topic"), "a brace that is meant as such is doubled"),
    "a blank in a path": (template("/lake/{topic}/a b"), "write letters, digits and"),
    "a name that begins with _": (template("/lake/_{topic}"), "begin each name there with"),
    "a column that ends with a dot": (template("/lake/{a.}"), "dots lead into structs"),
    "a column twice": (template("/{a}/{A}"), "name each column once"),
    "a column in a bucket": (template("s3://{bucket}/lake"), "one query for each bucket"),
    "a sum of texts": (writing(ROW, **AGGREGATION, **{"aggregate.v": "sum"}), "sum integers"),
    "the largest list": (
        writing(LISTS, **AGGREGATION, **{"aggregate.v": "max"}),
        "use aggregate last_non_null",
    ),
    "a sum of keys": (writing(ROW, **AGGREGATION, **{"aggregate.id": "sum"}), "Choose one of"),
    "a sum that is too large": (
        writing(
            pa.table({"id": [1, 1], "n": pa.array([100, 100], pa.int8())}),
            **AGGREGATION,
            **{"aggregate.n": "sum"},
        ),
        "write into a table with a wider type",
    ),
    "sums of epochs": (
        writing(ROW, sequenceBy="n", sequenceScope="epoch", **AGGREGATION),
        "use sequenceScope=table",
    ),
    "sums without ties": (
        writing(ROW, sequenceBy="n", ties="fail", **AGGREGATION),
        "use ties=last or ties=first",
    ),
    "a value without its order": (
        writing(
            {**ROW, "at": pa.array([None], pa.int64())},
            mergeEngine="partial_update",
            sequenceBy="n",
            **{"sequenceBy.v": "at"},
        ),
        "fill 'at'",
    ),
    "a type that is too deep": (
        writing(pa.table({"id": [1], "v": TYPES["struct of 64 levels"].given[:1]})),
        "write the inner values",
    ),
    "a type that no table stores": (
        writing(pa.table({"id": [1], "v": TYPES["dense_union"].given[:1]})),
        "write the values of each of its types",
    ),
    "a change of no type": (
        writing(
            {**ROW, "_change_type": ["no change"], "_commit_version": [1]}, envelope="changelog"
        ),
        "keeps such rows apart",
    ),
    "an event that cannot be decoded": (
        writing_record(b'{"after": {"id": 1, "v": {}}, "op": "c"}', **DEBEZIUM),
        "keeps such rows apart",
    ),
    "a record that cannot be decoded": (
        writing_record(b'{"v": 1}', **KAFKA),
        "keeps such rows apart",
    ),
    "a schema of no event": (
        writing(
            RECORDS.empty_table(),
            envelope="debezium",
            valueFormat="avro",
            valueSchema=AVRO_EVENT,
        ),
        "give the writer's schema of the whole event",
    ),
    "parsed events as records": (
        writing(PARSED.append_column("key", [[1]]).append_column("value", [[1]]), **DEBEZIUM),
        "for events that are parsed already, drop 'valueFormat'",
    ),
    "parsed rows as records": (
        writing({"id": [1], "key": [1], "value": ["{}"]}, **KAFKA),
        "use the envelope 'upsert'",
    ),
    "an option of many tables": (options(createTables="false"), "write columns in braces"),
    "a placeholder of another envelope": (
        options(envelope="changelog", unavailableValuePlaceholder="n/a"),
        "drop it",
    ),
    "an unknown option of a table": (routed(**{"table.qqq": "n"}), "table.shop.*.keys"),
    "two patterns that match": (
        routed(**{"table.shop.*.keys": "a", "table.*rders.keys": "b"}),
        "add 'table.shop.orders.keys'",
    ),
    "a field of a text": (
        lambda _: find_nested("topic.db", pa.schema({"topic": pa.string()})),
        "write {topic}",
    ),
    "a table named by a float": (
        lambda _: find_nested("topic", pa.schema({"topic": pa.float64()})),
        "cast it: withColumn",
    ),
    "a decoder without fastavro": (
        without_package("fastavro", lambda: read_avro('"int"', bare_name="value")),
        "upsertflow[kafka]",
    ),
    "a registry without urllib3": (
        without_package("urllib3", lambda: _fetch_of(RegistrySettings(urls=("http://r:8081",)))),
        "upsertflow[kafka]",
    ),
    "a struct as a bare value": (
        lambda _: JsonDecoder(pa.schema({"value": pa.struct({"id": pa.int64()})}), is_bare=True),
        "declare the members of the objects",
    ),
    "object storage without its package": (
        without_package("spark_upsert.store.object_store", lambda: open_store("s3://b/lake")),
        "upsertflow[s3]",
    ),
    "a bucket with a port": (
        lambda _: ObjectSettings.of("s3://bucket:9/orders", {}),
        "credentials and the address of a server",
    ),
    "two endpoints": (other_endpoint, "leave 'storage.endpoint' away"),
    "a process made by fork": (after_fork, "'spawn' or 'forkserver'"),
    "a filter in an exact order": (exact(filter="id = 1"), "filter behind the read"),
    "a history in an exact order": (exact(readHistory="true"), "leave out 'merge'"),
    "net changes in an exact order": (exact_net_changes, "use another mode"),
    "the history of groups": (reading_counts, "read its changes by read_change_feed=true"),
    "a column named as those of a history": (
        reading_a_column_of_histories,
        "choose other columns",
    ),
    "a mirror in place of its table": (reading_a_mirror, "give the path of that table"),
    "an operator that is a sink": (flow_of(CollectSink()), "give it a plan"),
    "a checkpoint where no table can be": (flow_without_a_place, "put the checkpoint where"),
    "a source with the schema of another": (
        source_of_another_schema,
        "give it the schema of what it reads",
    ),
    "a catalog table without a key": (schema_of_catalog(columns="v"), "choose a key column"),
    "a secret in a catalog": (
        schema_of_catalog(**{"storage.secret_access_key": "x"}),
        "let the environment say it",
    ),
    "an overwrite by keys": (overwriting_by_deletes, "write the keys with mode 'append'"),
    "a stream with a number of its own": (
        lambda _: refuse_application("nightly"),
        "a stream is idempotent",
    ),
    "a join without columns": (join_without_keys, "say in 'on' which are equal"),
    "a partition by lists": (
        lambda _: Task(LocalPartition(id="m", parts=(SCAN,), keys=("x",))),
        "name columns of numbers, texts or moments",
    ),
    "a view that joins by lists": (
        view(lambda one, other: one.join(other, on={"x": "y"}).to_arrow()),
        "join on numbers, texts or times",
    ),
    "a join of an unknown type": (
        view(lambda one, other: one.join(other, on="id", how="lfet")),
        "Did you mean 'left'",
    ),
}


@pytest.mark.parametrize(("mistake", "remedy"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_with_its_remedy(
    mistake: Mistake, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(UpsertFlowError) as raised:
        mistake(tmp_path)
    assert remedy in raised.value.hint
