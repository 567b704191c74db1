"""Many topics, each with its own columns: they are found in the payloads of each table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import SchemaError, StorageError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.payloads.schema_registry import forget_schemas
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed, plan_rows_of, table_below
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction
from tests.support.envelopes import KAFKA
from tests.support.own_schemas import INLINE, avro, inline, member, record, struct
from tests.support.registry import running_registry
from tests.support.stores import MemoryStore

KEY = struct(member("id", "int64"))
Sent = tuple[str, bytes | None, bytes | None]


def write(root: Store, number: int, *tasks: list[Sent], **given: Any) -> None:
    """Write a batch as Spark does, a list of records for each task."""
    options = RoutedOptions.parse({"path": "/lake/{topic}", **given})
    batch = Transaction(writer="query:q", number=number, is_consecutive=True)
    plan = plan_routed(options, KAFKA, root=root)
    staged = []
    for index, records in enumerate(tasks):
        rows = [
            {"topic": topic, "key": key, "value": value, "partition": index, "offset": offset}
            for offset, (topic, key, value) in enumerate(records)
        ]
        batches = pa.Table.from_pylist(rows, schema=KAFKA).to_batches(max_chunksize=2)
        staged.append(stage_routed(plan, root, batches, batch, index, threads=1))
    commit_routed(root, options, staged, batch)


def rows_of(root: Store, folder: str) -> list[dict[str, Any]]:
    return sorted(table_below(root, folder).snapshot().to_pylist(), key=repr)


def message(topic: str, number: int, **columns: tuple[str, Any]) -> Sent:
    schema = struct(*(member(name, type_) for name, (type_, _) in columns.items()))
    values = {name: value for name, (_, value) in columns.items()}
    return topic, inline(KEY, {"id": number}), inline(schema, values)


def test_each_table_has_the_columns_of_its_topic() -> None:
    root = MemoryStore()
    first = [message("a", 1, n=("int32", 5)), message("b", 1, text=("string", "x"))]
    wider = [message("a", 2, n=("int64", 2**40), more=("boolean", True))]
    write(root, 0, first, wider, **INLINE)
    assert rows_of(root, "b") == [{"id": 1, "text": "x"}]
    rows = [{"id": 1, "n": 5, "more": None}, {"id": 2, "n": 2**40, "more": True}]
    assert rows_of(root, "a") == rows
    later = message("b", 2, text=("string", "y"), when=("int64", 3))
    batch: list[Sent] = [later, ("a", inline(KEY, {"id": 1}), None)]
    with pytest.raises(SchemaError, match="table 'b': the rows have a column 'when'"):
        write(root, 1, batch, **INLINE)
    write(root, 1, batch, **INLINE, mergeSchema="true")
    assert [row["id"] for row in rows_of(root, "a")] == [2]
    rows = [{"id": 1, "text": "x", "when": None}, {"id": 2, "text": "y", "when": 3}]
    assert rows_of(root, "b") == rows


def test_a_schema_that_no_table_can_hold_stops_no_routed_query() -> None:
    root = MemoryStore()
    given = {**INLINE, "onError": "quarantine"}
    lists = struct(member("n", "int64"), member("w", "map"))
    odd = ("a", inline(KEY, {"id": 2}), inline(lists, {"n": 1, "w": {}}))
    write(root, 0, [message("a", 1, n=("int64", 5)), odd, message("b", 1, n=("int64", 7))], **given)
    assert (rows_of(root, "a"), rows_of(root, "b")) == ([{"id": 1, "n": 5}], [{"id": 1, "n": 7}])
    [bad] = [row for batch in table_below(root, "a").quarantine() for row in batch.to_pylist()]
    assert (bad["id"], "of the type 'map'" in bad["_reason"]) == (2, True)


def test_tasks_that_let_one_table_gain_a_column_at_once_both_stage_their_rows() -> None:
    """The second finds the column there, though it has looked before the first one made it."""
    root = MemoryStore()
    write(root, 0, [message("a", 1, n=("int64", 1))], **INLINE)
    options = RoutedOptions.parse({"path": "/lake/{topic}", **INLINE, "mergeSchema": "true"})
    tables = [table_below(root, "a") for _ in range(2)]
    for table in tables:
        table.log.head()
    plans = []
    for number, table in enumerate(tables):
        _, key, value = message("a", number + 2, n=("int64", number), m=("int64", 7))
        place = {"topic": "a", "partition": number, "offset": 5}
        rows = pa.RecordBatch.from_pylist([{"key": key, "value": value, **place}], KAFKA)
        plans.append(plan_rows_of(table, options.of("a", "a"), [rows], KAFKA))
    assert {plan.base.version for plan in plans} == {1}
    assert {tuple(plan.base.schema.columns.names) for plan in plans} == {("id", "n", "m")}


def test_tables_may_say_themselves_what_others_find() -> None:
    root = MemoryStore()
    plain = ("b", b'{"id": 1}', b'{"n": 7}')
    own = {"keySchema": "id BIGINT", "valueSchema": "n INT"}
    given = {**INLINE, **{f"table.b.{name}": text for name, text in own.items()}}
    write(root, 0, [message("a", 1, n=("int32", 5)), plain], **given)
    assert (rows_of(root, "a"), rows_of(root, "b")) == ([{"id": 1, "n": 5}], [{"id": 1, "n": 7}])


def test_a_registry_that_is_away_stops_the_batch_and_no_table() -> None:
    root = MemoryStore()
    key, row = record("K", id="long"), record("R", n="long")
    with running_registry() as registry:
        forget_schemas()
        ids = registry.register("a-key", key), registry.register("a-value", row)
        sent = ("a", avro(ids[0], key, {"id": 1}), avro(ids[1], row, {"n": 5}))
        given = {"envelope": "kafka", "schemaRegistry.url": registry.url, "onTableError": "park"}
        given |= {"keyFormat": "avro-confluent", "valueFormat": "avro-confluent"}
        registry.user = ("nobody", "else")
        with pytest.raises(StorageError, match=r"table 'a': the schema registry at .* refuses"):
            write(root, 0, [sent], **given)
        registry.user = None
        write(root, 0, [sent], **given)
    assert rows_of(root, "a") == [{"id": 1, "n": 5}]
