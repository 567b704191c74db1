"""The door of conversions agrees with Python's `decimal` and `datetime`, over every type.

CONVERSION_CASES=20000 for a longer run.
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.casts import convert, round_decimals, try_convert
from spark_upsert.core.decimals import bounds_of, rounding_type
from spark_upsert.core.threads import Rounding

CASES = int(os.environ.get("CONVERSION_CASES", "400"))

JUDGE = decimal.Context(prec=2000, Emax=10**9, Emin=-(10**9))
MANNERS = {
    Rounding.EXACT: decimal.ROUND_DOWN,
    Rounding.HALF_UP: decimal.ROUND_HALF_UP,
    Rounding.DOWN: decimal.ROUND_DOWN,
    Rounding.CEILING: decimal.ROUND_CEILING,
    Rounding.FLOOR: decimal.ROUND_FLOOR,
}
INTEGERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
DECIMALS = [pa.decimal128(p, s) for p in range(1, 39) for s in range(p + 1)]
"""Every precision and scale."""


def nearest(value: Decimal, places: int, rounding: Rounding) -> Decimal | None:
    """Return a number of so many digits behind the point; None if there is none exactly."""
    unit = Decimal((0, (1,), -places))
    found = value.quantize(unit, rounding=MANNERS[rounding], context=JUDGE)
    return None if rounding is Rounding.EXACT and found != value else found


def fitting(value: Decimal | None, type_: pa.DataType, rounding: Rounding) -> Decimal | None:
    found = None if value is None else nearest(value, type_.scale, rounding)
    # Not `abs`, which rounds to 28 digits.
    limit = Decimal((0, (1,), type_.precision - type_.scale))
    return found if found is not None and found.copy_abs() < limit else None


def whole(value: Decimal | None, type_: pa.DataType, rounding: Rounding) -> int | None:
    found = None if value is None else nearest(value, 0, rounding)
    least, most = bounds_of(type_)
    return int(found) if found is not None and least <= found <= most else None


def some_decimals(random_: random.Random, type_: pa.DataType) -> list[Decimal | None]:
    def one() -> Decimal | None:
        digits = random_.randint(1, type_.precision)
        edges = (10**digits - 1, 5 * 10 ** (digits - 1), random_.randrange(10))
        number = random_.choice((random_.randrange(10**digits), *edges))
        sign = random_.choice((0, 1))
        found = Decimal((sign, tuple(map(int, str(number))), -type_.scale))
        return found if random_.random() < 0.9 else None

    return [one() for _ in range(random_.randint(0, 8))]


def written(random_: random.Random, value: Decimal | None) -> str | None:
    """Return one of the texts of a number."""
    if value is None:
        return None
    text = random_.choice((str(value), format(value, "f"), format(value, "e")))
    if "e" not in text.lower():
        zeros = "0" * random_.choice((0, 1, 40, 400))
        tails = (zeros, "e0", "E+00") if "." in text else ("", f".{zeros}", "e-0")
        text += random_.choice(tails)
    if not text.startswith("-"):
        return random_.choice(("", "+", "0", "0" * 300)) + text
    return text


def laid_out(random_: random.Random, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values as a slice of a longer array, with numbers under its nulls."""
    given = pa.array([None, *values, None], type_)[1:-1]
    if pa.types.is_string(type_):
        forms = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
        return given.cast(random_.choice(forms))
    if given.null_count and pa.types.is_decimal(type_):
        # All bits set: of no precision, so that a look below a null would be seen.
        under = b"".join(
            given.buffers()[1].slice(16 * (given.offset + row), 16).to_pybytes()
            if given[row].is_valid
            else b"\xff" * 15 + b"\x7f"
            for row in range(len(given))
        )
        bits = given.is_valid().buffers()[1]
        return pa.Array.from_buffers(type_, len(given), [bits, pa.py_buffer(under)])
    return given


def check(given: pa.Array, type_: pa.DataType, rounding: Rounding, expected: list[Any]) -> None:
    found, bad = try_convert(given, type_, rounding)
    found.validate(full=True)
    context = (given.type, type_, rounding, given.to_pylist())
    assert found.type == type_, context
    assert found.to_pylist() == expected, context
    lost = [
        new is None and old is not None
        for new, old in zip(expected, given.to_pylist(), strict=True)
    ]
    assert bad.tolist() == lost, context


@pytest.mark.parametrize("rounding", list(Rounding))
def test_decimals_are_those_of_python(rounding: Rounding) -> None:
    random_ = random.Random(rounding.value)
    for case in range(CASES):
        own, other = DECIMALS[case % len(DECIMALS)], random_.choice(DECIMALS)
        if random_.random() < 0.5:
            own, other = other, own
        values = some_decimals(random_, own)
        expected = [fitting(value, other, rounding) for value in values]
        check(laid_out(random_, values, own), other, rounding, expected)
        texts = [written(random_, value) for value in values]
        check(laid_out(random_, texts, pa.string()), other, rounding, expected)


@pytest.mark.parametrize("rounding", list(Rounding))
def test_whole_numbers_are_those_of_python(rounding: Rounding) -> None:
    random_ = random.Random(rounding.value)
    for _ in range(CASES):
        own, integer = random_.choice(DECIMALS), random_.choice(INTEGERS)
        values = some_decimals(random_, own)
        expected = [whole(value, integer, rounding) for value in values]
        check(laid_out(random_, values, own), integer, rounding, expected)
        least, most = bounds_of(integer)
        numbers = [random_.choice((least, most, random_.randint(least, most))) for _ in range(4)]
        given = pa.array([*numbers, None], integer)
        check(given, own, rounding, [*(fitting(Decimal(n), own, rounding) for n in numbers), None])
        other = random_.choice(INTEGERS)
        kept = [whole(Decimal(n), other, rounding) for n in numbers]
        check(given, other, rounding, [*kept, None])
        texts = [f"{random_.choice(('', '+', '00')) if n >= 0 else ''}{n}" for n in numbers]
        check(laid_out(random_, [*texts, None], pa.string()), other, rounding, [*kept, None])


def test_rounding_has_room_for_one_more_digit() -> None:
    random_ = random.Random(0)
    for case in range(CASES):
        own = DECIMALS[case % len(DECIMALS)]
        places = random_.choice((random_.randint(-45, 45), random_.randint(-3, 3)))
        rounding = random_.choice([each for each in Rounding if each is not Rounding.EXACT])
        values = some_decimals(random_, own)
        type_ = rounding_type(own, places)
        expected = [
            value if value is None else nearest(value, min(places, own.scale), rounding)
            for value in values
        ]
        given = pa.chunked_array([laid_out(random_, values, own), pa.array([], own)])
        if any(fitting(e, type_, Rounding.EXACT) is None for e in expected if e is not None):
            with pytest.raises(pa.ArrowInvalid, match="digits before the point"):
                round_decimals(given, places, rounding)
        else:
            assert round_decimals(given, places, rounding).to_pylist() == expected, (
                own,
                places,
                values,
            )


def test_floats_become_their_shortest_texts() -> None:
    random_ = random.Random(0)
    for _ in range(CASES):
        numbers = [random_.choice((1.0, -1.0)) * random_.random() * 10 ** random_.randint(-9, 19)]
        numbers += [float(format(numbers[0], f".{random_.randint(1, 17)}g"))]
        type_ = random_.choice(DECIMALS)
        expected = [fitting(Decimal(repr(n)), type_, Rounding.HALF_UP) for n in numbers]
        check(pa.array(numbers), type_, Rounding.EXACT, expected)
        integer = random_.choice(INTEGERS)
        for rounding in Rounding:
            kept = [whole(Decimal(n), integer, rounding) for n in numbers]
            check(pa.array(numbers), integer, rounding, kept)


def test_decimals_become_the_nearest_floats() -> None:
    random_ = random.Random(0)
    for case in range(CASES):
        own = DECIMALS[case % len(DECIMALS)]
        values = some_decimals(random_, own)
        expected = [None if value is None else float(value) for value in values]
        check(laid_out(random_, values, own), pa.float64(), Rounding.EXACT, expected)


PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY_S = 86_400
FIRST_S = (dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()) * DAY_S
END_S = (dt.date.max.toordinal() + 1 - dt.date(1970, 1, 1).toordinal()) * DAY_S


def test_times_are_within_the_years_of_python() -> None:
    random_ = random.Random(0)
    for _ in range(CASES):
        own, other = random_.choice(list(PER_SECOND)), random_.choice(list(PER_SECOND))
        edges = [FIRST_S, END_S, 0, 2**63 // 10**9]
        ticks = [
            random_.choice(edges) * PER_SECOND[own] + random_.choice((-1, 0, 1, 999, 1000))
            for _ in range(5)
        ]
        ticks = [min(max(tick, -(2**63)), 2**63 - 1) for tick in ticks]
        zone = random_.choice((None, "UTC", "Europe/Berlin"))
        rounding = random_.choice((Rounding.EXACT, Rounding.DOWN))
        given = pa.array([*ticks, None], pa.int64()).view(pa.timestamp(own, zone))
        target = pa.timestamp(other, random_.choice((None, "UTC")))
        expected = [_tick(tick, own, other, rounding) for tick in ticks]
        found, bad = try_convert(given, target, rounding)
        assert found.type == target
        assert found.view(pa.int64()).to_pylist() == [*expected, None], (given.type, target, ticks)
        assert bad.tolist() == [*(each is None for each in expected), False]


def _tick(tick: int, own: str, other: str, rounding: Rounding) -> int | None:
    if not FIRST_S * PER_SECOND[own] <= tick < END_S * PER_SECOND[own]:
        return None
    found, rest = divmod(tick * PER_SECOND[other], PER_SECOND[own])
    if (rest and rounding is Rounding.EXACT) or not -(2**63) <= found < 2**63:
        return None
    return found


def test_texts_of_times_are_those_of_python() -> None:
    random_ = random.Random(0)
    for _ in range(CASES):
        day = random_.choice((dt.date.min, dt.date.max, dt.date(2024, 2, 29)))
        time = dt.time(random_.randrange(24), random_.randrange(60), random_.randrange(60))
        moment = dt.datetime.combine(day, time)
        offset = dt.timedelta(minutes=random_.randint(-14 * 60, 14 * 60))
        text = moment.replace(tzinfo=dt.timezone(offset)).isoformat()
        try:
            expected: list[dt.datetime | None] = [(moment - offset).replace(tzinfo=dt.UTC)]
        except OverflowError:
            expected = [None]
        type_ = pa.timestamp("us", "UTC")
        check(laid_out(random_, [text], pa.string()), type_, Rounding.EXACT, expected)
        check(pa.array([day.isoformat()]), pa.date32(), Rounding.EXACT, [day])


@pytest.mark.parametrize("outer", ["struct", "list", "map", "fixed"])
def test_nested_values_are_converted_alike(outer: str) -> None:
    random_ = random.Random(outer)
    for _ in range(max(CASES // 4, 1)):
        own, other = random_.choice(DECIMALS), random_.choice(DECIMALS)
        values = some_decimals(random_, own)
        expected = [fitting(value, other, Rounding.EXACT) for value in values]
        lost = any(v is not None and e is None for v, e in zip(values, expected, strict=True))
        kind, target, shape = _nest(outer, own, other, len(values))
        given = pa.array([None, shape(values), None], kind)[1:]
        found, bad = try_convert(given, target)
        found.validate(full=True)
        assert found.type == target
        assert bad.tolist() == [lost, False]
        if not lost:
            assert found.to_pylist() == [shape(expected), None]


def _nest(outer: str, own: pa.DataType, other: pa.DataType, count: int) -> tuple[Any, Any, Any]:
    if outer == "list":
        return pa.large_list(own), pa.list_(pa.field("element", other)), list
    if outer == "fixed":
        return pa.list_(own, count), pa.list_(pa.field("element", other)), list
    if outer == "map":
        kinds = (pa.map_(pa.string(), each) for each in (own, other))
        return *kinds, lambda values: [(str(place), v) for place, v in enumerate(values)]
    names = [str(place) for place in range(count)]
    kinds = (pa.struct([(name, each) for name in names]) for each in (own, other))
    return *kinds, lambda values: dict(zip(names, values, strict=True))


def test_a_converted_array_is_converted_as_a_whole() -> None:
    given = pa.chunked_array([["1.5"], [], [None, "2"]], pa.string())
    found = convert(given, pa.decimal128(3, 1))
    assert found.to_pylist() == [Decimal("1.5"), None, Decimal("2.0")]
    assert convert(pa.scalar("1.5"), pa.decimal128(3, 1)).as_py() == Decimal("1.5")
