"""What a table stores of a value of another type is that value, or the write says why not."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.casts import UnfitError, convert, readable, try_convert
from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import DataError, SchemaError
from spark_upsert.payloads.connect import ConnectAvroDecoder
from spark_upsert.plan.expressions import bind
from spark_upsert.table.table import Table
from tests.support.column_types import NESTINGS, TYPES, UNSOUND, column

BAD_DECIMALS = [
    ("48151415102163378576555277819065061780", pa.decimal128(38, 2)),
    ("1e-9999999", pa.decimal128(38, 2)),
    ("1e99999999999999999999", pa.decimal128(38, 2)),
    ("78418803888720.81917", pa.decimal128(38, 38)),
    ("9" * 200, pa.decimal128(38, 0)),
    ("9" * 39, pa.decimal128(38, 0)),
    ("", pa.decimal128(38, 0)),
    ("1_0", pa.decimal128(38, 0)),
]


def table_of(tmp_path: Path, type_: pa.DataType, **options: Any) -> Table:
    columns = pa.schema({"id": pa.int64(), "value": type_})
    return Table.create(str(tmp_path), columns, keys=["id"], **options)


def rows(value: Any, *, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"id": pa.array([1]), "value": pa.array([value], type_)})


@pytest.mark.parametrize(("text", "type_"), BAD_DECIMALS)
def test_a_text_that_is_no_such_decimal_is_not_stored(
    tmp_path: Path, text: str, type_: pa.DataType
) -> None:
    table = table_of(tmp_path, type_)
    with pytest.raises(DataError, match="column 'value' holds what is no decimal128"):
        table.upsert(rows(text))
    assert table.snapshot().num_rows == 0


@pytest.mark.parametrize(
    ("number", "type_"),
    [
        ("48151415102163378576555277819065061780", pa.decimal128(38, 2)),
        ("78418803888720.81917", pa.decimal128(38, 38)),
        ("0.123", pa.decimal128(38, 2)),
    ],
)
def test_a_decimal_of_another_scale_that_does_not_fit_is_not_stored(
    tmp_path: Path, number: str, type_: pa.DataType
) -> None:
    table = table_of(tmp_path, type_)
    with pytest.raises(DataError, match="digits before the point"):
        table.upsert(rows(Decimal(number)))


BAD_NUMBER = "48151415102163378576555277819065061780"


def table_of_numbers(tmp_path: Path, **options: Any) -> Table:
    number = pa.decimal128(38, 2)
    columns = pa.schema({"id": number, "at": number, "note": pa.string()})
    return Table.create(str(tmp_path), columns, keys=["id"], sequence_by=["at"], **options)


def test_a_key_and_an_order_are_converted_by_the_same_rules(tmp_path: Path) -> None:
    table = table_of_numbers(tmp_path)
    with pytest.raises(DataError, match=f"'id' holds .*for example key .*{BAD_NUMBER}"):
        table.upsert(pa.table({"id": [BAD_NUMBER], "at": ["1"], "note": ["a"]}))
    with pytest.raises(DataError, match=r"'at' holds .*for example id=Decimal\('1.00'\)"):
        table.upsert(pa.table({"id": ["1"], "at": [BAD_NUMBER], "note": ["a"]}))
    table.upsert(pa.table({"id": ["0.10"], "at": ["1e2"], "note": ["a"]}))
    [row] = table.snapshot().to_pylist()
    assert row == {"id": Decimal("0.10"), "at": Decimal("100.00"), "note": "a"}


def test_what_does_not_fit_is_kept_apart_as_the_hint_says(tmp_path: Path) -> None:
    given = pa.table(
        {
            "id": ["1", "2", BAD_NUMBER, "4"],
            "at": ["1", BAD_NUMBER, "1", "1"],
            "note": ["a", "b", "c", "d"],
        }
    )
    with pytest.raises(
        DataError,
        match=r"Hint: correct what writes the values, .*on_error=quarantine keeps such",
    ):
        table_of_numbers(tmp_path / "fails").upsert(given)
    table = table_of_numbers(tmp_path / "table", on_error=ErrorPolicy.QUARANTINE)
    table.upsert(given)
    assert sorted(table.snapshot().column("note").to_pylist()) == ["a", "d"]
    kept = [row for batch in table.quarantine() for row in batch.to_pylist()]
    assert sorted((row["id"], row["_raw_key"]) for row in kept if row["id"] is not None) == [
        (Decimal("2.00"), None)
    ]
    assert [row["_raw_key"] for row in kept if row["id"] is None] == [
        f'{{"id": "{BAD_NUMBER}"}}'.encode()
    ]
    # The other advice works, too.
    fails = table_of_numbers(tmp_path / "left out")
    fails.upsert(given.filter(pa.array([True, False, False, True])))
    assert fails.snapshot().num_rows == 2
    # A later row of the key clears it, and a delete of the same text.
    table.upsert(pa.table({"id": ["2"], "at": ["2"], "note": ["e"]}))
    gone = pa.table({"id": [BAD_NUMBER], "at": ["2"], "note": [None], "gone": [True]})
    table.upsert(gone, deletes="gone")
    assert not list(table.quarantine())


BEYOND = [
    pa.array([2**62]).view(pa.timestamp("us", "UTC")),
    pa.array([-(2**62)]).view(pa.timestamp("us")),
    pa.array([253_402_300_800]).view(pa.timestamp("s")),
    pa.array([2**30], pa.int32()).view(pa.date32()),
    pa.array(["0000-12-31"]),
    pa.array(["9999-12-31T23:59:59-14:00"]),
]


@pytest.mark.parametrize(
    "time", BEYOND, ids=lambda time: f"{time.type} {time.cast(pa.string())[0]}"
)
def test_a_time_that_python_cannot_read_is_never_stored(tmp_path: Path, time: pa.Array) -> None:
    is_date = pa.types.is_date(time.type)
    zone = getattr(time.type, "tz", "UTC")
    columns = pa.schema(
        {"id": pa.int64(), "value": pa.date32() if is_date else pa.timestamp("us", zone)}
    )
    given = pa.table({"id": [1], "value": time})
    for key, policy in product(columns.names, ErrorPolicy):
        path = str(tmp_path / f"{key} {policy.value}")
        table = Table.create(path, columns, keys=[key], on_error=policy)
        is_inline = policy is ErrorPolicy.INLINE and key == "id"  # Which covers values only.
        if is_inline or policy is ErrorPolicy.QUARANTINE:
            table.upsert(given)
        else:
            with pytest.raises(DataError, match="of the years 0001 to 9999"):
                table.upsert(given)
        assert table.snapshot().column("value").to_pylist() == [None] * is_inline
        kept = [row for batch in table.quarantine() for row in batch.to_pylist()]
        assert len(kept) == (policy is ErrorPolicy.QUARANTINE)
        assert all("0001 to 9999" in row["_reason"] for row in kept)


ZONED = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "at",
            "type": {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
        },
    ],
}


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-14:00", "0000-12-31T23:59:59Z"])
def test_a_zoned_time_of_avro_that_python_cannot_read_is_bad(text: str) -> None:
    decoder = ConnectAvroDecoder.parse("valueSchema", json.dumps(ZONED), bare_name="v")
    payloads = [_avro(1, "9999-12-31T23:59:59Z"), _avro(2, text)]
    found = decoder.decode(pa.array(payloads, pa.binary()))
    times = found.columns[1].to_pylist()
    assert times == [dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC), None]
    assert found.reasons is not None
    assert found.reasons.is_valid().to_pylist() == [False, True]


def _avro(id_: int, at: str) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ZONED), {"id": id_, "at": at})
    return out.getvalue()


def test_nested_times_are_looked_through(tmp_path: Path) -> None:
    time = pa.array([2**62, 0]).view(pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([time], ["at"])
    table = table_of(tmp_path, nested.type)
    table.upsert(pa.table({"id": [2], "value": nested[1:]}))
    with pytest.raises(DataError, match="column 'value' holds what is no struct"):
        table.upsert(pa.table({"id": [1], "value": nested[:1]}))


KINDS: dict[str, pa.Array] = {
    "whole": pa.array([1]),
    "float": pa.array([1.0]),
    "decimal": pa.array([Decimal(1)]),
    "date": pa.array([1], pa.date32()),
    "time": pa.array([1], pa.timestamp("us")),
    "time of day": pa.array([1], pa.time64("us")),
    "duration": pa.array([1], pa.duration("us")),
}
"""Numbers and times, which Arrow casts into each other by the unit of one of them."""

HAS_UNIT = {"date", "time"}, {"whole", "float", "decimal"}


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (given, other)
        for given, other in product(KINDS, repeat=2)
        if given != other and not any({given, other} <= kinds for kinds in HAS_UNIT)
    ],
)
def test_a_number_is_no_time_and_a_time_no_other_kind(given: str, other: str) -> None:
    with pytest.raises(pa.ArrowTypeError, match="is no"):
        convert(KINDS[given], KINDS[other].type)


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (pa.array([0, 1, None, 2, -1]), [3, 4]),
        (pa.array([0.0, 1.0, None, 0.5, float("nan")]), [3, 4]),
        (pa.array([b"true", b"0", None, b"2", b""]), [3, 4]),
    ],
    ids=["whole numbers", "floats", "bytes"],
)
def test_a_number_is_a_truth_value_if_it_is_0_or_1(values: pa.Array, bad: list[int]) -> None:
    found, mask = try_convert(values, pa.bool_())
    assert list(np.flatnonzero(mask)) == bad
    assert found.null_count == len(bad) + 1


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64(), pa.decimal128(38, 2)], ids=str)
@pytest.mark.parametrize("text", [b"0x10", b"1e-9999999", b"1_0", b"N/A"])
def test_bytes_are_the_number_of_their_text(text: bytes, type_: pa.DataType) -> None:
    values = pa.array([text, b"12"])
    found, bad = try_convert(values, type_)
    assert not bad[1]
    assert found.equals(try_convert(pa.array([text.decode(), "12"]), type_)[0])


NOT_NULL = pa.struct([pa.field("id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.list_(NOT_NULL), [{"id": 1}, None]),
        (pa.large_list(NOT_NULL), [None, {"id": 1}]),
        (pa.map_(pa.string(), NOT_NULL), [("a", {"id": 1}), ("b", None)]),
        (pa.list_(pa.list_(NOT_NULL)), [None, [None, {"id": 1}]]),
        (pa.map_(pa.string(), pa.list_(NOT_NULL)), [("a", [None]), ("b", None)]),
        (pa.list_(pa.map_(pa.string(), NOT_NULL)), [[("a", None)], None]),
    ],
    ids=str,
)
def test_a_null_struct_may_have_fields_that_are_never_null(
    tmp_path: Path, type_: pa.DataType, value: Any
) -> None:
    table = table_of(tmp_path, type_)
    given = pa.array([None, value, None, value], type_).slice(1)
    table.upsert(pa.table({"id": [1, 2, 3], "value": given}))
    assert table.snapshot().sort_by("id").column("value").to_pylist() == [value, None, value]


@pytest.mark.parametrize("entries", [["1", "x", "2"], ["1", "2"]], ids=["bad", "good"])
@pytest.mark.parametrize("type_", [pa.string(), pa.string_view(), pa.large_string()], ids=str)
def test_a_dictionary_is_converted_by_its_entries(entries: list[str], type_: pa.DataType) -> None:
    indices = pa.array([0, None, len(entries) - 1, 0], pa.int8())
    values = pa.DictionaryArray.from_arrays(indices, pa.array(entries, type_))
    assert convert(values, pa.int64()).to_pylist() == [1, None, 2, 1]
    if len(entries) == 3:
        used = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), values.dictionary)
        found, bad = try_convert(used, pa.int64())
        assert (found.to_pylist(), bad.tolist()) == ([None, None, 1], [True, False, False])


def test_a_type_of_which_nothing_fits_is_an_error_of_the_write(tmp_path: Path) -> None:
    table = table_of(tmp_path, pa.int64(), on_error=ErrorPolicy.QUARANTINE)
    with pytest.raises(SchemaError, match=r"'value' of type .* cannot be stored as int64"):
        table.upsert(rows([1]))


@pytest.mark.parametrize("form", [str, Decimal])
def test_rows_are_not_looked_for_by_another_number(tmp_path: Path, form: Any) -> None:
    table = table_of(tmp_path, pa.decimal128(38, 2))
    table.upsert(rows("1.50"))
    assert table.rows_having("value", [form("15e-1")]).num_rows == 1
    for bad in ("1e-9999999", "48151415102163378576555277819065061780"):
        with pytest.raises(SchemaError, match="column 'value' has no such value"):
            table.rows_having("value", [form(bad)])
    with pytest.raises(SchemaError, match="column 'value' has no such value"):
        table.rows_having("value", pa.array(["1e-9999999"]))


@pytest.mark.parametrize(
    ("text", "value", "expected", "type_"),
    [
        ("round(x, 1)", Decimal("0.97"), Decimal("1.0"), pa.decimal128(2, 1)),
        ("CAST(x AS DECIMAL(4, 1))", Decimal("0.97"), Decimal("1.0"), pa.decimal128(4, 1)),
        ("ceil(x)", Decimal("99999999.99"), Decimal(100_000_000), pa.decimal128(9, 0)),
        ("floor(x)", Decimal("-99999999.99"), Decimal(-100_000_000), pa.decimal128(9, 0)),
        ("round(x, -2)", Decimal("950"), Decimal(1000), pa.decimal128(4, 0)),
        ("round(x, 2147483647)", Decimal("1.5"), Decimal("1.5"), pa.decimal128(3, 1)),
        ("CAST(x AS DECIMAL(10, 2))", "1.005", Decimal("1.01"), pa.decimal128(10, 2)),
        ("CAST(x AS DECIMAL(10, 2))", "1e-9999999", Decimal("0.00"), pa.decimal128(10, 2)),
        ("x = 19.99", 19.99, True, pa.bool_()),
    ],
)
def test_sql_rounds_with_room_for_the_carry(
    text: str, value: Any, expected: Any, type_: pa.DataType
) -> None:
    # With a second row, because Arrow notices an overflow in the last valid row only.
    column = pa.array([value, value, None])
    bound = bind(text, pa.schema({"x": column.type}))
    assert bound.type == type_
    found = bound(pa.record_batch({"x": column}))
    assert found.to_pylist() == [expected, expected, None]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CAST(x AS DECIMAL(38, 2))", "48151415102163378576555277819065061780"),
        ("CAST(x AS DECIMAL(38, 0))", "9" * 200),
        ("CAST(x AS DECIMAL(38, 30))", 123456789012345678),
        ("CAST(x AS DECIMAL(2, 1))", Decimal("9.96")),
        ("CAST(x AS INT)", "0x10"),
        ("CAST(x AS INT)", Decimal("2147483648")),
        ("round(x, -38)", Decimal("9" * 38)),
    ],
)
def test_sql_has_no_value_where_the_type_has_no_room(text: str, value: Any) -> None:
    column = pa.array([value])
    with pytest.raises(DataError, match="has no value for some row"):
        bind(text, pa.schema({"x": column.type}))(pa.record_batch({"x": column}))


def test_an_error_says_what_does_not_fit_and_what_would() -> None:
    with pytest.raises(
        UnfitError,
        match=r"'abc' is no decimal128\(5, 2\) \(3 digits before the point, 2 behind it\)",
    ):
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
        given = NESTINGS[nesting](values)
        for part in (given, given.slice(1)):
            found, bad = readable(part)
            found.validate(full=True)
            assert bad.sum() == len(part) - 2, name
