"""A Python value finds the rows whose key equals it, or is refused, in whatever form it is given.

Random values (numbers, texts, times, odd objects) are given as scalars, lists, mappings, numpy,
pandas, Polars and Arrow to `get`, `delete`, `rows_having`, `having_prefix` and `append`. The judge
compares values in Python. ``PYTHON_VALUES=10000`` for a longer run.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataError, SchemaError
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

CASES = int(os.environ.get("PYTHON_VALUES", "195"))

BERLIN, EAST = ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(hours=2))

INSTANTS = [
    dt.datetime(1970, 1, 1),
    dt.datetime(2026, 3, 29, 1, 30),
    dt.datetime(2026, 1, 31, 12, 0, 0, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]

STORED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [-(2**63), -1, 0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1]),
    "tinyint": (pa.int8(), [-128, -1, 0, 1, 2, 127]),
    "int": (pa.int32(), [-(2**31), -2, 0, 1, 7, 2**31 - 1]),
    "decimal": (pa.decimal128(10, 2), [*map(Decimal, ("-0.50", "0.00", "1.00", "2.50", "19.99"))]),
    "wide": (pa.decimal128(38, 18), [Decimal("0.1"), Decimal(1), Decimal(2**64), Decimal("1e-18")]),
    "double": (pa.float64(), [0.0, 0.1, 1.0, 2.5, 1e300, float(2**53), float("nan"), -np.inf]),
    "float": (pa.float32(), [0.0, float(np.float32(0.1)), 1.0, 2.5, 16777216.0, float("nan")]),
    "binary": (pa.binary(), [b"", b"1", b"Ada", b"\xff"]),
    "boolean": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "0", "1", "1.5", "true", "Ada", "1970-01-01", "\u00e9"]),
    "date": (pa.date32(), [each.date() for each in INSTANTS]),
    "timestamp": (pa.timestamp("us", "UTC"), [each.replace(tzinfo=dt.UTC) for each in INSTANTS]),
    "timestamp_ntz": (pa.timestamp("us"), INSTANTS),
}

# -- the judge -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """A value by its kind; values of one kind are equal if they share a form.

    The forms of a float are its exact value and its shortest text.
    """

    kind: str
    forms: frozenset[Any]


def number(*forms: Any) -> Meaning:
    return Meaning("number", frozenset(forms))


def meaning_of(value: Any) -> Meaning | None:
    """Return the meaning of a value; None for a missing value."""
    match value:
        case None:
            return None
        case _ if value is pd.NA or value is pd.NaT:
            return None
        case pa.Scalar():
            return meaning_of(value.as_py())
        case bool() | np.bool_():
            return Meaning("truth", frozenset([bool(value)]))
        case float() | np.floating():
            if not np.isfinite(value):
                return number(str(float(value)))
            return number(Fraction(float(value)), Fraction(str(value)))
        case Decimal():
            return number(Fraction(value)) if value.is_finite() else number(str(value))
        case np.timedelta64():
            return Meaning("other", frozenset())
        case np.integer():
            return number(Fraction(int(value)))
        case int() | Fraction():
            return number(Fraction(value))
        case str():
            return Meaning("text", frozenset([str(value)]))
        case bytes() | bytearray() | memoryview():
            return Meaning("bytes", frozenset([bytes(memoryview(value))]))
        case pd.Timestamp():
            moment = value.tz_convert("UTC").tz_localize(None) if value.tzinfo else value
            return Meaning("time", frozenset([moment.as_unit("ns").value]))
        case dt.datetime():
            naive = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
            return Meaning("time", frozenset([nanoseconds(naive)]))
        case dt.date():
            return Meaning("time", frozenset([nanoseconds(dt.datetime(*value.timetuple()[:3]))]))
        case np.datetime64():
            return Meaning("time", frozenset([int(value.astype("datetime64[ns]").astype(int))]))
    return Meaning("other", frozenset())


def nanoseconds(naive: dt.datetime) -> int:
    return (naive - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) * 1000


def may_equal(value: Any, stored: Any, type_: pa.DataType) -> bool:
    """Return whether a look-up of a value may find a stored value."""
    one, other = meaning_of(value), meaning_of(stored)
    if pa.types.is_float32(type_) and not np.isnan(stored):
        other = meaning_of(np.float32(stored))
    if one is None or other is None:
        return False
    if pa.types.is_date(type_) and isinstance(value, dt.datetime) and value.tzinfo is not None:
        midnight = value.replace(hour=0, minute=0, second=0, microsecond=0)
        return bool(value == midnight and value.date() == stored)
    match one.kind, other.kind:
        case "number", "truth":
            return Fraction(stored) in one.forms
        case "number", "text":
            return isinstance(value, int | np.integer) and str(value) == stored
        case "bytes", "text":
            return bytes(value) == stored.encode()
        case "text", "bytes":
            return value.encode() == stored
        case (("text" | "bytes"), _) if one.kind != other.kind:
            return True  # As the same text in Arrow, which `test_conversions` judges.
    return one.kind == other.kind and bool(one.forms & other.forms)


def must_equal(value: Any, stored: Any) -> bool:
    """Return whether a look-up that takes a value must find a stored value."""
    one, other = meaning_of(value), meaning_of(stored)
    is_zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
    return one is not None and one == other and not (is_zoned and type(stored) is dt.date)


# -- random values ---------------------------------------------------------------------------

ODD: list[Any] = [
    *(
        None,
        pd.NA,
        pd.NaT,
        np.datetime64("NaT"),
        float("nan"),
        float("inf"),
        1j,
        object(),
        Ellipsis,
    ),
    *(10**30, 10**400, -(10**30), 2**63, 2**64, Decimal("NaN"), Decimal("1e999999"), Decimal("-0")),
    *("", " 1", "\ud800", "0x1", b"\xff", uuid.UUID(int=5), dt.timedelta(1), dt.time(1)),
    *(
        dt.time(1, tzinfo=dt.UTC),
        np.timedelta64(1, "s"),
        np.datetime64("2026-01"),
        range,
        [],
        (),
        {},
    ),
    *(pa.scalar(1), pa.scalar("Ada"), np.void(b"1"), np.float16(0.1), np.longdouble(1)),
]


def random_value(chance: random.Random, stored: list[Any]) -> Any:
    """Return a value that is, or is near, a stored value; sometimes of any other kind."""
    if chance.random() < 0.12:
        return chance.choice(ODD)
    if chance.random() < 0.12:
        stored = chance.choice([values for _, values in STORED.values()])
    value = chance.choice(stored)
    near = list(_near(chance, value))
    return chance.choice(near) if near else value


def _near(chance: random.Random, value: Any) -> Iterator[Any]:
    yield from (value, value, str(value))
    match value:
        case bool():
            yield from (int(value), float(value), np.bool_(value), 2, Decimal(value), "TRUE")
        case int() | float() | Decimal() if Decimal(value).is_finite():
            exact = Fraction(value)
            offset = chance.choice(
                (Fraction(1, 2), Fraction(1, 10**9), Fraction(-1, 2), Fraction(1))
            )
            for each in (exact, exact + offset):
                yield from (
                    each,
                    float(each),
                    Decimal(str(float(each))),
                    np.float64(each),
                    f"{each}",
                )
                yield Decimal(each.numerator) / Decimal(each.denominator)
                if abs(each) < 1e30:
                    yield np.float32(each)
                if each.denominator == 1:
                    yield from (int(each), Decimal(int(each)), bool(each))
                    yield from (
                        t(int(each)) for t in (np.int8, np.int64, np.uint64) if _has(t, each)
                    )
        case str():
            yield from (value.encode(), np.str_(value), value.upper(), f"{value} ")
            if value.isdigit():
                yield from (int(value), float(value), Decimal(value))
        case bytes():
            yield from (bytearray(value), memoryview(value), value + b"1")
        case dt.date():
            yield from _near_times(chance, value)


def _has(type_: type[np.integer[Any]], number: Fraction) -> bool:
    return int(np.iinfo(type_).min) <= number <= int(np.iinfo(type_).max)


def _near_times(chance: random.Random, value: dt.date) -> Iterator[Any]:
    moment = value if isinstance(value, dt.datetime) else dt.datetime(*value.timetuple()[:3])
    naive = moment.replace(tzinfo=None)
    yield from (naive, naive.date(), naive.isoformat(), naive.replace(tzinfo=dt.UTC))
    yield from (naive.replace(microsecond=7), naive.replace(hour=12), naive.date().toordinal())
    if naive.year < 9000:
        yield from (naive.replace(tzinfo=zone) for zone in (BERLIN, EAST))
        yield naive.replace(tzinfo=dt.UTC).astimezone(chance.choice((BERLIN, EAST)))
    if naive.year < 2200:
        yield from (pd.Timestamp(naive), pd.Timestamp(naive, tz="Europe/Berlin"))
        yield pd.Timestamp(naive) + pd.Timedelta(1, "ns")
        yield from (np.datetime64(naive, unit) for unit in ("us", "ns", "ms", "s", "D"))
        yield np.datetime64(naive, "ns") + np.timedelta64(1, "ns")


# -- the forms in which a value is given -----------------------------------------------------

Form = Callable[[Any], Any]

SEVERAL: dict[str, Form] = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "set": lambda value: {value},
    "iterator": lambda value: iter([value]),
    "array": lambda value: np.array([value]),
    "array of objects": lambda value: np.array([value, None], object)[:1],
    "series": lambda value: pd.Series([value]),
    "series of objects": lambda value: pd.Series([value], dtype=object),
    "Polars series": lambda value: pl.Series([value]),
    "Arrow": lambda value: pa.array([value]),
    "chunks": lambda value: pa.chunked_array([pa.array([value])]),
    "dictionary": lambda value: pa.array([value]).dictionary_encode(),
    "list of scalars of Arrow": lambda value: [pa.scalar(value)],
}
KEYS: dict[str, Form] = {
    "scalar": lambda value: value,
    "mapping": lambda value: {"id": value},
    "mappings": lambda value: [{"id": value}],
    "rows": lambda value: [(value,)],
    "table": lambda value: pa.table({"id": pa.array([value])}),
    "frame": lambda value: pd.DataFrame({"id": [value]}),
    "Polars frame": lambda value: pl.DataFrame({"id": [value]}),
}
ARROW = (pa.Array, pa.ChunkedArray)
COLUMNS = (list, np.ndarray, pd.Series, pl.Series, *ARROW)
MERGED = (list, tuple, set, dict, np.ndarray, pd.DataFrame, pd.Series, pl.DataFrame, pl.Series)
"""Forms within which a value of the same kind is no scalar any more."""

REFUSED = "refused"


def found(call: Callable[[], pa.Table]) -> Any:
    """Return the numbers of the rows that a call returns, or `REFUSED`."""
    try:
        return sorted(call().column("n").to_pylist())
    except (SchemaError, DataError):
        return REFUSED


class Subject:
    """A table keyed by a column of one type, with the same values in a second column."""

    def __init__(self, name: str) -> None:
        self.type, self.values = STORED[name]
        numbers = pa.array(range(len(self.values)), pa.int64())
        keys = pa.array(self.values, self.type)
        self.rows = pa.table({"id": keys, "n": numbers, "v": keys})
        self.table = self._table(["id"], {})
        self.indexed = self._table(["id"], {"indexBy": "v"})
        self.prefixed = self._table(["id", "n"], {}, hash_prefix=1)

    def _table(self, keys: list[str], properties: dict[str, str], **more: Any) -> Table:
        table = Table(MemoryStore())
        table.ensure(TableSchema.of(self.rows.schema, keys=keys, **more), properties)
        table.upsert(self.rows)
        return table

    def where(self, equal: Callable[[Any], bool]) -> set[int]:
        return {n for n, stored in enumerate(self.values) if equal(stored)}

    def delete(self, given: Callable[[], Any]) -> Any:
        """Delete, and put the deleted rows back; return their numbers, or `REFUSED`."""
        try:
            self.table.delete(given())
        except SchemaError:
            assert self.table.snapshot(columns=["n"]).num_rows == len(self.values)
            return REFUSED
        left = set(self.table.snapshot(columns=["n"]).column("n").to_pylist())
        gone = sorted(set(range(len(self.values))) - left)
        if gone:
            self.table.upsert(self.rows.take(gone))
        return gone


def kept(form: Form, value: Any) -> Any:
    """Return the value that a form has; `REFUSED` if its library refuses or changes the value."""
    try:
        made = form(value)
        if hasattr(made, "columns") or isinstance(made, pa.Table):
            made = pa.table(made).column("id")
        held = next(iter(made)) if isinstance(made, COLUMNS) else value
        held = held.as_py() if isinstance(held, pa.Scalar) else held
        if isinstance(made, pd.Series) and made.dtype != object and pd.isna(held):
            return None  # Pandas has no other missing value in a column of numbers.
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - of other libraries
        return REFUSED
    return held if meaning_of(held) in (None, meaning_of(value)) else REFUSED


def check(subject: Subject, chance: random.Random) -> None:
    value = random_value(chance, subject.values)
    name, form = chance.choice([*SEVERAL.items(), *KEYS.items()])
    held = kept(form, value)
    is_none = name == "scalar" and value is None  # No keys are given.
    if held is REFUSED or isinstance(value, MERGED) or is_none:
        return
    context = f"{value!r} ({type(value).__name__}) as {name} in {subject.type}"
    result = found(lambda: subject.table.get(form(value)))
    if result != REFUSED:
        may = subject.where(lambda stored: may_equal(held, stored, subject.type))
        must = subject.where(lambda stored: must_equal(held, stored))
        assert must <= set(result) <= may, f"{context}: {result}, expected {must} to {may}"
    assert subject.delete(lambda: form(value)) == result, context
    if name in SEVERAL:
        assert found(lambda: subject.indexed.rows_having("v", form(value))) == result, context
        mapping: Callable[[], Any] = lambda: {"id": form(value)}  # noqa: E731
        assert found(lambda: subject.table.get(mapping())) == result, context
        assert found(lambda: subject.prefixed.having_prefix(mapping())) == result, context
    check_neighbours(subject, chance, value, context)
    check_append(subject, value, context)


def check_neighbours(subject: Subject, chance: random.Random, value: Any, context: str) -> None:
    """A value in a list means what it means alone."""
    other = random_value(chance, subject.values)
    if isinstance(value, MERGED) or isinstance(other, MERGED):
        return

    def having(*values: Any) -> Any:
        return found(lambda: subject.indexed.rows_having("v", values))

    alone, together = [having(value), having(other)], having(value, other)
    expected = REFUSED if REFUSED in alone else sorted({*alone[0], *alone[1]})
    assert together == expected, f"{context}, with {other!r}"


def check_append(subject: Subject, value: Any, context: str) -> None:
    """A row that was written is found by its value, unless a look-up of the value is refused."""
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        return  # `pyarrow.array` drops the nanoseconds of values of pandas before they are written.
    try:
        rows = pa.table({"id": pa.array([value]), "n": [99], "v": pa.array([value])})
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return
    table = Table(MemoryStore())
    table.ensure(subject.table.schema)
    try:
        table.upsert(rows)
    except (SchemaError, DataError):
        assert not table.snapshot().num_rows
        return
    result = found(lambda: table.get([value]))
    assert result in ([99], REFUSED), f"{context}: written, and found {result}"


@pytest.mark.sweep(4)
@pytest.mark.parametrize("type_", STORED)
def test_a_value_finds_what_equals_it_in_any_form(type_: str) -> None:
    subject, chance = Subject(type_), random.Random(type_)
    for _ in range(CASES // len(STORED)):
        check(subject, chance)
    assert subject.table.check().findings == ()
