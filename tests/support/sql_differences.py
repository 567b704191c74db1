"""Where an expression means other than in Spark, on purpose: what docs/tasks.md lists.

Each difference is a function that writes in Spark's words what ours mean, and an example of it. So
random expressions are compared in all else, and the list is complete: another difference fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.sql_cases import ExpressionCase

NO_VALUE = "an error"
"""Of a row: an error of its data."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One of the list.

    Parameters
    ----------
    what : str
        What is so here.
    text : str
        An expression of which it is seen.
    here, spark : str
        What it is with us, and in Spark.
    instead : str
        What says the same to Spark as the text to us.
    """

    what: str
    text: str
    here: str
    spark: str
    instead: str


DIFFERENCES = (
    Difference(
        "Whole numbers are computed as BIGINT, whatever the columns have",
        "CAST(2147483647 AS INT) + CAST(1 AS INT)",
        "2147483648",
        NO_VALUE,
        "CAST(CAST(2147483647 AS INT) AS BIGINT) + CAST(1 AS BIGINT)",
    ),
    Difference(
        "`sign` of a whole number or a decimal is a BIGINT",
        "sign(-2.5)",
        "-1",
        "-1.0",
        "CAST(sign(-2.5) AS BIGINT)",
    ),
    Difference(
        "`-x` and `abs(x)` of a DECIMAL keep all digits, not 34",
        "-CAST('12345678901234567890123456789012345678' AS DECIMAL(38, 0))",
        "-12345678901234567890123456789012345678",
        "-12345678901234567890123456789012350000",
        "CAST('-12345678901234567890123456789012345678' AS DECIMAL(38, 0))",
    ),
    Difference(
        "A DECIMAL is cast to TINYINT, SMALLINT or INT exactly, not by a DOUBLE",
        "CAST(0.9999999999999999999 AS INT)",
        "0",
        "1",
        "CAST(substring_index(CAST(0.9999999999999999999 AS STRING), '.', 1) AS INT)",
    ),
    Difference(
        "A FLOAT or DOUBLE becomes a STRING or DECIMAL by the fewest digits that tell it apart; "
        "Java writes some with one more, before its version 19 more of them",
        "CAST(5e-324 AS STRING)",
        "5.0E-324",
        "4.9E-324",
        "'5.0E-324'",
    ),
    Difference(
        "NaN has no `ceil` and no `floor`",
        "ceil(CAST('NaN' AS DOUBLE))",
        NO_VALUE,
        "0",
        "CAST(CAST('NaN' AS DOUBLE) AS BIGINT)",
    ),
    Difference(
        "NaN and the infinities are no DECIMAL",
        "CAST(CAST('NaN' AS DOUBLE) AS DECIMAL(5, 1))",
        NO_VALUE,
        "NULL",
        "CAST('NaN' AS DECIMAL(5, 1))",
    ),
    Difference(
        "A text that is a number has no suffix and no hexadecimal digits",
        "CAST('1d' AS DOUBLE)",
        NO_VALUE,
        "1.0",
        "CAST('1 d' AS DOUBLE)",
    ),
    Difference(
        "A text beyond the range of a DOUBLE or FLOAT is not infinite",
        "CAST('1e400' AS DOUBLE)",
        NO_VALUE,
        "inf",
        "CAST('' AS DOUBLE)",
    ),
    Difference(
        "A text that is a DECIMAL has the digits of ASCII",
        "CAST('\u0661' AS DECIMAL(5, 0))",
        NO_VALUE,
        "1",
        "CAST('' AS DECIMAL(5, 0))",
    ),
    Difference(
        "A text that is a TIMESTAMP begins with a year of four digits",
        "CAST('+2026-01-31' AS TIMESTAMP)",
        NO_VALUE,
        "2026-01-31 00:00:00",
        "CAST('' AS TIMESTAMP)",
    ),
    Difference(
        "A text names a zone by its distance only, or `Z`",
        "CAST('2026-01-31 12:00:00 Europe/Berlin' AS TIMESTAMP)",
        NO_VALUE,
        "2026-01-31 11:00:00",
        "CAST('' AS TIMESTAMP)",
    ),
    Difference(
        "Dates and times are those of the years 0001 to 9999",
        "CAST('0000-01-31' AS DATE) < DATE '2026-01-31'",
        NO_VALUE,
        "True",
        "CAST('' AS DATE) < DATE '2026-01-31'",
    ),
    Difference(
        "A backslash in a text is one",
        "length('a\\tb')",
        "4",
        "3",
        "length('a\\\\tb')",
    ),
)


def table_of_differences() -> str:
    """Return the table for docs/tasks.md."""
    rows = [
        "| here | example | here it is | in Spark |",
        "|---|---|---|---|",
        *(f"| {d.what} | `{d.text}` | {d.here} | {d.spark} |" for d in DIFFERENCES),
    ]
    return "\n".join(rows) + "\n"


def as_bigint(number: ExpressionCase) -> ExpressionCase:
    """Return an operand of arithmetic: whole numbers are computed in 64 bits."""
    is_wide = number.spark.endswith("L)") or number.spark == "NULL"
    if number.kind != "whole" or is_wide:
        return number
    return replace(number, spark=f"CAST({number.spark} AS BIGINT)")


def in_few_digits(number: ExpressionCase) -> ExpressionCase:
    """Return a float of which any Java knows the fewest digits."""
    text, spark = (
        f"CASE WHEN abs({each}) < 1000 THEN round({each}, 2) END"
        for each in (number.text, number.spark)
    )
    return replace(number, text=text, spark=spark)


FEWEST_DIGITS = "/* fewest digits */"
"""In what Spark reads: it counts as equal what differs in the 17th digit."""


def in_34_digits(number: ExpressionCase) -> ExpressionCase:
    """Return an operand of a negation: Spark rounds decimals of more digits there."""
    return cast_to(number, "decimal", "DECIMAL(34, 12)") if number.kind == "decimal" else number


def to_whole(name: str, number: ExpressionCase) -> ExpressionCase:
    """Return ceil, floor or sign of a number."""
    text, spark = f"{name}({number.text})", f"{name}({number.spark})"
    if name == "sign":
        return replace(number, text=text, spark=f"CAST({spark} AS BIGINT)", kind="whole")
    if number.kind in ("double", "float"):
        spark = _unless(f"isnan({number.spark})", spark, "BIGINT")
        return replace(number, text=text, spark=spark, kind="whole")
    return replace(number, text=text, spark=spark)


def cast_to(of: ExpressionCase, kind: str, target: str) -> ExpressionCase:
    """Return a cast."""
    # By its text: Spark's own way is by a DOUBLE, and fails for a small number of a large scale.
    if of.kind in ("double", "float") and kind == "text":
        of = in_few_digits(of)
    is_cut = (of.kind, kind) == ("decimal", "whole")
    between = f"substring_index(CAST({of.spark} AS STRING), '.', 1)" if is_cut else of.spark
    spark = f"CAST({between} AS {target})"
    if of.kind in ("double", "float") and kind == "decimal":
        spark += FEWEST_DIGITS
    bad = _BAD.get((of.kind, kind))
    if bad is not None:
        spark = _unless(bad(of.spark, target), spark, target)
    return replace(of, text=f"CAST({of.text} AS {target})", spark=spark, kind=kind)


def _unless(bad: str, spark: str, target: str) -> str:
    return f"CASE WHEN {bad} THEN CAST(raise_error('no value') AS {target}) ELSE {spark} END"


_BLANK = r"[\\x00-\\x20]*"
_DIGITS = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"
_FLOAT = rf"^{_BLANK}((?i)[+-]?(inf|infinity)|nan|{_DIGITS}){_BLANK}$"
_DAY = r"(?!0000)[0-9]{4}(-[0-9]{1,2}(-[0-9]{1,2}"
_DATE = rf"^{_BLANK}{_DAY}([T ].*)?)?)?{_BLANK}$"
_MOMENT = (
    rf"^{_BLANK}{_DAY}([T ][0-9]{{1,2}}(:[0-9]{{1,2}}(:[0-9]{{1,2}}([.][0-9]*)?)?)?"
    rf" ?(Z|[+-][0-9]{{1,2}}(:[0-9]{{1,2}})?)?)?)?)?{_BLANK}$"
)


def _not_of_form(form: str) -> Callable[[str, str], str]:
    return lambda spark, target: f"NOT {spark} RLIKE '{form}'"


def _no_float(spark: str, target: str) -> str:
    """Return whether a text has another form, or is infinite without a word for it."""
    is_infinite = f"abs(CAST({spark} AS {target})) = CAST('inf' AS {target})"
    return f"{_not_of_form(_FLOAT)(spark, target)} OR {spark} RLIKE '[0-9]' AND {is_infinite}"


def _not_finite(spark: str, target: str) -> str:
    return f"isnan({spark}) OR abs({spark}) = CAST('inf' AS DOUBLE)"


def _beyond_years(spark: str, target: str) -> str:
    return f"NOT {spark} BETWEEN -62135596800 AND 253402300799"


_BAD: dict[tuple[str, str], Callable[[str, str], str]] = {
    ("text", "double"): _no_float,
    ("text", "float"): _no_float,
    ("text", "decimal"): _not_of_form(rf"^{_BLANK}{_DIGITS}{_BLANK}$"),
    ("text", "date"): _not_of_form(_DATE),
    ("text", "moment"): _not_of_form(_MOMENT),
    ("text", "ntz"): _not_of_form(_MOMENT),
    ("double", "decimal"): _not_finite,
    ("float", "decimal"): _not_finite,
    ("whole", "moment"): _beyond_years,
}
"""By the kinds of a cast: for which values there is none with us."""
