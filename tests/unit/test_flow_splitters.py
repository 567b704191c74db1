"""Splitters: each row of the table of splitters, every type that rows are hashed by, markers."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.flow import Splitter, SplitterKind
from spark_upsert.flow.graph import SPELLED_BYTES, hash_codes
from spark_upsert.flow.partitioner import Marker, first_turn, iter_parts, passes, route

HASH, BROADCAST, ROUND_ROBIN = SplitterKind.HASH, SplitterKind.BROADCAST, SplitterKind.ROUND_ROBIN


def splitter(kind: SplitterKind, width: int, *attributes: str, owner: int = -1) -> Splitter:
    """Return a splitter at the output of a replica of some channel."""
    return Splitter(
        owner="Src" if owner < 0 else f"Src[{owner}]",
        region="A",
        consumer="A",
        port="input",
        kind=kind,
        width=width,
        attributes=attributes,
        start=max(owner, 0) % width,
        passes_windows=owner < 0,
        targets=tuple(f"A[{channel}]" for channel in range(width)),
    )


def channels(it: Splitter, columns: Mapping[str, Sequence[Any]]) -> list[int]:
    """Return the channel of each row."""
    routed = route(it, pa.RecordBatch.from_pydict(dict(columns)), first_turn(it))
    assert routed.rows.tolist() == list(range(len(routed.rows)))
    return routed.targets.tolist()


def of_one(values: Sequence[Any], width: int) -> list[int]:
    return channels(splitter(HASH, width, "a"), {"a": values})


PAIRS = {"a": [1, 2, 0, -1], "b": [2, 1, 0, 0]}


def of_pairs(width: int) -> list[int]:
    return channels(splitter(HASH, width, "a", "b"), PAIRS)


def in_turn(width: int, count: int, owner: int = -1) -> list[int]:
    return channels(splitter(ROUND_ROBIN, width, owner=owner), {"t": list(range(count))})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(in_turn(3, 7), "0 1 2 0 1 2 0", id="1 in turn"),
        pytest.param(in_turn(2, 3, owner=3), "1 0 1", id="3 in turn, the owner is channel 3"),
        pytest.param(of_one([0, 1, 5, 7, -1, -7], 4), "0 1 1 3 3 1", id="4 an integer"),
        pytest.param(of_one([-1, -7], 3), "0 0", id="5 integers below zero, modulo 3"),
        pytest.param(of_pairs(3), "2 2 2 1", id="6 two integers, modulo 3"),
        pytest.param(of_pairs(4), "0 0 1 0", id="7 two integers, modulo 4"),
        pytest.param(
            of_one(["a", "b", "ab", "ba", "alice", "bob"], 2), "1 0 0 1 1 0", id="8 texts"
        ),
        pytest.param(of_one([""], 7), "0", id="10 the empty text"),
        pytest.param(of_one(["é"], 3), "0", id="11 bytes are signed"),
        pytest.param(in_turn(1, 3), "0 0 0", id="16 width 1"),
        pytest.param(of_one(["a", "b", "c"], 1), "0 0 0", id="16 width 1 by hash"),
    ],
)
def test_rows_go_to_the_channels(found: list[int], expected: str) -> None:
    assert " ".join(map(str, found)) == expected


@pytest.mark.parametrize(
    ("columns", "codes"),
    [
        pytest.param([[1, 2, 0, -1], [2, 1, 0, 0]], [23312, 23348, 23273, 23236], id="6 pairs"),
        pytest.param(
            [["a", "b", "ab", "ba", "alice", "bob", ""]],
            [97, 98, 12514, 12641, 26266464741, 1619938, 0],
            id="8 texts",
        ),
        pytest.param([["é"]], [18446744073709543848], id="11 bytes are signed"),
        pytest.param([[True, False, None]], [1, 0, 0], id="booleans"),
        pytest.param([[-1, None, 2**62]], [2**64 - 1, 0, 2**62], id="integers"),
        pytest.param([["a", None], [None, 3]], [23273 + 37 * 97, 23273 + 3], id="NULL is 0"),
    ],
)
def test_the_code_of_a_value_is(columns: list[list[Any]], codes: list[int]) -> None:
    assert hash_codes([pa.array(column) for column in columns]).tolist() == codes


def test_12_a_broadcast_gives_each_row_to_each_channel() -> None:
    it = splitter(BROADCAST, 3)
    batch = pa.RecordBatch.from_pydict({"t": [1, 2]})
    parts = list(iter_parts(batch, route(it, batch, first_turn(it))))
    rows = [(target, part["t"].to_pylist()) for target, part in parts]
    assert rows == [(0, [1, 2]), (1, [1, 2]), (2, [1, 2])]


@pytest.mark.parametrize("kind", SplitterKind, ids=lambda kind: kind.value)
@pytest.mark.parametrize(
    ("marker", "owner", "goes_on"),
    [
        pytest.param(Marker.WINDOW, -1, True, id="13 a window, owner outside"),
        pytest.param(Marker.WINDOW, 0, False, id="14 a window, owner in a region"),
        pytest.param(Marker.FINAL, -1, True, id="15 the end, owner outside"),
        pytest.param(Marker.FINAL, 1, True, id="15 the end, owner in a region"),
        pytest.param(Marker.BARRIER, 1, True, id="a barrier, owner in a region"),
    ],
)
def test_a_marker_goes_to_all_channels_or_to_none(
    kind: SplitterKind, marker: Marker, owner: int, goes_on: bool
) -> None:
    assert passes(splitter(kind, 3, owner=owner), marker) is goes_on


def test_a_turn_goes_on_from_batch_to_batch() -> None:
    it = splitter(ROUND_ROBIN, 3, owner=1)
    turn, found = first_turn(it), []
    for count in (2, 0, 5):
        routed = route(it, pa.RecordBatch.from_pydict({"t": [0] * count}), turn)
        turn = routed.turn
        found += routed.targets.tolist()
    assert found == [1, 2, 0, 1, 2, 0, 1]


def test_parts_keep_the_order_of_the_rows_and_a_whole_batch_is_not_copied() -> None:
    it = splitter(HASH, 2, "k")
    batch = pa.RecordBatch.from_pydict({"k": [1, 0, 3, 2], "n": [0, 1, 2, 3]})
    parts = iter_parts(batch, route(it, batch, first_turn(it)))
    assert [(target, part["n"].to_pylist()) for target, part in parts] == [(0, [1, 3]), (1, [0, 2])]
    whole = pa.RecordBatch.from_pydict({"k": [2, 4]})
    [(_, part)] = iter_parts(whole, route(it, whole, first_turn(it)))
    assert part is whole
    assert list(iter_parts(batch[:0], route(it, batch[:0], first_turn(it)))) == []


# -- chained


def chained(outer: SplitterKind, inner: SplitterKind, *attributes: str) -> Splitter:
    """Return a splitter of 2 channels, each with one of 3 behind it."""
    whole = splitter(outer, 2, *(attributes if outer is HASH else ()))
    behind = splitter(inner, 3, *(attributes if inner is HASH else ()))
    targets = ([f"R.S.A[{3 * channel + local}]" for local in range(3)] for channel in range(2))
    return replace(whole, targets=tuple(replace(behind, targets=tuple(each)) for each in targets))


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        pytest.param(chained(ROUND_ROBIN, ROUND_ROBIN), "0 3 1 4 2 5 0 3", id="in turn twice"),
        pytest.param(chained(HASH, ROUND_ROBIN, "k"), "0 3 1 4 2 5 0 3", id="by hash, in turn"),
        pytest.param(chained(ROUND_ROBIN, HASH, "k"), "0 4 2 3 1 5 0 4", id="in turn, by hash"),
        # Both take the same code, so that with widths of a common divisor channels stay empty.
        pytest.param(chained(HASH, HASH, "k"), "0 4 2 3 1 5 0 4", id="by hash twice"),
    ],
)
def test_the_outer_splitter_chooses_before_the_inner_one(it: Splitter, expected: str) -> None:
    batch = pa.RecordBatch.from_pydict({"k": list(range(8))})
    routed = route(it, batch, first_turn(it))
    by_row = routed.targets[np.argsort(routed.rows, kind="stable")]
    assert " ".join(map(str, by_row.tolist())) == expected


def test_each_inner_splitter_has_a_turn_of_its_own() -> None:
    it = chained(HASH, ROUND_ROBIN, "k")
    turn, found = first_turn(it), []
    for keys in ([0, 0], [1], [0, 1]):
        routed = route(it, pa.RecordBatch.from_pydict({"k": keys}), turn)
        turn = routed.turn
        found.append(routed.targets.tolist())
    assert found == [[0, 1], [3], [2, 4]]
    assert turn == (0, 0, 2)


def test_a_broadcast_behind_a_hash_stays_in_its_channel() -> None:
    it = chained(HASH, BROADCAST, "k")
    batch = pa.RecordBatch.from_pydict({"k": [1, 0]})
    parts = iter_parts(batch, route(it, batch, first_turn(it)))
    keys = [(target, part["k"].to_pylist()) for target, part in parts]
    assert keys == [(0, [0]), (1, [0]), (2, [0]), (3, [1]), (4, [1]), (5, [1])]


# -- types

MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9)
TIME = dt.time(7, 8, 9)
DAY = dt.date(2024, 5, 6)
SPAN = dt.timedelta(seconds=5)

ALIKE: dict[str, list[pa.Array]] = {
    "integers of any width": [
        pa.array([-5, 7, None], type_) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    ],
    "unsigned integers": [
        pa.array([5, 7, None], type_) for type_ in (pa.uint8(), pa.uint32(), pa.uint64(), pa.int8())
    ],
    "texts and bytes": [
        pa.array([b"ab", b"", None, b"\x00\x01"], type_)
        for type_ in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
    ],
    "floats": [pa.array([1.5, math.nan, None], type_) for type_ in (pa.float32(), pa.float64())],
    "dates": [pa.array([DAY, None], type_) for type_ in (pa.date32(), pa.date64())],
    "moments of any unit": [
        pa.array([MOMENT, None], pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC")
    ],
    "times of day": [
        pa.array([TIME, None], type_)
        for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    ],
    "spans of time": [
        pa.array([SPAN, None], pa.duration(unit)) for unit in ("s", "ms", "us", "ns")
    ],
    "zeros": [pa.array([0.0]), pa.array([-0.0])],
}


@pytest.mark.parametrize("arrays", ALIKE.values(), ids=ALIKE)
def test_equal_values_have_equal_codes(arrays: list[pa.Array]) -> None:
    codes = {tuple(hash_codes([array]).tolist()) for array in arrays}
    assert len(codes) == 1


DISTINCT: dict[str, pa.Array] = {
    "whole seconds": pa.array([MOMENT + dt.timedelta(seconds=n) for n in range(64)]),
    "days": pa.array([DAY + dt.timedelta(days=7 * n) for n in range(64)]),
    "decimals": pa.array([Decimal(100 * n) for n in range(64)], pa.decimal128(20, 2)),
    "large decimals": pa.array([Decimal(n << 64) for n in range(64)], pa.decimal128(38, 0)),
    "floats": pa.array([float(n) for n in range(64)]),
    "texts": pa.array([f"customer-{n}" for n in range(64)]),
    "long texts": pa.array(["x" * SPELLED_BYTES + str(n) for n in range(64)]),
}


@pytest.mark.parametrize("values", DISTINCT.values(), ids=DISTINCT)
def test_values_that_follow_on_each_other_are_spread(values: pa.Array) -> None:
    found = np.bincount((hash_codes([values]) % np.uint64(8)).astype(np.int64), minlength=8)
    assert found.min() > 0


def slow_code(text: bytes) -> int:
    """The rule for texts, byte by byte."""
    value = 0
    for byte in text:
        turned = ((value << 7) | (value >> 57)) & (2**64 - 1)
        value = (turned + (byte - 256 if byte > 127 else byte)) & (2**64 - 1)
    return value


@pytest.mark.parametrize("begin", [0, 3], ids=["whole", "a slice"])
def test_texts_of_any_length_are_spelled(begin: int) -> None:
    texts = [bytes((7 * n + 31 * i) % 256 for i in range(n)) for n in range(40)]
    texts += [b"y" * SPELLED_BYTES, b"", b"\xff" * SPELLED_BYTES]
    array = pa.array([*texts, None])[begin:]
    assert hash_codes([array]).tolist() == [*map(slow_code, texts[begin:]), 0]


def test_a_text_beyond_the_limit_has_another_code_than_its_begin() -> None:
    at_limit, beyond = "y" * SPELLED_BYTES, "y" * (SPELLED_BYTES + 1)
    codes = hash_codes([pa.array([at_limit, beyond, beyond])]).tolist()
    assert codes[0] == slow_code(at_limit.encode())
    assert codes[1] == codes[2] != codes[0]


def test_a_text_has_one_code_whatever_lies_around_it() -> None:
    texts = pa.array([str(n) * (n % 5) for n in range(40_000)])
    codes = hash_codes([texts])
    rows = [0, 16_383, 16_384, 39_999]
    assert codes[rows].tolist() == [slow_code(texts[row].as_py().encode()) for row in rows]
