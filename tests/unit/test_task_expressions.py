"""Expressions: SQL's answers, row by row, and what is refused by its name."""

from __future__ import annotations

import datetime
import inspect
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.errors import DataError, PlanError
from spark_upsert.plan.expressions import bind, bind_condition, columns_of, plain_column

NAN = math.nan

ROWS = pa.record_batch(
    {
        "x": pa.array([5, -7, None, 0], pa.int32()),
        "y": pa.array([2, 2, 3, 0], pa.int64()),
        "f": pa.array([1.5, NAN, None, -0.0]),
        "d": pa.array([Decimal("1.50"), Decimal("-2.25"), None, Decimal("0.00")]),
        "s": pa.array(["ab", "50%", None, ""]),
        "b": pa.array([True, False, None, True]),
        "day": pa.array([datetime.date(2024, 2, 29), None, None, datetime.date(1970, 1, 1)]),
        "at": pa.array([0, 86_400_000_000, None, -1], pa.timestamp("us", tz="UTC")),
        "odd name": pa.array([1, 2, 3, 4]),
        "p": pa.array([{"q": 1}, {"q": None}, None, {"q": 4}]),
        "l": pa.array([[1], [], None, [2]]),
    }
)

T, F, N = True, False, None

CASES: list[tuple[str, list[Any]]] = [
    # names and literals
    ("X", [5, -7, N, 0]),
    ("p.q", [1, N, N, 4]),
    ("'it''s'", ["it's"] * 4),
    ("-9223372036854775808", [-(2**63)] * 4),
    ("9223372036854775808", [Decimal(2**63)] * 4),
    (
        "12345678901234567890123456789012345.678",
        [Decimal("12345678901234567890123456789012345.678")] * 4,
    ),
    # three-valued logic
    ("b IS NOT FALSE", [T, F, T, T]),
    ("NOT NULL", [N] * 4),
    ("x <=> NULL", [F, F, T, F]),
    ("x IS DISTINCT FROM 5", [F, T, T, T]),
    ("x IN (5, NULL)", [T, N, N, N]),
    ("starts_with(s, 'a') OR ends_with(s, '%') OR contains(s, '0')", [T, T, N, F]),
    ("x NOT BETWEEN -7 AND 0", [T, F, N, F]),
    # precedence
    ("1 + 2 * 3 - 4", [3] * 4),
    ("TRUE OR TRUE AND FALSE", [T] * 4),
    # arithmetic
    ("x / 2", [2.5, -3.5, N, 0.0]),
    ("x DIV 2", [2, -3, N, 0]),
    ("-9223372036854775808 % -1", [0] * 4),
    ("CAST(d AS DECIMAL(36, 2)) * 2 > 2", [T, F, N, F]),
    ("d + 0.005", [Decimal("1.505"), Decimal("-2.245"), N, Decimal("0.005")]),
    ("f * d", [2.25, NAN, N, -0.0]),
    ("sign(f)", [1.0, NAN, N, -0.0]),
    ("sign(x)", [1, -1, N, 0]),
    ("round(2.5)", [Decimal("3.0")] * 4),
    # floating numbers: NaN equals itself and is above all; zeros are equal
    ("f = f", [T, T, N, T]),
    ("f > 1e300", [F, T, N, F]),
    ("isnan(f)", [F, T, F, F]),
    ("9007199254740993 = 9007199254740992e0", [T] * 4),
    # a decimal becomes the nearest double, and a double is rounded as it is written
    ("19.99e0 = 19.99", [T] * 4),
    ("19.99e0 IN (20, 19.99)", [T] * 4),
    ("round(1.005e0, 2)", [1.01] * 4),
    ("round(f, -1)", [0.0, NAN, N, 0.0]),
    ("round(1.7e308, 30)", [1.7e308] * 4),
    ("CAST(0.1e0 AS DECIMAL(20, 18))", [Decimal("0.100000000000000000")] * 4),
    ("CAST(2.5 AS FLOAT) * CAST(2 AS FLOAT)", [5.0] * 4),
    # texts
    ("s LIKE '%\\%'", [F, T, N, F]),
    ("s NOT LIKE '_b'", [F, T, N, T]),
    ("upper('straße')", ["STRASSE"] * 4),
    ("lower('ΑΣ ΣΑΣ')", ["ας σας"] * 4),
    ("substring(s, 2147483647, 2147483647)", ["", "", N, ""]),
    ("s || substring(s, 2)", ["abb", "50%0%", N, ""]),
    ("concat(trim('  a b '), nullif(s, ''))", ["a bab", "a b50%", N, N]),
    ("length(s)", [2, 3, N, 0]),
    # choices
    ("CASE WHEN x > 0 THEN 'p' WHEN x < 0 THEN 'n' END", ["p", "n", N, N]),
    ("CASE x WHEN 5 THEN 'five' WHEN NULL THEN 'never' ELSE s END", ["five", "50%", N, ""]),
    ("coalesce(NULL, s, '-')", ["ab", "50%", "-", ""]),
    ("least(x, y)", [2, -7, 3, 0]),
    ("greatest(f, 9.0)", [9.0, NAN, 9.0, 9.0]),
    # what has no value does not matter where SQL does not look
    ("CASE WHEN y = 0 THEN 0 ELSE x DIV y END", [2, -3, N, 0]),
    ("y <> 0 AND x DIV y > 0", [T, F, N, F]),
    ("coalesce(y - 2, x DIV 0)", [0, 0, 1, -2]),
    ("x IN (x, x DIV 0)", [T, T, N, T]),
    ("x DIV nullif(y, 0)", [2, -3, N, N]),
    # casts
    ("CAST(x AS BOOLEAN)", [T, T, N, F]),
    ("CAST(b AS DECIMAL(3, 1))", [Decimal("1.0"), Decimal("0.0"), N, Decimal("1.0")]),
    ("CAST(at AS BIGINT)", [0, 86_400, N, -1]),
    ("CAST(f AS STRING)", ["1.5", "NaN", N, "-0.0"]),
    ("CAST(CAST(0.1 AS FLOAT) AS STRING)", ["0.1"] * 4),
    ("CAST(CAST('1970-01-02 00:00:00' AS TIMESTAMP) AS DATE)", [datetime.date(1970, 1, 2)] * 4),
    ("CAST(' 12 ' AS INT)", [12] * 4),
    ("CAST(b AS STRING)", ["true", "false", N, "true"]),
    ("CAST(d * 0.0000001 AS STRING)", ["0.000000150", "-0.000000225", N, "0.000000000"]),
    (
        "CAST(at AS STRING)",
        ["1970-01-01 00:00:00", "1970-01-02 00:00:00", N, "1969-12-31 23:59:59.999999"],
    ),
    ("CAST('2026-1-3 1:2:3.5-2' AS TIMESTAMP) = TIMESTAMP '2026-01-03 03:02:03.5'", [T] * 4),
    (
        "CAST('2026-01-31T12:30+02:00' AS TIMESTAMP_NTZ)",
        [datetime.datetime(2026, 1, 31, 12, 30)] * 4,
    ),
    # moments
    ("day >= DATE '2000-01-01'", [T, N, N, F]),
    ("at = TIMESTAMP '1969-12-31T23:59:59.999999Z'", [F, F, N, T]),
    ("year(day) * 100 + month(day)", [202402, N, N, 197001]),
]


def bits(value: Any) -> tuple[type, Any]:
    """Tell NaN and -0.0 apart from other values."""
    return type(value), value.hex() if isinstance(value, float) else value


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_row_has_the_same_value_in_a_batch_and_alone(text: str, expected: list[Any]) -> None:
    bound = bind(text, ROWS.schema)
    values = bound(ROWS)
    assert values.type == bound.type
    alone = [bound(ROWS.slice(index, 1))[0].as_py() for index in range(ROWS.num_rows)]
    for each in (values.to_pylist(), alone):
        assert [*map(bits, each)] == [*map(bits, expected)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9223372036854775807 + y", "overflow"),
        ("x DIV y", "divide by zero"),
        ("CAST(y * 1000 AS TINYINT)", "is no int8"),
        ("CAST(s || '0xFFFFFFFFFFFFFFFF' AS BIGINT)", "is no int64"),
        ("CAST(s || '1e400' AS DOUBLE)", "is no double"),
        ("CAST(s || '2026-02-30' AS DATE)", "is no date32"),
        ("CAST(y + 9223372036854775800 AS TIMESTAMP)", "is no timestamp"),
    ],
)
def test_a_row_without_a_value_is_an_error(text: str, why: str) -> None:
    bound = bind(text, ROWS.schema)
    with pytest.raises(DataError, match=f"(?s)has no value for some row.*{why}"):
        bound(ROWS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x +", "expected a value, found the end"),
        ("(x", r"expected \), found the end"),
        ("x ; y", "';' at character 3 begins nothing"),
        ("'open", "begins nothing that is known"),
        ("round(d, x)", "a whole number was expected"),
        ("s LIKE s", "a text was expected"),
        ("abs(x) OVER (y)", "a window is not supported"),
        ("INTERVAL '1' DAY", "an interval is not supported"),
        ("x AS y", "a name given by AS is not supported"),
        ("s RLIKE 'a'", "RLIKE is not supported"),
        ("s LIKE 'a' ESCAPE 'b'", "ESCAPE is not supported"),
        ("s > 5", "> does not take string and int64"),
        ("d / 3", "/ does not take decimal128"),
        ("CASE WHEN b THEN x ELSE s END", "CASE does not take int32 and string"),
        ("x IS 5", "expected NULL, TRUE, FALSE"),
        ("CASE x END", "expected WHEN"),
        ("x.q", "only structs have fields"),
        ("now()", "NOW is not a function of one row"),
        ("CAST(x AS DECIMAL(39))", "1 to 38 digits"),
        ("x y", "expected the end, found 'y' at character 3"),
        ("x NOT 5", "expected IN, BETWEEN or LIKE"),
        ("x IN ()", "in the list of IN"),
        ("dya IS NULL", "(?s)no column.*Did you mean 'day'"),
        ("p.r", "there is no column 'r' among q"),
        ("sum(x) > 1", "SUM is of many rows"),
        ("current_date > day", "CURRENT_DATE is not a function of one row"),
        ("lenght(s)", "(?s)no function LENGHT.*Did you mean 'LENGTH'"),
        ("abs(x, y)", "ABS takes 1 arguments, found 2"),
        ("substring(s, 0)", "a number from 1 to 2147483647 was expected, found 0"),
        ("round(f, 1099511627776)", "a number from -20 to 38 was expected"),
        ("s LIKE 'a\\b'", "a backslash stands before"),
        ("CAST(f AS TIMESTAMP)", "(?s)CAST of double to timestamp.*cast whole seconds"),
        ("(SELECT 1)", "a subquery is not supported"),
        ("TRY_CAST(s AS INT)", "TRY_CAST is not supported"),
        ("CAST(x AS INTEGR)", "(?s)no type 'INTEGR'.*Did you mean 'INTEGER'"),
        ("CAST(l AS INT)", "CAST of list<.*> to int32 is not known"),
        ("CAST(day AS INT)", "CAST of date32.* to int32 is not known"),
        ("day = '2024-01-01'", "= does not take date32"),
        ("s || x", r"\|\| does not take string and int32"),
        ("DATE '2024-02-30'", "'2024-02-30' at character 6 is no date"),
        ("DATE '20240229'", "is no date"),
        ("DATE '2024-W05-6'", "is no date"),
        ("TIMESTAMP '2024-02-29 24:00:00'", "is no timestamp"),
        ("TIMESTAMP '0001-01-01 00:00:00+23:59'", "is no timestamp of the years 0001 to 9999"),
        ("x < 1e400", "1e400 is no DOUBLE"),
        ("d < 123456789012345678901234567890123456789.5", "more than 38 digits"),
        ("1 DIV 0", "cannot be computed: divide by zero"),
        ("f % 2", "% does not take double and int64"),
        ("x AND b", "AND does not take int32"),
        ("CAST(d AS DECIMAL(38, 2)) * 1.1", r"\* does not take decimal128\(38, 2\)"),
        ("(" * 60 + "x" + ")" * 60, "at most 50 deep"),
        (" OR ".join(["b"] * 201), "at most 200 operators"),
        ("x" * 10_001, "at most 10000 characters"),
    ],
    ids=lambda text: text[:40],
)
def test_an_unknown_expression_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        bind(text, ROWS.schema)


def test_a_column_with_the_name_of_a_function_is_read() -> None:
    rows = pa.record_batch({"id": [1, 3], "rank": [2, 2], "uuid": ["a", "b"], "over": ["b", "b"]})
    assert bind("id > rank", rows.schema)(rows).to_pylist() == [False, True]
    assert bind("`over` = uuid", rows.schema)(rows).to_pylist() == [False, True]
    assert bind("uuid <> ' rank ( '", rows.schema)(rows).to_pylist() == [True, True]


def test_an_expression_names_the_columns_that_it_reads() -> None:
    text = "CASE WHEN y > 1 THEN p.q ELSE abs(X) END + CAST(`odd name` AS INT)"
    assert bind(text, ROWS.schema).columns == ("x", "y", "odd name", "p")
    assert columns_of(text) == {"y", "p", "X", "odd name"}
    columns = [plain_column(each) for each in ("x", "`odd name`", "(x)", "p.q", "x + 0")]
    assert columns == ["x", "odd name", "x", None, None]


def test_a_moment_of_another_zone_is_taken_in_utc() -> None:
    at = pa.array([datetime.datetime(2026, 6, 30, 23, 30)]).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch({"at": at.cast(pa.timestamp("us", tz="Asia/Tokyo")), "utc": at})

    for condition in (
        "CAST(at AS STRING) = '2026-06-30 23:30:00'",
        "CAST(at AS DATE) = DATE '2026-06-30' AND month(at) = 6",
        "CAST(CAST(at AS TIMESTAMP_NTZ) AS STRING) = '2026-06-30 23:30:00'",
        "at = utc AND at IN (utc) AND coalesce(NULL, at) = utc",
    ):
        assert bind(condition, rows.schema)(rows)[0].as_py() is True, condition
    assert str(bind("CAST(at AS TIMESTAMP)", rows.schema).type) == "timestamp[us, tz=UTC]"
    assert bind("at", rows.schema)(rows).type == rows.schema.field("at").type


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_an_encoded_column_is_read_as_its_values(type_: pa.DataType) -> None:
    texts = pa.array(["a", "b"], type_)
    codes = pa.array([0, 1, None], pa.int8())
    rows = pa.record_batch({"s": pa.DictionaryArray.from_arrays(codes, texts)})
    assert bind("s = 'a'", rows.schema)(rows).to_pylist() == [True, False, None]


def test_a_condition_passes_true_rows_only_and_is_boolean() -> None:
    assert bind_condition("x < 3", ROWS.schema).true_rows(ROWS)["x"].to_pylist() == [-7, 0]
    assert bind_condition("NULL", ROWS.schema).true_rows(ROWS).num_rows == 0
    with pytest.raises(PlanError, match="'x' is int32"):
        bind_condition("x", ROWS.schema)


def test_an_expression_of_arrow_is_bound() -> None:
    bound = bind(pc.field("y") + 1, ROWS.schema)
    assert bound(ROWS).to_pylist() == [3, 3, 4, 1]
    assert bound(ROWS.slice(0, 0)).type == bound.type
    assert bind(pc.scalar(7), ROWS.schema)(ROWS).to_pylist() == [7] * 4
    with pytest.raises(PlanError, match="cannot be computed"):
        bind(pc.field("nope") > 0, ROWS.schema)


DEEP = {
    "brackets": "(" * 49 + "x" + ")" * 49,
    "functions": "abs(" * 49 + "x" + ")" * 49,
    "choices": "CASE WHEN b THEN " * 49 + "x" + " END" * 49,
    "terms": " OR ".join(["b"] * 199),
}


@pytest.mark.parametrize("name", DEEP)
def test_an_expression_within_the_bounds_is_read_unless_the_stack_of_its_caller_is_full(
    name: str,
) -> None:
    bound = bind(DEEP[name], ROWS.schema)
    assert bound(ROWS)[0].as_py() in (True, 5)

    def called(levels: int, act: Callable[[], object]) -> object:
        return called(levels - 1, act) if levels else act()

    levels = sys.getrecursionlimit() - len(inspect.stack()) - 60
    with pytest.raises(PlanError, match="nested too deep for the stack of its caller"):
        called(levels, lambda: bind(DEEP[name], ROWS.schema))
    if name == "terms":
        with pytest.raises(PlanError, match="nested too deep for the stack of its caller"):
            called(levels, lambda: bound(ROWS))
