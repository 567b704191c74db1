"""The key hash: published vectors, the documented formula, and what must not matter."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core import key_hash
from spark_upsert.core.key_hash import HASH_END, hash_keys, is_injective
from tests.support import slow_hash
from tests.support.slow_hash import hash_key

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"

TYPES = {
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "decimal128(38, 0)": pa.decimal128(38, 0),
    "date32[day]": pa.date32(),
    "time64[us]": pa.time64("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC"),
}

SEEDS = st.integers(0, HASH_END - 1)
LONG_TEXT = st.integers(0, 40).flatmap(
    lambda words: st.text(min_size=0, max_size=9).map(lambda end: "ab3é" * words + end)
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.one_of(st.text(), LONG_TEXT),
    pa.large_string(): LONG_TEXT,
    pa.binary(): st.one_of(st.binary(), st.binary(min_size=60, max_size=200)),
    pa.decimal128(9, 2): st.decimals(places=2, min_value=-(10**6), max_value=10**6),
    pa.decimal128(38, 3): st.decimals(places=3, min_value=-(10**30), max_value=10**30),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}


def published_vectors() -> list[Any]:
    section = FORMAT.read_text().split("## Test vectors")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| `([^`]+)` +\| `([^`]+)` +\| (\d+) +\| `([0-9a-f]{16})` \|$", section, re.M
    )
    return [pytest.param(*row, id=f"{row[0]} of {row[1][:24]} with seed {row[2]}") for row in rows]


def column_of(type_: pa.DataType, value: Any) -> pa.Array:
    if isinstance(value, str):
        text = value
        if pa.types.is_binary(type_):
            value = bytes.fromhex(text)
        elif pa.types.is_decimal128(type_):
            value = Decimal(text)
        elif pa.types.is_floating(type_):
            value = float(text)
        elif pa.types.is_date(type_):
            value = dt.date.fromisoformat(text)
        elif pa.types.is_time(type_):
            value = dt.time.fromisoformat(text)
        elif pa.types.is_timestamp(type_):
            value = dt.datetime.fromisoformat(text)
    return pa.array([value], type=type_)


def test_the_format_page_has_vectors_of_every_hashable_kind() -> None:
    named = {name for param in published_vectors() for name in type_names(param.values[0])}
    assert named == set(TYPES)
    assert len(published_vectors()) == 30


def type_names(text: str) -> list[str]:
    pattern = "|".join(re.escape(name) for name in sorted(TYPES, key=len, reverse=True))
    return re.findall(f"(?:{pattern})(?=, |$)", text)


@pytest.mark.parametrize(("types", "values", "seed", "expected"), published_vectors())
def test_the_hash_is_as_published(types: str, values: str, seed: str, expected: str) -> None:
    columns = [
        column_of(TYPES[name], value)
        for name, value in zip(type_names(types), json.loads(f"[{values}]"), strict=True)
    ]
    assert f"{hash_keys(columns, seed=int(seed))[0]:016x}" == expected


@pytest.mark.parametrize("type_", VALUES, ids=lambda t: f"for {t}")
@given(data=st.data(), seed=SEEDS)
@pytest.mark.sweep(5)
def test_the_hash_is_the_documented_formula(type_: pa.DataType, data: Any, seed: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=6))
    expected = [hash_key([value], seed=seed) for value in values]
    assert hash_keys([pa.array(values, type=type_)], seed=seed).tolist() == expected


@given(
    rows=st.lists(st.tuples(st.none() | VALUES[pa.int64()], st.none() | LONG_TEXT), max_size=6),
    seed=SEEDS,
)
def test_the_hash_of_a_composite_key_is_the_documented_formula(rows: Any, seed: int) -> None:
    numbers = pa.array([row[0] for row in rows], type=pa.int64())
    texts = pa.array([row[1] for row in rows], type=pa.string())
    expected = [hash_key(row, seed=seed) for row in rows]
    assert hash_keys([numbers, texts], seed=seed).tolist() == expected


@given(
    rows=st.lists(
        st.tuples(st.none() | VALUES[pa.int64()], st.none() | LONG_TEXT, VALUES[pa.int64()]),
        max_size=6,
    ),
    seed=SEEDS,
    prefix=st.integers(0, 2),
)
def test_the_hash_with_a_prefix_is_the_documented_formula(
    rows: Any, seed: int, prefix: int
) -> None:
    types = [pa.int64(), pa.string(), pa.int64()]
    columns = [pa.array([row[i] for row in rows], type=type_) for i, type_ in enumerate(types)]
    expected = [hash_key(row, seed=seed, prefix=prefix) for row in rows]
    assert hash_keys(columns, seed=seed, prefix=prefix).tolist() == expected


def published_prefix_vectors() -> list[Any]:
    rows = re.findall(
        r"^\| `([^`]+)` +\| (\d) +\| `([^`]+)` +\| (\d+) +\| `([0-9a-f]{16})` \|$",
        FORMAT.read_text(),
        re.M,
    )
    return [pytest.param(*row, id=f"{row[2]} by {row[1]} with seed {row[3]}") for row in rows]


def test_the_format_page_has_vectors_with_prefixes() -> None:
    assert len(published_prefix_vectors()) == 6


@pytest.mark.parametrize(
    ("types", "prefix", "values", "seed", "expected"), published_prefix_vectors()
)
def test_the_hash_with_a_prefix_is_as_published(
    types: str, prefix: str, values: str, seed: str, expected: str
) -> None:
    keys = json.loads(f"[{values}]")
    columns = [column_of(TYPES[n], v) for n, v in zip(type_names(types), keys, strict=True)]
    assert f"{hash_keys(columns, seed=int(seed), prefix=int(prefix))[0]:016x}" == expected
    assert f"{hash_key(keys, seed=int(seed), prefix=int(prefix)):016x}" == expected


@given(values=st.lists(st.none() | LONG_TEXT, min_size=1, max_size=9), data=st.data(), seed=SEEDS)
def test_slices_hash_as_the_rows_that_they_show(values: Any, data: Any, seed: int) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    lengths = [None if value is None else len(value) for value in values]
    for column in (pa.array(values, pa.string()), pa.array(lengths, pa.int64())):
        whole = hash_keys([column], seed=seed)
        part = hash_keys([column.slice(start, stop - start)], seed=seed)
        assert part.tolist() == whole[start:stop].tolist()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param("_BLOCK_ROWS", 3, id="three rows at once"),
        pytest.param("_SHORT_WORDS", 1, id="one word column-wise"),
        pytest.param("_SHORT_WORDS", 100, id="all words column-wise"),
        pytest.param("_FLAT_WORDS", 2, id="two words of long texts at once"),
    ],
)
def test_the_hash_does_not_depend_on_how_the_work_is_cut(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = pa.array(["é" * length for length in (0, 1, 3, 4, 31, 32, 33, 40, 99, 100, 7)])
    keys = [texts, pa.array(range(len(texts)))]
    before = hash_keys(keys, seed=11).tolist()
    monkeypatch.setattr(key_hash, name, number)
    assert hash_keys(keys, seed=11).tolist() == before


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int16()),
        (pa.int16(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(38, 2)),
        (pa.string(), pa.large_string()),
    ],
    ids=lambda t: str(t),
)
@given(data=st.data())
def test_widening_a_key_column_keeps_the_hash(
    narrow: pa.DataType, wide: pa.DataType, data: Any
) -> None:
    values = data.draw(st.lists(st.none() | VALUES[narrow]))
    column = pa.array(values, type=narrow)
    assert hash_keys([column], seed=5).tolist() == hash_keys([column.cast(wide)], seed=5).tolist()


def test_both_zeros_have_one_hash() -> None:
    hashes = hash_keys([pa.array([0.0, -0.0])], seed=1)
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("width", [4, 8], ids=["of 32 bits", "of 64 bits"])
def test_every_nan_has_one_hash(width: int) -> None:
    patterns = {
        4: [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FC0BEEF],
        8: [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF80000DEADBEEF],
    }[width]
    data = struct.pack(f"<4{'I' if width == 4 else 'Q'}", *patterns)
    type_ = pa.float32() if width == 4 else pa.float64()
    column = pa.Array.from_buffers(type_, 4, [None, pa.py_buffer(data)])
    assert all(math.isnan(v) for v in column.to_pylist())
    assert len(set(hash_keys([column], seed=1).tolist())) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(["a"], ["a\0"], id="a text and the same with a zero byte"),
        pytest.param([""], [None], id="the empty text and null"),
        pytest.param(["ab", "c"], ["a", "bc"], id="texts cut elsewhere"),
        pytest.param(["a", "b"], ["b", "a"], id="texts in another order"),
        pytest.param([None, "a"], ["a", None], id="null in another column"),
        pytest.param(["1234567", "8"], ["12345678", ""], id="texts that fill a word together"),
    ],
)
def test_different_keys_do_not_collide_by_construction(left: Any, right: Any) -> None:
    one, other = (
        hash_keys([pa.array([value], pa.string()) for value in key], seed=3)[0]
        for key in (left, right)
    )
    assert one != other


def test_tables_with_different_seeds_hash_differently() -> None:
    column = pa.array(range(100))
    same = hash_keys([column], seed=0) == hash_keys([column], seed=1)
    assert not same.any()


def test_hashes_of_consecutive_numbers_are_spread_evenly() -> None:
    hashes = hash_keys([pa.array(range(64_000))], seed=0)
    counts = np.bincount((hashes >> np.uint64(58)).astype(np.int64), minlength=64)
    # 1000 expected in each of 64 ranges; 5 standard deviations of a binomial are 158.
    assert counts.min() > 840
    assert counts.max() < 1160


def unmix(z: int) -> int:
    """Undo `slow_hash.mix`: multiplications by odd numbers and xors with shifts have inverses."""
    mask = (1 << 64) - 1
    z ^= (z >> 31) ^ (z >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    return z ^ (z >> 30) ^ (z >> 60)


@pytest.mark.parametrize("seed", [0, 7, (1 << 64) - 1])
def test_a_key_of_one_word_can_be_told_from_its_hash(seed: int) -> None:
    dice = np.random.default_rng(3)
    keys = dice.integers(-(1 << 63), (1 << 63) - 1, 500)
    column = slow_hash.mix(seed + slow_hash.G)
    word = slow_hash.mix(column + slow_hash.G)
    mask = (1 << 64) - 1
    for key, hashed in zip(
        keys.tolist(), hash_keys([pa.array(keys)], seed=seed).tolist(), strict=True
    ):
        found = unmix((unmix(hashed) - column - 8 * slow_hash.G) & mask) ^ word
        assert found == key & mask


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([pa.int32()], True),
        ([pa.timestamp("us", tz="UTC")], True),
        ([pa.float64()], True),
        ([pa.int32(), pa.int32()], False),
        ([pa.string()], False),
        ([pa.decimal128(10, 2)], False),
    ],
    ids=str,
)
def test_only_one_column_of_one_word_is_its_hash(types: list[pa.DataType], expected: bool) -> None:
    assert is_injective(types) is expected
