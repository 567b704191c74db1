"""Deletion vectors, byte for byte, and against a decoder that goes value by value."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.delta import deletion_vectors
from spark_upsert.delta.actions import token_number
from spark_upsert.delta.deletion_vectors import (
    Vector,
    decode_z85,
    encode_file,
    encode_z85,
    read_from_file,
)
from tests.support.delta import _values

FIRST = "d1d339640100000000000000000000003a3000000100000000000000100000000000"
SECOND = "d1d339640100000000000000000000003a3000000100000000000500100000000300040007000b0012001d00"

GOLDEN = [
    (10, [0], FIRST, "f7a6b4b5"),
    (30, [3, 4, 7, 11, 18, 29], SECOND, "acd74a79"),
    (
        70_000,
        [1, 65_535, 65_536, 69_999],
        (
            "d1d339640100000000000000000000003a300000020000000000010001000100180000001c"
            "0000000100ffff00006f11"
        ),
        "a4d802c8",
    ),
    (
        1_000,
        range(100, 900),
        "d1d339640100000000000000000000003b3000000100001f03010064001f03",
        "ecec4c7f",
    ),
    (
        70_000,
        range(70_000),
        "d1d339640100000000000000000000003b300100030000ffff01006f1101000000ffff010000006f11",
        "1cb0c637",
    ),
]


def vector_of(rows: int, dead: Sequence[int]) -> Vector:
    vector = Vector(rows)
    vector.mark(np.array(dead, dtype=np.int64))
    return vector


@pytest.mark.parametrize(("rows", "dead", "digits", "crc"), GOLDEN)
def test_the_bytes_of_a_vector(rows: int, dead: Sequence[int], digits: str, crc: str) -> None:
    data = vector_of(rows, dead).encode()
    assert data.hex() == digits
    assert f"{zlib.crc32(data):08x}" == crc


def test_many_values_are_a_bitmap() -> None:
    data = vector_of(70_000, range(0, 10_000, 2)).encode()
    assert len(data) == 8_224
    assert data[:36].hex() == (
        "d1d339640100000000000000000000003a30000001000000000087131000000055555555"
    )
    assert f"{zlib.crc32(data):08x}" == "8ccf3137"


def test_the_bytes_of_a_file_of_vectors() -> None:
    data, offsets = encode_file([bytes.fromhex(FIRST), bytes.fromhex(SECOND)])
    assert data.hex() == f"0100000022{FIRST}f7a6b4b50000002c{SECOND}acd74a79"
    assert offsets == [1, 43]
    assert read_from_file(data, 43, 44).hex() == SECOND
    for at, change, place in (
        (0, b"\2", (1, 34)),
        (4, b"\0", (1, 34)),
        (60, b"\7", (43, 44)),
        (94, b"\0", (43, 44)),
    ):
        with pytest.raises(ValueError, match="checksum"):
            read_from_file(data[:at] + change + data[at + 1 :], *place)


def test_names_and_small_vectors_are_z85() -> None:
    id_ = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    assert encode_z85(id_.bytes) == "^-aqEH.-t@S}K{vb[*k^"
    assert encode_z85(bytes.fromhex(FIRST)) == "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"
    assert decode_z85(encode_z85(bytes.fromhex(FIRST)), 34).hex() == FIRST
    for text, size in (("abcd", 3), ('ab"de', 4), ("#####", 4), ("00000", 5)):
        with pytest.raises(ValueError):  # noqa: PT011 - of whatever it is
            decode_z85(text, size)


def test_a_token_is_a_number_of_63_bits() -> None:
    assert token_number("00000000000000000000000000000001") == 7652746175997403597


RANGES = st.tuples(st.integers(0, 199_999), st.integers(0, 70_000))


@given(
    scattered=st.lists(st.integers(0, 199_999), max_size=30),
    ranges=st.lists(RANGES, max_size=4),
    every=st.sampled_from([0, 2, 3, 17]),
)
def test_what_is_marked_is_read_value_by_value(
    scattered: list[int], ranges: list[tuple[int, int]], every: int
) -> None:
    rows, vector, expected = 200_000, Vector(200_000), set(scattered)
    vector.mark(np.array(scattered + scattered, dtype=np.int64))
    for start, length in ranges:
        stop = min(rows, start + length)
        vector.mark_range(start, stop)
        expected |= set(range(start, stop))
    if every:
        vector.mark(np.arange(0, 40_000, every))
        expected |= set(range(0, 40_000, every))
    data = vector.encode()
    assert vector.count == len(expected)
    assert vector.positions().tolist() == sorted(expected)
    if expected:
        assert list(_values(data)) == sorted(expected)
    assert Vector.decode(data, rows) == vector
    assert vector.deleted_mask(7, 1_001).tolist() == [at in expected for at in range(7, 1_001)]


def test_many_containers_are_unpacked_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_vectors, "_GROUP", 2)
    dead = [at for base in range(7) for at in range(base << 16, (base << 16) + 5 * base, 3)]
    runs = [at for base in range(3, 7) for at in range((base << 16) + 100, (base << 16) + 300)]
    vector = vector_of(7 << 16, dead + runs)
    assert list(_values(vector.encode())) == sorted({*dead, *runs})
    assert Vector.decode(vector.encode(), 7 << 16) == vector


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", 5),
        (bytes.fromhex(FIRST)[:-1], 10),
        (bytes.fromhex(FIRST), 0),
        (bytes.fromhex(SECOND), 29),
        (b"\0" + bytes.fromhex(FIRST)[1:], 10),
        (vector_of(70_000, range(0, 10_000, 2)).encode(), 9_000),
        (vector_of(1_000, range(100, 900)).encode(), 500),
    ],
)
def test_other_bytes_are_no_vector(data: bytes, rows: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever it is
        Vector.decode(data, rows)


def test_a_position_beyond_the_rows_is_refused() -> None:
    assert Vector(0).is_all
    with pytest.raises(ValueError, match="beyond 5 rows"):
        vector_of(5, [5])
    with pytest.raises(ValueError, match="of 5"):
        Vector(5).mark_range(3, 6)
