"""Schemas: what a table stores, what it accepts, how it grows, what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.names import find_column
from spark_upsert.core.schema import Scope, TableSchema, storage_type, widens
from spark_upsert.errors import NewerFormatError, OptionError, SchemaError, UpsertFlowError


def schema(columns: dict[str, pa.DataType], **how: Any) -> TableSchema:
    return TableSchema.of(pa.schema(columns), **{"keys": ["id"], **how})


ORDERS = schema({"id": pa.int32(), "name": pa.string(), "price": pa.decimal128(10, 2)})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal64(12, 2), pa.decimal128(12, 2)),
        (pa.list_(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.large_list(pa.int8()), pa.list_(pa.field("element", pa.int8()))),
        (pa.map_(pa.large_string(), pa.binary(2)), pa.map_(pa.string(), pa.binary())),
        (pa.struct({"a": pa.large_string()}), pa.struct({"a": pa.string()})),
        (pa.int8(), pa.int8()),
    ],
    ids=lambda t: str(t),
)
def test_a_type_has_one_stored_form(given: pa.DataType, stored: pa.DataType) -> None:
    assert storage_type(given).equals(stored, check_metadata=True)
    assert storage_type(storage_type(given)) == storage_type(given)


@pytest.mark.parametrize(
    ("source", "target", "answer"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int8(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), True),
        (pa.decimal128(5, 2), pa.decimal128(9, 3), False),
        (pa.decimal128(9, 2), pa.decimal128(5, 2), False),
        (pa.string(), pa.binary(), False),
        (pa.date32(), pa.timestamp("us"), False),
    ],
    ids=lambda v: str(v),
)
def test_widens(source: pa.DataType, target: pa.DataType, answer: bool) -> None:
    assert widens(source, target) is answer


def test_columns_of_a_run_stand_in_a_fixed_order() -> None:
    made = schema({"id": pa.int64(), "v": pa.string()}, order=[pa.field("ts", pa.int64())])
    assert made.run.names == ["__hash", "id", "v", "__order0", "__diff"]
    assert made.values == ("v",)


def test_the_changelog_has_the_names_of_the_contract() -> None:
    assert ORDERS.changelog.names == [
        *ORDERS.columns.names,
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_diff",
    ]


def test_keys_may_be_named_in_any_case() -> None:
    assert schema({"Id": pa.int64()}, keys=["ID"]).keys == ("Id",)


def test_a_key_is_named_once_but_for_tables_of_before() -> None:
    with pytest.raises(OptionError, match="each column once, found 'id,ID'"):
        schema({"id": pa.int64()}, keys=["id", "ID"])
    record = schema({"id": pa.int64(), "v": pa.int64()}).to_json()
    assert TableSchema.from_json({**record, "keys": ["id", "id"]}).keys == ("id", "id")


def test_without_order_the_scope_is_arrival() -> None:
    assert schema({"id": pa.int64()}, scope=Scope.EPOCH).scope is Scope.ARRIVAL


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
def test_a_schema_survives_json(scope: Scope) -> None:
    columns = {
        "id": pa.string(),
        "tags": pa.list_(pa.string()),
        "at": pa.timestamp("us", tz="UTC"),
        "m": pa.map_(pa.string(), pa.struct({"x": pa.int8()})),
    }
    order = [] if scope is Scope.ARRIVAL else [pa.field("p", pa.int32()), pa.field("o", pa.int64())]
    made = schema(columns, order=order, scope=scope, hash_seed=2**64 - 1)
    assert TableSchema.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_newer_hash_version_is_refused() -> None:
    record = ORDERS.to_json()
    record["hash"]["version"] = 99
    with pytest.raises(NewerFormatError, match="key hash has format 99"):
        TableSchema.from_json(record)


@pytest.mark.parametrize(
    ("columns", "how", "error", "text"),
    [
        pytest.param({"id": pa.int64()}, {"keys": []}, OptionError, "'keys'", id="no key"),
        pytest.param(
            {"order_id": pa.int64()},
            {"keys": ["ordr_id"]},
            SchemaError,
            "Did you mean 'order_id'?",
            id="a mistyped key names the nearest column",
        ),
        pytest.param(
            {"id": pa.int64(), "__x": pa.int64()}, {}, SchemaError, "'__x'", id="a name of ours"
        ),
        pytest.param(
            {"id": pa.int64(), "_change_type": pa.string()},
            {},
            SchemaError,
            "'_change_type' is reserved",
            id="a changelog column",
        ),
        pytest.param(
            {"id": pa.list_(pa.int64())}, {}, SchemaError, "list", id="a key that is a list"
        ),
        pytest.param(
            {"id": pa.struct({"a": pa.int64()})},
            {},
            SchemaError,
            "struct",
            id="a key that is a struct",
        ),
        pytest.param(
            {"id": pa.map_(pa.int64(), pa.int64())},
            {},
            SchemaError,
            "map",
            id="a key that is a map",
        ),
        pytest.param(
            {"id": pa.int64()},
            {"order": [pa.field("ts", pa.list_(pa.int64()))]},
            SchemaError,
            "sequenceBy",
            id="an order key that is a list",
        ),
    ],
)
def test_a_bad_schema_is_refused(
    columns: Any, how: Any, error: type[UpsertFlowError], text: str
) -> None:
    with pytest.raises(error) as caught:
        schema(columns, **how)
    assert text in str(caught.value)


def test_two_columns_of_one_name_are_refused() -> None:
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("v", pa.int64())])
    with pytest.raises(SchemaError, match="found 'v' and 'v'"):
        TableSchema.of(columns, keys=["id"])


def test_a_column_of_type_null_is_refused_with_its_name() -> None:
    with pytest.raises(SchemaError, match="'nothing' has no type"):
        schema({"id": pa.int64(), "nothing": pa.null()})


@pytest.mark.parametrize("merge", [False, True], ids=["strictly", "with mergeSchema"])
def test_the_same_columns_are_accepted_as_they_are(merge: bool) -> None:
    assert ORDERS.accept(ORDERS.columns, merge=merge) is ORDERS


def test_columns_in_another_order_and_case_are_accepted() -> None:
    given = pa.schema({"PRICE": pa.decimal128(10, 2), "ID": pa.int32(), "Name": pa.large_string()})
    assert ORDERS.accept(given, merge=False) is ORDERS


def test_a_narrower_type_is_accepted_without_a_change() -> None:
    given = pa.schema({"id": pa.int8(), "name": pa.string(), "price": pa.decimal128(5, 2)})
    assert ORDERS.accept(given, merge=False) is ORDERS


def test_with_merge_a_table_gains_columns_and_widens_types() -> None:
    given = pa.schema({"id": pa.int64(), "price": pa.decimal128(12, 2), "note": pa.large_string()})
    evolved = ORDERS.accept(given, merge=True)
    assert evolved.columns == pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "price": pa.decimal128(12, 2),
            "note": pa.string(),
        }
    )
    assert evolved.accept(given, merge=True) is evolved


@pytest.mark.parametrize(
    ("given", "merge", "text"),
    [
        pytest.param(
            {"id": pa.int32(), "name": pa.string(), "price": pa.decimal128(10, 2), "x": pa.int8()},
            False,
            "merge_schema=true",
            id="a column more, strictly",
        ),
        pytest.param(
            {"id": pa.int32(), "nme": pa.string(), "price": pa.decimal128(10, 2)},
            False,
            "'nme'",
            id="a mistyped column, strictly",
        ),
        pytest.param(
            {"id": pa.int32(), "name": pa.string()}, False, "'price'", id="a column less, strictly"
        ),
        pytest.param({"name": pa.string()}, True, "'id'", id="no key, with mergeSchema"),
        pytest.param(
            {"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(10, 2)},
            False,
            "merge_schema=true",
            id="a wider type, strictly",
        ),
        pytest.param(
            {"id": pa.string(), "name": pa.string(), "price": pa.decimal128(10, 2)},
            True,
            "cast the column to int32",
            id="another type, with mergeSchema",
        ),
        pytest.param(
            {"id": pa.int32(), "_diff": pa.int32()}, True, "reserved", id="a name of ours"
        ),
    ],
)
def test_other_columns_are_refused_with_a_remedy(given: Any, merge: bool, text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        ORDERS.accept(pa.schema(given), merge=merge)
    assert text in str(caught.value)


def test_a_name_that_fits_two_columns_but_for_case_is_refused() -> None:
    with pytest.raises(SchemaError):
        find_column("ab", ["Ab", "aB"], role="column")


def test_an_exact_name_is_preferred_to_one_alike_but_for_case() -> None:
    assert find_column("ab", ["AB", "ab"], role="column") == "ab"


def test_columns_are_selected_in_the_order_of_the_names() -> None:
    assert ORDERS.select(["Price", "id"]) == ("price", "id")
