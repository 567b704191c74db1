"""Schemas: what a table stores, what it accepts, how it grows, what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.arrow_types import storage_type, widens
from spark_upsert.core.names import find_column
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import NewerFormatError, OptionError, SchemaError, UpsertFlowError


def schema(columns: dict[str, pa.DataType], **how: Any) -> TableSchema:
    return TableSchema.of(pa.schema(columns), **{"keys": ["id"], **how})


ORDERS = schema({"id": pa.int32(), "name": pa.string(), "price": pa.decimal128(10, 2)})


STORED = [
    (pa.binary(16), pa.binary()),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
    (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
    (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
    (pa.map_(pa.large_string(), pa.binary(2)), pa.map_(pa.string(), pa.binary())),
    (pa.struct({"a": pa.large_string()}), pa.struct({"a": pa.string()})),
]


@pytest.mark.parametrize(("type_", "stored"), STORED, ids=str)
def test_a_type_has_one_stored_form(type_: pa.DataType, stored: pa.DataType) -> None:
    assert storage_type(type_).equals(stored, check_metadata=True)
    assert storage_type(stored) == stored


@pytest.mark.parametrize(
    ("source", "target", "answer"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int8(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), True),
        (pa.decimal128(5, 2), pa.decimal128(9, 3), False),
        (pa.date32(), pa.timestamp("us"), False),
    ],
    ids=str,
)
def test_a_type_widens_to_a_wider_one_of_its_kind(
    source: pa.DataType, target: pa.DataType, answer: bool
) -> None:
    assert widens(source, target) is answer


def test_columns_stand_in_a_fixed_order() -> None:
    runs = schema({"id": pa.int64(), "v": pa.string()}, order=[pa.field("ts", pa.int64())])
    assert runs.run.names == ["__hash", "id", "v", "__order0", "__diff"]
    assert runs.values == ("v",)
    added = ["_change_type", "_commit_version", "_commit_timestamp", "_diff"]
    assert ORDERS.changelog.names == [*ORDERS.columns.names, *added]
    assert ORDERS.select(["Price", "id"]) == ("price", "id")


def test_a_key_is_named_once_in_any_case_but_for_tables_of_before() -> None:
    assert schema({"Id": pa.int64()}, keys=["ID"]).keys == ("Id",)
    with pytest.raises(OptionError, match="each column once, found 'id,ID'"):
        schema({"id": pa.int64()}, keys=["id", "ID"])
    record = schema({"id": pa.int64(), "v": pa.int64()}).to_json()
    assert TableSchema.from_json({**record, "keys": ["id", "id"]}).keys == ("id", "id")


def test_without_order_the_scope_is_arrival() -> None:
    assert schema({"id": pa.int64()}, scope=Scope.EPOCH).scope is Scope.ARRIVAL


def test_a_schema_survives_json() -> None:
    columns = {"id": pa.string(), "m": pa.map_(pa.string(), pa.struct({"x": pa.int8()}))}
    order = [pa.field("p", pa.int32()), pa.field("o", pa.int64())]
    whole = schema(columns, order=order, scope=Scope.EPOCH, hash_seed=2**64 - 1)
    assert TableSchema.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_a_newer_hash_version_is_refused() -> None:
    record = ORDERS.to_json()
    record["hash"]["version"] = 99
    with pytest.raises(NewerFormatError, match="key hash has format 99"):
        TableSchema.from_json(record)


INT = pa.int64()


@pytest.mark.parametrize(
    ("columns", "how", "error", "text"),
    [
        ([("id", INT)], {"keys": []}, OptionError, "'keys'"),
        ([("order_id", INT)], {"keys": ["ordr_id"]}, SchemaError, "Did you mean 'order_id'"),
        ([("id", INT), ("__x", INT)], {}, SchemaError, "'__x'"),
        ([("id", INT), ("_change_type", INT)], {}, SchemaError, "'_change_type' is reserved"),
        ([("id", pa.list_(INT))], {}, SchemaError, "list"),
        ([("id", INT)], {"order": [pa.field("ts", pa.list_(INT))]}, SchemaError, "sequenceBy"),
        ([("id", INT), ("v", INT), ("v", INT)], {}, SchemaError, "found 'v' and 'v'"),
        ([("id", INT), ("v", pa.null())], {}, SchemaError, "'v' has no type"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_bad_schema_is_refused(
    columns: Any, how: Any, error: type[UpsertFlowError], text: str
) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        TableSchema.of(pa.schema(columns), **{"keys": ["id"], **how})


@pytest.mark.parametrize(
    "columns",
    [
        {"PRICE": pa.decimal128(10, 2), "ID": pa.int32(), "Name": pa.large_string()},
        {"id": pa.int8(), "name": pa.string(), "price": pa.decimal128(5, 2)},
    ],
    ids=["another order and case", "narrower types"],
)
def test_columns_that_are_stored_without_loss_are_accepted(columns: Any) -> None:
    assert ORDERS.accept(ORDERS.columns, merge=True) is ORDERS
    assert ORDERS.accept(pa.schema(columns), merge=False) is ORDERS


def test_with_merge_a_table_gains_columns_and_widens_types() -> None:
    price = pa.decimal128(12, 2)
    columns = pa.schema({"id": INT, "price": price, "note": pa.large_string()})
    evolved = ORDERS.accept(columns, merge=True)
    expected = {"id": INT, "name": pa.string(), "price": price, "note": pa.string()}
    assert evolved.columns == pa.schema(expected)
    assert evolved.accept(columns, merge=True) is evolved


OWN = {"id": pa.int32(), "name": pa.string(), "price": pa.decimal128(10, 2)}


@pytest.mark.parametrize(
    ("columns", "merge", "text"),
    [
        pytest.param({**OWN, "x": INT}, False, "merge_schema=true", id="a column more"),
        pytest.param({"id": OWN["id"], "nme": INT}, False, "'nme'", id="a mistyped column"),
        pytest.param({"id": pa.int32(), "name": pa.string()}, False, "'price'", id="a column less"),
        pytest.param({**OWN, "id": INT}, False, "merge_schema=true", id="a wider type"),
        pytest.param({**OWN, "id": pa.string()}, True, "cast the column to int32", id="a type"),
        pytest.param({**OWN, "_diff": INT}, True, "reserved", id="a name of ours"),
    ],
)
def test_other_columns_are_refused_with_a_remedy(columns: Any, merge: bool, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        ORDERS.accept(pa.schema(columns), merge=merge)


def test_an_exact_name_is_preferred_to_one_alike_but_for_case() -> None:
    assert find_column("ab", ["AB", "ab"], role="column") == "ab"
    with pytest.raises(SchemaError):
        find_column("ab", ["Ab", "aB"], role="column")
