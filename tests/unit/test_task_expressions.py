"""Expressions: SQL's answers, row by row, and what is refused by its name."""

from __future__ import annotations

import datetime
import inspect
import math
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.errors import DataError, PlanError
from spark_upsert.plan.expressions import bind, bind_condition, columns_of, plain_column
from tests.support.logic import truth, written

NAN, INF = math.nan, math.inf

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
    ("x", [5, -7, N, 0]),
    ("X", [5, -7, N, 0]),
    ('"odd name"', ["odd name"] * 4),
    ("`odd name`", [1, 2, 3, 4]),
    ("p.q", [1, N, N, 4]),
    ("'it''s'", ["it's"] * 4),
    ("1.50", [Decimal("1.50")] * 4),
    ("1e3", [1000.0] * 4),
    ("-9223372036854775808", [-(2**63)] * 4),
    ("9223372036854775808", [Decimal(2**63)] * 4),
    (
        "12345678901234567890123456789012345.678",
        [Decimal("12345678901234567890123456789012345.678")] * 4,
    ),
    (
        "-0.1234567890123456789012345678901234567",
        [Decimal("-0." + "1234567890" * 3 + "1234567")] * 4,
    ),
    ("-1e-400", [-0.0] * 4),
    ("NULL", [N] * 4),
    ("DATE '2024-02-29'", [datetime.date(2024, 2, 29)] * 4),
    # three-valued logic
    ("x > 0", [T, F, N, F]),
    ("NOT x > 0", [F, T, N, T]),
    ("b AND x > 0", [T, F, N, F]),
    ("b AND NULL", [N, F, N, N]),
    ("b OR NULL", [T, N, N, T]),
    ("NULL OR NULL", [N] * 4),
    ("NOT NULL", [N] * 4),
    ("x IS NULL", [F, F, T, F]),
    ("x IS NOT NULL", [T, T, F, T]),
    ("b IS TRUE", [T, F, F, T]),
    ("b IS NOT FALSE", [T, F, T, T]),
    ("x = NULL", [N] * 4),
    ("x <=> NULL", [F, F, T, F]),
    ("x IS DISTINCT FROM 5", [F, T, T, T]),
    ("x IS NOT DISTINCT FROM 5", [T, F, F, F]),
    ("x IN (5, 7)", [T, F, N, F]),
    ("x IN (5, NULL)", [T, N, N, N]),
    ("x NOT IN (5, NULL)", [F, N, N, N]),
    ("x BETWEEN -7 AND 0", [F, T, N, T]),
    ("x NOT BETWEEN -7 AND 0", [T, F, N, F]),
    ("b = (x > 0)", [T, T, N, F]),
    ("FALSE < b", [T, F, N, T]),
    # precedence
    ("1 + 2 * 3 - 4", [3] * 4),
    ("TRUE OR TRUE AND FALSE", [T] * 4),
    ("NOT FALSE AND FALSE", [F] * 4),
    ("NOT NOT x = 5", [T, F, N, F]),
    ("- -x", [5, -7, N, 0]),
    ("2 - 3 - 4", [-5] * 4),
    # arithmetic
    ("x * 2", [10, -14, N, 0]),
    ("x + y", [7, -5, N, 0]),
    ("x / 2", [2.5, -3.5, N, 0.0]),
    ("x DIV 2", [2, -3, N, 0]),
    ("x % 2", [1, -1, N, 0]),
    ("x % -1", [0, 0, N, 0]),
    ("-9223372036854775808 % -1", [0] * 4),
    ("d * 2", [Decimal("3.00"), Decimal("-4.50"), N, Decimal("0.00")]),
    ("CAST(d AS DECIMAL(36, 2)) * 2 > 2", [T, F, N, F]),
    ("d + 0.005", [Decimal("1.505"), Decimal("-2.245"), N, Decimal("0.005")]),
    ("f * d", [2.25, NAN, N, -0.0]),
    ("abs(x)", [5, 7, N, 0]),
    ("sign(x)", [1, -1, N, 0]),
    ("round(d, 1)", [Decimal("1.50"), Decimal("-2.30"), N, Decimal("0.00")]),
    ("round(2.5)", [Decimal("3.0")] * 4),
    ("floor(d)", [Decimal(1), Decimal(-3), N, Decimal(0)]),
    ("ceil(d)", [Decimal(2), Decimal(-2), N, Decimal(0)]),
    ("sqrt(4)", [2.0] * 4),
    # floating numbers: NaN equals itself and is above all; zeros are equal
    ("f = f", [T, T, N, T]),
    ("f > 1e300", [F, T, N, F]),
    ("f <= 1.5", [T, F, N, T]),
    ("f = 0", [F, F, N, T]),
    ("f < 0", [F, F, N, F]),
    ("isnan(f)", [F, T, F, F]),
    ("9007199254740993 = 9007199254740992e0", [T] * 4),
    # a decimal becomes the nearest double, and a double is rounded as it is written
    ("19.99e0 = 19.99", [T] * 4),
    ("19.99e0 IN (20, 19.99)", [T] * 4),
    ("19.99e0 BETWEEN 19.99 AND 19.99", [T] * 4),
    ("round(1.005e0, 2)", [1.01] * 4),
    ("round(-2.675e0, 2)", [-2.68] * 4),
    ("round(f, -1)", [0.0, NAN, N, 0.0]),
    ("round(149.5e0, -2)", [100.0] * 4),
    ("round(1.7e308, 30)", [1.7e308] * 4),
    ("CAST(0.1e0 AS DECIMAL(20, 18))", [Decimal("0.100000000000000000")] * 4),
    ("sign(f)", [1.0, NAN, N, -0.0]),
    ("CAST(2.5 AS FLOAT) * CAST(2 AS FLOAT)", [5.0] * 4),
    # texts
    ("s || '!'", ["ab!", "50%!", N, "!"]),
    ("concat(s, s)", ["abab", "50%50%", N, ""]),
    ("s LIKE 'a%'", [T, F, N, F]),
    ("s LIKE '%\\%'", [F, T, N, F]),
    ("s NOT LIKE '_b'", [F, T, N, T]),
    ("upper(s)", ["AB", "50%", N, ""]),
    ("lower('ÄB')", ["äb"] * 4),
    ("upper('straße')", ["STRASSE"] * 4),
    ("lower('ΑΣ ΣΑΣ')", ["ας σας"] * 4),
    ("s LIKE '%\\\\'", [F, F, N, F]),
    ("substring(s, 2147483647, 2147483647)", ["", "", N, ""]),
    ("trim('  a b ')", ["a b"] * 4),
    ("length(s)", [2, 3, N, 0]),
    ("substring(s, 2)", ["b", "0%", N, ""]),
    ("substring(s, 1, 1)", ["a", "5", N, ""]),
    ("starts_with(s, 'a')", [T, F, N, F]),
    ("ends_with(s, '%')", [F, T, N, F]),
    ("contains(s, '0')", [F, T, N, F]),
    # choices
    ("CASE WHEN x > 0 THEN 'p' WHEN x < 0 THEN 'n' END", ["p", "n", N, N]),
    ("CASE WHEN x > 0 THEN 1 ELSE 2.5 END", [Decimal("1.0"), *[Decimal("2.5")] * 3]),
    ("CASE x WHEN 5 THEN 'five' WHEN NULL THEN 'never' ELSE s END", ["five", "50%", N, ""]),
    ("coalesce(x, y)", [5, -7, 3, 0]),
    ("coalesce(NULL, s, '-')", ["ab", "50%", "-", ""]),
    ("nullif(x, 5)", [N, -7, N, 0]),
    ("greatest(x, y)", [5, 2, 3, 0]),
    ("least(x, y)", [2, -7, 3, 0]),
    ("greatest(f, 9.0)", [9.0, NAN, 9.0, 9.0]),
    # what has no value does not matter where SQL does not look
    ("CASE WHEN y = 0 THEN 0 ELSE x DIV y END", [2, -3, N, 0]),
    ("y <> 0 AND x DIV y > 0", [T, F, N, F]),
    ("y = 0 OR x DIV y > 0", [T, F, N, T]),
    ("coalesce(y - 2, x DIV 0)", [0, 0, 1, -2]),
    ("x IN (x, x DIV 0)", [T, T, N, T]),
    ("nullif(y, 0) > 5 DIV y", [F, F, T, N]),
    ("x DIV nullif(y, 0)", [2, -3, N, N]),
    # casts
    ("CAST(x AS STRING)", ["5", "-7", N, "0"]),
    ("CAST('12' AS BIGINT)", [12] * 4),
    ("CAST(d AS INT)", [1, -2, N, 0]),
    ("CAST(-2.5e0 AS BIGINT)", [-2] * 4),
    ("CAST(d AS DECIMAL(5, 1))", [Decimal("1.5"), Decimal("-2.3"), N, Decimal("0.0")]),
    ("CAST(x AS DECIMAL(4, 2))", [Decimal("5.00"), Decimal("-7.00"), N, Decimal("0.00")]),
    ("CAST(0.1 AS DOUBLE)", [0.1] * 4),
    ("CAST(x AS BOOLEAN)", [T, T, N, F]),
    ("CAST(f AS STRING)", ["1.5", "NaN", N, "-0.0"]),
    ("CAST(x * 1e20 AS STRING)", ["5.0E20", "-7.0E20", N, "0.0"]),
    ("CAST(x * 1.2345e3 AS STRING)", ["6172.5", "-8641.5", N, "0.0"]),
    ("CAST(1.5e-3 * x AS STRING)", ["0.0075", "-0.0105", N, "0.0"]),
    ("CAST(1e-4 AS STRING)", ["1.0E-4"] * 4),
    ("CAST(CAST(0.1 AS FLOAT) AS STRING)", ["0.1"] * 4),
    ("CAST('2024-02-29' AS DATE) = day", [T, N, N, F]),
    ("CAST(CAST('1970-01-02 00:00:00' AS TIMESTAMP) AS DATE)", [datetime.date(1970, 1, 2)] * 4),
    ("CAST(' 12 ' AS INT)", [12] * 4),
    ("CAST('Yes' AS BOOLEAN)", [T] * 4),
    ("CAST(b AS DECIMAL(3, 1))", [Decimal("1.0"), Decimal("0.0"), N, Decimal("1.0")]),
    ("CAST(f AS BOOLEAN)", [T, T, N, F]),
    ("CAST(b AS STRING)", ["true", "false", N, "true"]),
    ("CAST(d * 0.0000001 AS STRING)", ["0.000000150", "-0.000000225", N, "0.000000000"]),
    ("CAST(day AS STRING)", ["2024-02-29", N, N, "1970-01-01"]),
    (
        "CAST(at AS STRING)",
        ["1970-01-01 00:00:00", "1970-01-02 00:00:00", N, "1969-12-31 23:59:59.999999"],
    ),
    ("CAST(at AS BIGINT)", [0, 86_400, N, -1]),
    ("CAST(x AS TIMESTAMP) = TIMESTAMP '1970-01-01 00:00:05'", [T, F, N, F]),
    ("CAST('2026-1' AS DATE) = DATE '2026-01-01'", [T] * 4),
    ("CAST('2026-1-3 1:2:3.5-2' AS TIMESTAMP) = TIMESTAMP '2026-01-03 03:02:03.5'", [T] * 4),
    (
        "CAST('2026-01-31T12:30+02:00' AS TIMESTAMP_NTZ)",
        [datetime.datetime(2026, 1, 31, 12, 30)] * 4,
    ),
    # moments
    ("day >= DATE '2000-01-01'", [T, N, N, F]),
    ("at = TIMESTAMP '1970-01-01 00:00:00'", [T, F, N, F]),
    ("at = TIMESTAMP '1970-01-01 02:00:00+02:00'", [T, F, N, F]),
    ("at = TIMESTAMP '1969-12-31T23:59:59.999999Z'", [F, F, N, T]),
    ("at > TIMESTAMP '1970-01-01'", [F, T, N, F]),
    ("at < TIMESTAMP '1970-01-01 00:01'", [T, F, N, T]),
    ("year(day) * 100 + month(day)", [202402, N, N, 197001]),
    ("day(at)", [1, 2, N, 31]),
]


def same(left: Any, right: Any) -> bool:
    """Compare with the bits of floating numbers, so that NaN and -0.0 are told apart."""
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return type(left) is type(right) and left == right


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_the_value_of_each_row(text: str, expected: list[Any]) -> None:
    bound = bind(text, ROWS.schema)
    found = bound(ROWS)
    assert found.type == bound.type
    assert all(map(same, found.to_pylist(), expected)), found.to_pylist()
    assert len(found) == len(expected)


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text for text, _ in CASES])
def test_a_row_has_the_same_value_alone(text: str, expected: list[Any]) -> None:
    bound = bind(text, ROWS.schema)
    for index, value in enumerate(expected):
        [alone] = bound(ROWS.slice(index, 1)).to_pylist()
        assert same(alone, value), index


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9223372036854775807 + y", "overflow"),
        ("x - 9223372036854775807 - 9223372036854775807", "overflow"),
        ("abs(y - 9223372036854775807 - 3)", "overflow"),
        ("x DIV y", "divide by zero"),
        ("x / y", "divide by zero"),
        ("f / 0", "divide by zero"),
        ("x % y", "divide by zero"),
        ("CAST(s AS INT)", "is no int32"),
        ("CAST(y * 1000 AS TINYINT)", "is no int8"),
        ("CASE WHEN y < 9 THEN x DIV y END", "divide by zero"),
        ("CAST(s || '0x10' AS BIGINT)", "is no int64"),
        ("CAST(s || '0xFFFFFFFFFFFFFFFF' AS BIGINT)", "is no int64"),
        ("CAST(s || '1e400' AS DOUBLE)", "is no double"),
        ("CAST(s || '+nan' AS DOUBLE)", "is no double"),
        ("CAST(s || '2026-02-30' AS DATE)", "is no date32"),
        ("CAST(y + 9223372036854775800 AS TIMESTAMP)", "is no timestamp"),
        ("CAST(f AS DECIMAL(5, 2))", "is no decimal"),
    ],
)
def test_a_row_without_a_value_is_an_error(text: str, why: str) -> None:
    bound = bind(text, ROWS.schema)
    with pytest.raises(DataError, match=f"(?s)has no value for some row.*{why}"):
        bound(ROWS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value, found the end"),
        ("x +", "expected a value, found the end"),
        ("(x", r"expected \), found the end"),
        ("x y", "expected the end, found 'y' at character 3"),
        ("x ; y", "';' at character 3 begins nothing"),
        ("'open", "begins nothing that is known"),
        ("NOT", "expected a value"),
        ("x NOT 5", "expected IN, BETWEEN or LIKE"),
        ("x IS 5", "expected NULL, TRUE, FALSE"),
        ("x IN ()", "in the list of IN"),
        ("CASE x END", "expected WHEN"),
        ("xx > 1", "there is no column 'xx' among x, y"),
        ("p.r", "there is no column 'r' among q"),
        ("x.q", "only structs have fields"),
        ("sum(x) > 1", "SUM is of many rows"),
        ("now()", "NOW is not a function of one row"),
        ("current_date > day", "CURRENT_DATE is not a function of one row"),
        ("rank() < 3", "RANK is not a function of one row"),
        ("lenght(s)", "(?s)no function LENGHT.*Did you mean 'LENGTH'"),
        ("abs(x, y)", "ABS takes 1 arguments, found 2"),
        ("round(d, x)", "a whole number was expected"),
        ("substring(s, 0)", "a number from 1 to 2147483647 was expected, found 0"),
        ("substring(s, 1, 9223372036854775807)", "a number from -2147483647 to 2147483647"),
        ("round(f, 1099511627776)", "a number from -20 to 38 was expected"),
        ("round(x, 1099511627776)", "a number from -2147483647 to 2147483647 was expected"),
        ("s LIKE 'a\\b'", "a backslash stands before"),
        ("s LIKE 'a\\'", "a backslash stands before"),
        ("CAST(f AS TIMESTAMP)", "(?s)CAST of double to timestamp.*cast whole seconds"),
        ("CAST(at AS DOUBLE)", "(?s)to double is not known.*cast to whole seconds first"),
        ("CAST(day AS INT)", "CAST of date32.* to int32 is not known"),
        ("CAST(b AS TIMESTAMP)", "CAST of bool to timestamp.* is not known"),
        ("s LIKE s", "a text was expected"),
        ("(SELECT 1)", "a subquery is not supported"),
        ("x IN (SELECT 1)", "a subquery is not supported"),
        ("abs(x) OVER (y)", "a window is not supported"),
        ("INTERVAL '1' DAY", "an interval is not supported"),
        ("x AS y", "a name given by AS is not supported"),
        ("s RLIKE 'a'", "RLIKE is not supported"),
        ("s LIKE 'a' ESCAPE 'b'", "ESCAPE is not supported"),
        ("TRY_CAST(s AS INT)", "TRY_CAST is not supported"),
        ("CAST(x AS INTEGR)", "(?s)no type 'INTEGR'.*Did you mean 'INTEGER'"),
        ("CAST(x AS DECIMAL(39))", "1 to 38 digits"),
        ("CAST(l AS INT)", "CAST of list<.*> to int32 is not known"),
        ("DATE '2024-02-30'", "'2024-02-30' at character 6 is no date"),
        ("DATE '20240229'", "is no date"),
        ("DATE '2024-W05-6'", "is no date"),
        ("TIMESTAMP '2024-02-29 24:00:00'", "is no timestamp"),
        ("TIMESTAMP '0001-01-01 00:00:00+23:59'", "is no timestamp of the years 0001 to 9999"),
        ("TIMESTAMP '9999-12-31 23:59:59-00:01'", "is no timestamp of the years 0001 to 9999"),
        ("x < 1e400", "1e400 is no DOUBLE"),
        ("d < 123456789012345678901234567890123456789.5", "more than 38 digits"),
        ("1 DIV 0", "cannot be computed: divide by zero"),
        ("s > 5", "> does not take string and int64"),
        ("s + 1", r"\+ does not take string and int64"),
        ("b + 1", r"\+ does not take bool and int64"),
        ("d / 3", "/ does not take decimal128"),
        ("f % 2", "% does not take double and int64"),
        ("x AND b", "AND does not take int32"),
        ("l = l", "= does not take list"),
        ("s || x", r"\|\| does not take string and int32"),
        ("day = '2024-01-01'", "= does not take date32"),
        ("CASE WHEN b THEN x ELSE s END", "CASE does not take int32 and string"),
        ("CAST(d AS DECIMAL(38, 2)) * 1.1", r"\* does not take decimal128\(38, 2\)"),
        ("(" * 60 + "x" + ")" * 60, "at most 50 deep"),
        (" OR ".join(["b"] * 201), "at most 200 operators"),
        ("x" * 10_001, "at most 10000 characters"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_not_known_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        bind(text, ROWS.schema)


def test_a_name_of_such_a_function_is_a_column_where_there_is_one() -> None:
    rows = pa.record_batch({"id": [1, 3], "rank": [2, 2], "uuid": ["a", "b"], "over": ["b", "b"]})
    assert bind("id > rank", rows.schema)(rows).to_pylist() == [False, True]
    assert bind("`over` = uuid", rows.schema)(rows).to_pylist() == [False, True]
    assert bind("uuid <> ' rank ( '", rows.schema)(rows).to_pylist() == [True, True]


def test_an_error_suggests_the_nearest_column() -> None:
    with pytest.raises(PlanError, match="Did you mean 'day'"):
        bind("dya IS NULL", ROWS.schema)


def test_only_what_is_true_passes() -> None:
    assert bind_condition("x < 3", ROWS.schema).true_rows(ROWS)["x"].to_pylist() == [-7, 0]
    assert bind_condition("NULL", ROWS.schema).true_rows(ROWS).num_rows == 0


def test_a_condition_is_true_or_false() -> None:
    with pytest.raises(PlanError, match="'x' is int32"):
        bind_condition("x", ROWS.schema)


def test_it_knows_what_it_reads() -> None:
    text = "CASE WHEN y > 1 THEN p.q ELSE abs(X) END + CAST(`odd name` AS INT)"
    assert bind(text, ROWS.schema).columns == ("x", "y", "odd name", "p")
    assert columns_of(text) == {"y", "p", "X", "odd name"}
    assert [plain_column(each) for each in ("x", "`odd name`", "(x)", "p.q", "x + 0")] == [
        *("x", "odd name", "x"),
        *(None, None),
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(pc.field("x") > 0, [T, F, N, F], id="a condition"),
        pytest.param(pc.field("y") + 1, [3, 3, 4, 1], id="a number"),
        pytest.param(pc.scalar(7), [7, 7, 7, 7], id="a constant"),
    ],
)
def test_an_expression_of_arrow_is_one_too(expression: Any, expected: list[Any]) -> None:
    bound = bind(expression, ROWS.schema)
    assert bound(ROWS).to_pylist() == expected
    assert bound(ROWS.slice(0, 0)).type == bound.type


def test_an_expression_of_arrow_with_an_unknown_column_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be computed"):
        bind(pc.field("nope") > 0, ROWS.schema)


def test_a_moment_of_another_zone_is_taken_in_utc() -> None:
    at = pa.array([datetime.datetime(2026, 6, 30, 23, 30)]).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.record_batch({"at": at.cast(pa.timestamp("us", tz="Asia/Tokyo")), "utc": at})

    def value(text: str) -> Any:
        return bind(text, rows.schema)(rows)[0].as_py()

    assert value("CAST(at AS STRING)") == "2026-06-30 23:30:00"
    assert value("CAST(at AS DATE)") == datetime.date(2026, 6, 30)
    assert value("CAST(at AS TIMESTAMP_NTZ)") == datetime.datetime(2026, 6, 30, 23, 30)
    assert value("month(at)") == 6
    assert value("at = utc AND at IN (utc) AND coalesce(NULL, at) = utc") is True
    assert str(bind("CAST(at AS TIMESTAMP)", rows.schema).type) == "timestamp[us, tz=UTC]"
    assert bind("at", rows.schema)(rows).type == rows.schema.field("at").type


DEEP = {
    "brackets": "(" * 49 + "x" + ")" * 49,
    "functions": "abs(" * 49 + "x" + ")" * 49,
    "choices": "CASE WHEN b THEN " * 49 + "x" + " END" * 49,
    "terms": " OR ".join(["b"] * 199),
}


@pytest.mark.parametrize("name", DEEP)
def test_an_expression_may_be_as_deep_as_its_bound(name: str) -> None:
    assert bind(DEEP[name], ROWS.schema)(ROWS)[0].as_py() in (True, 5)


@pytest.mark.parametrize("name", DEEP)
def test_a_caller_too_deep_for_an_expression_is_told_so(name: str) -> None:
    def called(levels: int) -> Any:
        return called(levels - 1) if levels else bind(DEEP[name], ROWS.schema)

    with pytest.raises(PlanError, match="nested too deep for the stack of its caller"):
        called(sys.getrecursionlimit() - len(inspect.stack()) - 60)


def test_a_caller_too_deep_for_the_values_of_an_expression_is_told_so() -> None:
    bound = bind(DEEP["terms"], ROWS.schema)

    def called(levels: int) -> Any:
        return called(levels - 1) if levels else bound(ROWS)

    with pytest.raises(PlanError, match="nested too deep for the stack of its caller"):
        called(sys.getrecursionlimit() - len(inspect.stack()) - 60)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_an_encoded_column_is_read_as_its_values(type_: pa.DataType) -> None:
    texts = pa.array(["a", "b"], type_)
    codes = pa.array([0, 1, None], pa.int8())
    rows = pa.record_batch({"s": pa.DictionaryArray.from_arrays(codes, texts)})
    assert bind("s = 'a'", rows.schema)(rows).to_pylist() == [True, False, None]


TREES = st.recursive(
    st.sampled_from([True, False, None]),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner) | st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_any_tree_of_logic_has_the_slow_truth(tree: Any) -> None:
    assert bind(written(tree), ROWS.schema)(ROWS.slice(0, 1)).to_pylist() == [truth(tree)]
