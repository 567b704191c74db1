"""The kafka envelope: what keys and values of records mean, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataError, OptionError, SchemaError
from tests.support.envelopes import (
    JSON,
    KAFKA,
    counters_of,
    key,
    plan,
    quarantine_of,
    reasons,
    records,
    rows_of,
    value,
    write,
)
from tests.support.payloads import avro, record_of


def test_the_table_has_the_fields_of_the_key_then_those_of_the_value(tmp_path: Path) -> None:
    options = {**JSON, "valueSchema": "K STRING, v STRING"}
    schema = plan(tmp_path / "t", KAFKA, **options).write.base.schema
    assert schema.columns == pa.schema({"k": pa.int64(), "v": pa.string()})
    assert schema.keys == ("k",)
    write(tmp_path / "t", records([(key(1), b'{"K": "other", "v": "a"}')]), **options)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "a"}]


def test_texts_are_their_bytes_and_columns_of_the_records_are_stored_if_named(
    tmp_path: Path,
) -> None:
    texts = {"key": [key(1).decode()], "value": [value("a").decode()]}
    write(tmp_path / "texts", pa.table(texts), **JSON)
    assert rows_of(tmp_path / "texts") == [{"k": 1, "v": "a"}]
    rows = records([(key(1), value("a"))], offsets=[7])
    write(tmp_path / "t", rows, columnList="k,v,offset,topic", **JSON)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "a", "offset": 7, "topic": "t"}]


def test_a_key_may_be_a_part_of_what_the_keys_hold(tmp_path: Path) -> None:
    options = {**JSON, "keySchema": "k BIGINT, region STRING", "keys": "k"}
    path = tmp_path / "t"
    for region, text in (("x", "a"), ("y", "b")):
        row_key = f'{{"k": 1, "region": "{region}"}}'.encode()
        write(path, records([(row_key, value(text))]), **options)
    assert rows_of(path) == [{"k": 1, "region": "y", "v": "b"}]


def test_a_field_of_the_value_can_be_no_key(tmp_path: Path) -> None:
    """A null value, which deletes, would not have it."""
    with pytest.raises(SchemaError, match="the key column 'v' is not among the columns"):
        plan(tmp_path / "t", KAFKA, keys="v", **JSON)
    assert not (tmp_path / "t").exists()


def test_20a_the_partition_decides_before_the_offset_within_an_epoch_only(tmp_path: Path) -> None:
    """Order keys of different partitions say nothing beyond one epoch, as in Materialize."""
    path = tmp_path / "t"
    newer = records([(key(1), value("b"))], offsets=[3], partition=1)
    older = records([(key(1), value("a"))], offsets=[99], partition=0)
    write(path, pa.concat_tables([newer, older]), **JSON)
    assert rows_of(path) == [{"k": 1, "v": "b"}]
    write(path, older, **JSON)
    assert rows_of(path) == [{"k": 1, "v": "a"}]
    assert plan(path, KAFKA, **JSON).write.base.schema.scope is Scope.EPOCH


def test_an_order_that_is_asked_for_reaches_across_epochs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {**JSON, "valueSchema": "v STRING, m STRUCT<at: BIGINT>", "sequenceBy": "value.m.at"}
    write(path, records([(key(1), b'{"v": "new", "m": {"at": 9}}')]), **options)
    commit = write(path, records([(key(1), b'{"v": "old", "m": {"at": 5}}')]), **options)
    assert counters_of(commit).stale == 1
    assert rows_of(path) == [{"k": 1, "m": {"at": 9}, "v": "new"}]


def test_a_delete_has_no_order_in_its_value(tmp_path: Path) -> None:
    options = {**JSON, "valueSchema": "v STRING, at BIGINT", "sequenceBy": "value.at"}
    with pytest.raises(DataError, match=r"the sequenceBy column 'value\.at' is null"):
        write(tmp_path / "t", records([(key(1), None)]), **options)


def test_without_partition_and_offset_the_order_is_arrival(tmp_path: Path) -> None:
    rows = records([(key(1), value("a")), (key(1), value("b"))]).select(["key", "value"])
    write(tmp_path / "t", rows, **JSON)
    assert rows_of(tmp_path / "t") == [{"k": 1, "v": "b"}]
    assert plan(tmp_path / "t", rows.schema, **JSON).write.base.schema.scope is Scope.ARRIVAL


def test_avro_behind_a_header_with_a_raw_key(tmp_path: Path) -> None:
    schema = record_of(["null", "string"])
    options = {"envelope": "kafka", "keyFormat": "raw", "keySchema": "id STRING"}
    options |= {"valueFormat": "avro-confluent", "valueSchema": json.dumps(schema)}
    options |= {"valueSchemaId": "7", "onError": "quarantine"}
    good = avro(schema, {"v": "a"})
    head, other = b"\0\0\0\0\x07", b"\0\0\0\0\x08"
    values = {b"1": head + good, b"2": other + good, b"3": good, b"4": b""}
    path = tmp_path / "t"
    write(path, records([*values.items()]), **options)
    assert rows_of(path) == [{"id": "1", "v": "a"}]
    write(path, records([(b"1", None)]), **options)
    assert rows_of(path) == []
    assert [row["id"] for row in quarantine_of(path)] == ["2", "3", "4"]
    assert any("schema id 8, expected 7" in reason for reason in reasons(path))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"keyFormat": ""}, OptionError, "'keyFormat' is required"),
        ({"valueSchema": ""}, OptionError, "'valueSchema' is required"),
        ({"applyAsDeletes": "gone"}, SchemaError, "applyAsDeletes column 'gone' is not among"),
        ({"keyFormat": "xml"}, OptionError, "one of json, avro, raw"),
        ({"valueSchemaId": "7"}, OptionError, "use valueFormat=json-confluent"),
        ({"nullsAsDeletes": "true"}, OptionError, "marks deletes itself"),
        ({"sequenceBy": "value.w"}, SchemaError, "Did you mean 'value.v'?"),
        ({"sequenceBy": "ofset"}, SchemaError, "Did you mean 'offset'?"),
        ({"columnList": "v"}, SchemaError, "the key column 'k'"),
        ({"envelope": "kafak"}, OptionError, "Did you mean 'kafka'?"),
        ({"onError": "fail", "errorColumn": "e"}, OptionError, "use onError=inline"),
        ({"errorColumn": "e"}, OptionError, "'onError' is required"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_before_the_table_is_made(
    tmp_path: Path, options: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        plan(tmp_path / "t", KAFKA, **{**JSON, **options})
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_a_value_of_100_mb(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), value("a")), (key(2), value("x" * 100_000_000))]), **JSON)
    assert [len(row["v"]) for row in rows_of(path)] == [1, 100_000_000]


def test_an_empty_batch_and_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit = write(path, records([]), onError="quarantine", **JSON)
    assert counters_of(commit).rows == 0
    planned = plan(path, KAFKA, **JSON)
    empty = pa.RecordBatch.from_pylist([], schema=KAFKA)
    assert planned.write.envelope.commands(empty).num_rows == 0
    assert planned.write.envelope.commands(empty).schema == planned.write.base.schema.run
    assert quarantine_of(path) == []
