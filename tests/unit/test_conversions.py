"""What a table stores of a value of another type is that value, or the write says why not."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from itertools import permutations, product
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_upsert.core.casts import UnfitError, convert, to_readable, try_convert
from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import DataError, SchemaError
from spark_upsert.payloads.connect import ConnectAvroDecoder
from spark_upsert.plan.expressions import bind
from spark_upsert.table.table import Table
from tests.support.column_types import NESTINGS, TYPES, UNSOUND, column

WIDE = "48151415102163378576555277819065061780"
AMOUNT = pa.decimal128(38, 2)


def table_of(tmp_path: Path, type_: pa.DataType, **options: Any) -> Table:
    columns = pa.schema({"id": pa.int64(), "value": type_})
    return Table.create(str(tmp_path), columns, keys=["id"], **options)


@pytest.mark.parametrize(
    ("value", "type_", "words"),
    [
        (WIDE, AMOUNT, "is no decimal128"),
        ("1e-9999999", AMOUNT, "is no decimal128"),
        ("9" * 39, pa.decimal128(38, 0), "is no decimal128"),
        (Decimal(WIDE), AMOUNT, "digits before the point"),
    ],
)
def test_a_value_that_is_no_such_decimal_is_not_stored(
    tmp_path: Path, value: Any, type_: pa.DataType, words: str
) -> None:
    table = table_of(tmp_path, type_)
    with pytest.raises(DataError, match=f"column 'value' holds .*{words}"):
        table.upsert(pa.table({"id": [1], "value": [value]}))
    assert table.snapshot().num_rows == 0


def table_of_numbers(tmp_path: Path, **options: Any) -> Table:
    columns = pa.schema({"id": AMOUNT, "at": AMOUNT, "note": pa.string()})
    return Table.create(str(tmp_path), columns, keys=["id"], sequence_by=["at"], **options)


def test_a_key_and_an_order_are_converted_by_the_same_rules(tmp_path: Path) -> None:
    table = table_of_numbers(tmp_path)
    with pytest.raises(DataError, match=f"'id' holds .*for example key .*{WIDE}"):
        table.upsert(pa.table({"id": [WIDE], "at": ["1"], "note": ["a"]}))
    with pytest.raises(DataError, match=r"'at' holds .*for example id=Decimal\('1.00'\)"):
        table.upsert(pa.table({"id": ["1"], "at": [WIDE], "note": ["a"]}))
    table.upsert(pa.table({"id": ["0.10"], "at": ["1e2"], "note": ["a"]}))
    [row] = table.snapshot().to_pylist()
    assert row == {"id": Decimal("0.10"), "at": Decimal("100.00"), "note": "a"}


def test_rows_that_do_not_fit_are_quarantined_as_the_hint_says(tmp_path: Path) -> None:
    rows = pa.table({"id": ["1", "2", WIDE], "at": ["1", WIDE, "1"], "note": ["a", "b", "c"]})
    with pytest.raises(DataError, match=r"Hint: correct .*, .*on_error=quarantine keeps such"):
        table_of_numbers(tmp_path / "fails").upsert(rows)
    table = table_of_numbers(tmp_path / "table", on_error=ErrorPolicy.QUARANTINE)
    table.upsert(rows)
    assert table.snapshot().column("note").to_pylist() == ["a"]
    kept = [row for batch in table.quarantine() for row in batch.to_pylist()]
    raw = f'{{"id": "{WIDE}"}}'.encode()
    assert {(row["id"], row["_raw_key"]) for row in kept} == {(Decimal("2.00"), None), (None, raw)}
    # A later row of the key clears it, and a delete of the same text.
    table.upsert(pa.table({"id": ["2"], "at": ["2"], "note": ["e"]}))
    gone = pa.table({"id": [WIDE], "at": ["2"], "note": [None], "gone": [True]})
    table.upsert(gone, deletes="gone")
    assert not list(table.quarantine())


BEYOND = [
    pa.array([2**62]).view(pa.timestamp("us", "UTC")),
    pa.array([253_402_300_800]).view(pa.timestamp("s")),
    pa.array([2**30], pa.int32()).view(pa.date32()),
    pa.array(["0000-12-31"]),
    pa.array(["9999-12-31T23:59:59-14:00"]),
]


@pytest.mark.parametrize("time", BEYOND, ids=["us UTC", "s", "date", "text", "text of a zone"])
def test_a_time_that_python_cannot_read_is_never_stored(tmp_path: Path, time: pa.Array) -> None:
    zone = getattr(time.type, "tz", "UTC")
    stored = pa.date32() if pa.types.is_date(time.type) else pa.timestamp("us", zone)
    columns = pa.schema({"id": pa.int64(), "value": stored})
    rows = pa.table({"id": [1], "value": time})
    for key, policy in product(columns.names, ErrorPolicy):
        path = str(tmp_path / f"{key} {policy.value}")
        table = Table.create(path, columns, keys=[key], on_error=policy)
        is_inline = policy is ErrorPolicy.INLINE and key == "id"  # Which covers values only.
        if is_inline or policy is ErrorPolicy.QUARANTINE:
            table.upsert(rows)
        else:
            with pytest.raises(DataError, match="of the years 0001 to 9999"):
                table.upsert(rows)
        assert table.snapshot().column("value").to_pylist() == [None] * is_inline
        kept = [row for batch in table.quarantine() for row in batch.to_pylist()]
        assert len(kept) == (policy is ErrorPolicy.QUARANTINE)
        assert all("0001 to 9999" in row["_reason"] for row in kept)


def test_a_zoned_time_of_avro_that_python_cannot_read_is_bad() -> None:
    time = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
    schema = {"type": "record", "name": "row", "fields": [{"name": "at", "type": time}]}
    payloads = []
    for text in ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "0000-12-31T23:59:59Z"):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"at": text})
        payloads.append(out.getvalue())
    decoder = ConnectAvroDecoder.parse("valueSchema", json.dumps(schema), bare_name="v")
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert decoded.columns[0].to_pylist() == [last, None, None]
    assert decoded.reasons is not None
    assert decoded.reasons.is_valid().to_pylist() == [False, True, True]


NUMBERS = [pa.array([1]), pa.array([1.0]), pa.array([Decimal(1)])]
DATES = [pa.array([1], pa.date32()), pa.array([1], pa.timestamp("us"))]
TIMES = [[pa.array([1], pa.time64("us"))], [pa.array([1], pa.duration("us"))]]


def test_a_number_is_no_time_and_a_time_no_other_kind() -> None:
    """Arrow would cast each by the unit of one of them."""
    for values, others in permutations([NUMBERS, DATES, *TIMES], 2):
        for value, other in product(values, others):
            with pytest.raises(pa.ArrowTypeError, match="is no"):
                convert(value, other.type)


@pytest.mark.parametrize(
    "values",
    [[0, 1, None, 2, -1], [0.0, 1.0, None, 0.5, float("nan")], [b"true", b"0", None, b"2", b""]],
    ids=["whole numbers", "floats", "bytes"],
)
def test_a_number_is_a_truth_value_if_it_is_0_or_1(values: list[Any]) -> None:
    converted, bad = try_convert(pa.array(values), pa.bool_())
    assert bad.tolist() == [False, False, False, True, True]
    assert converted.null_count == 3


NOT_NULL = pa.struct([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.list_(NOT_NULL), [{"id": 1}, None]),
        (pa.map_(pa.string(), pa.list_(NOT_NULL)), [("a", [None]), ("b", None)]),
        (pa.list_(pa.map_(pa.string(), NOT_NULL)), [[("a", None)], None]),
    ],
    ids=str,
)
def test_a_null_struct_may_have_fields_that_are_never_null(
    tmp_path: Path, type_: pa.DataType, value: Any
) -> None:
    table = table_of(tmp_path, type_)
    values = pa.array([None, value, None, value], type_).slice(1)
    table.upsert(pa.table({"id": [1, 2, 3], "value": values}))
    assert table.snapshot().sort_by("id").column("value").to_pylist() == [value, None, value]


@pytest.mark.parametrize("type_", [pa.string(), pa.string_view(), pa.large_string()], ids=str)
def test_a_dictionary_is_converted_by_its_used_entries(type_: pa.DataType) -> None:
    entries = pa.array(["1", "x", "2"], type_)
    unused = pa.DictionaryArray.from_arrays(pa.array([0, None, 2, 0], pa.int8()), entries)
    assert convert(unused, pa.int64()).to_pylist() == [1, None, 2, 1]
    used = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), entries)
    values, bad = try_convert(used, pa.int64())
    assert (values.to_pylist(), bad.tolist()) == ([None, None, 1], [True, False, False])


def test_a_type_of_which_nothing_fits_is_an_error_of_the_write(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.int64(), on_error=ErrorPolicy.QUARANTINE)
    with pytest.raises(SchemaError, match=r"'value' of type .* cannot be stored as int64"):
        table.upsert(pa.table({"id": [1], "value": [[1]]}))


@pytest.mark.parametrize(
    ("text", "value", "expected", "type_"),
    [
        ("round(x, 1)", Decimal("0.97"), Decimal("1.0"), pa.decimal128(2, 1)),
        ("floor(x)", Decimal("-99999999.99"), Decimal(-100_000_000), pa.decimal128(9, 0)),
        ("round(x, -2)", Decimal("950"), Decimal(1000), pa.decimal128(4, 0)),
        ("CAST(x AS DECIMAL(10, 2))", "1e-9999999", Decimal("0.00"), pa.decimal128(10, 2)),
    ],
)
def test_sql_rounds_with_room_for_the_carry(
    text: str, value: Any, expected: Any, type_: pa.DataType
) -> None:
    # With a second row, because Arrow notices an overflow in the last valid row only.
    rows = pa.record_batch({"x": [value, value, None]})
    bound = bind(text, rows.schema)
    assert bound.type == type_
    assert bound(rows).to_pylist() == [expected, expected, None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CAST(x AS DECIMAL(38, 2))", WIDE),
        ("CAST(x AS DECIMAL(2, 1))", Decimal("9.96")),
        ("CAST(x AS INT)", "0x10"),
        ("round(x, -38)", Decimal("9" * 38)),
    ],
)
def test_sql_has_no_value_where_the_type_has_no_room(text: str, value: Any) -> None:
    rows = pa.record_batch({"x": [value]})
    with pytest.raises(DataError, match="has no value for some row"):
        bind(text, rows.schema)(rows)


def test_an_error_says_what_does_not_fit_and_what_would() -> None:
    words = r"'abc' is no decimal128\(5, 2\) \(3 digits before the point, 2 behind it\)"
    with pytest.raises(UnfitError, match=words):
        convert(pa.array([None, "abc"]), pa.decimal128(5, 2))
    with pytest.raises(UnfitError, match=r"300 is no int8 \(a whole number from -128 to 127\)"):
        convert(pa.array([300]), pa.int8())


@pytest.mark.parametrize("nesting", NESTINGS)
def test_nulls_and_unsound_values_of_any_type_are_converted_in(nesting: str) -> None:
    """Arrow makes no empty array of an extension type, and chooses no rows of one."""
    for name in TYPES:
        stored = column(name, nesting).stored
        if stored is not None:
            nulls = pa.nulls(2, column(name, nesting).given.type)
            assert try_convert(nulls, stored.type)[0].equals(pa.nulls(2, stored.type)), name
    for name, values in UNSOUND.items():
        nested = NESTINGS[nesting](values)
        for part in (nested, nested.slice(1)):
            converted, bad = to_readable(part)
            converted.validate(full=True)
            assert bad.sum() == len(part) - 2, name
