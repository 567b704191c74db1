"""The key hash: published vectors, the documented formula, and what must not matter."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
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
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.one_of(st.text(), LONG_TEXT),
    pa.binary(): st.one_of(st.binary(), st.binary(min_size=60, max_size=200)),
    pa.decimal128(9, 2): st.decimals(places=2, min_value=-(10**6), max_value=10**6),
    pa.decimal128(38, 3): st.decimals(places=3, min_value=-(10**30), max_value=10**30),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}


VECTOR = re.compile(
    r"^\| `([^`]+)` +\|(?: (\d) +\|)? `([^`]+)` +\| (\d+) +\| `([0-9a-f]{16})` \|$", re.M
)
"""Types, columns of the prefix if any, values, seed and hash."""

PUBLISHED = VECTOR.findall(FORMAT.read_text().split("## Test vectors")[1])

PARSED: dict[Callable[[pa.DataType], bool], Callable[[str], Any]] = {
    pa.types.is_binary: bytes.fromhex,
    pa.types.is_decimal128: Decimal,
    pa.types.is_floating: float,
    pa.types.is_date: dt.date.fromisoformat,
    pa.types.is_time: dt.time.fromisoformat,
    pa.types.is_timestamp: dt.datetime.fromisoformat,
}


def column_of(type_: pa.DataType, value: Any) -> pa.Array:
    if isinstance(value, str):
        value = next((parse(value) for is_, parse in PARSED.items() if is_(type_)), value)
    return pa.array([value], type=type_)


def type_names(text: str) -> list[str]:
    pattern = "|".join(re.escape(name) for name in sorted(TYPES, key=len, reverse=True))
    return re.findall(f"(?:{pattern})(?=, |$)", text)


def test_the_format_page_has_vectors_of_every_hashable_kind() -> None:
    assert {name for types, *_ in PUBLISHED for name in type_names(types)} == set(TYPES)
    assert (len(PUBLISHED), sum(prefix != "" for _, prefix, *_ in PUBLISHED)) == (36, 6)


@pytest.mark.parametrize(("types", "prefix", "values", "seed", "expected"), PUBLISHED)
def test_the_hash_is_as_published(
    types: str, prefix: str, values: str, seed: str, expected: str
) -> None:
    keys = json.loads(f"[{values}]")
    columns = [column_of(TYPES[n], v) for n, v in zip(type_names(types), keys, strict=True)]
    assert f"{hash_keys(columns, seed=int(seed), prefix=int(prefix or 0))[0]:016x}" == expected


@pytest.mark.parametrize("type_", VALUES, ids=lambda t: f"for {t}")
@given(data=st.data(), seed=SEEDS)
@pytest.mark.sweep(5)
def test_the_hash_is_the_documented_formula(type_: pa.DataType, data: Any, seed: int) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=6))
    start = data.draw(st.integers(0, len(values)))
    expected = [hash_key([value], seed=seed) for value in values[start:]]
    assert hash_keys([pa.array(values, type=type_)[start:]], seed=seed).tolist() == expected


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


@pytest.mark.parametrize(
    ("name", "number"),
    [("_BLOCK_ROWS", 3), ("_SHORT_WORDS", 1), ("_SHORT_WORDS", 100), ("_FLAT_WORDS", 2)],
)
def test_the_hash_does_not_depend_on_how_the_work_is_cut(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = pa.array(["é" * length for length in (0, 1, 3, 4, 31, 32, 33, 40, 99, 100, 7)])
    keys = [texts, pa.array(range(len(texts)))]
    before = hash_keys(keys, seed=11).tolist()
    monkeypatch.setattr(key_hash, name, number)
    assert hash_keys(keys, seed=11).tolist() == before


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
    keys = np.random.default_rng(3).integers(-(1 << 63), (1 << 63) - 1, 500)
    column = slow_hash.mix(seed + slow_hash.G)
    word = slow_hash.mix(column + slow_hash.G)
    mask = (1 << 64) - 1
    hashes = hash_keys([pa.array(keys)], seed=seed).tolist()
    told = [unmix((unmix(each) - column - 8 * slow_hash.G) & mask) ^ word for each in hashes]
    assert told == [key & mask for key in keys.tolist()]


def test_only_one_column_of_one_word_is_its_hash() -> None:
    assert all(map(is_injective, ([pa.int32()], [pa.timestamp("us", tz="UTC")], [pa.float64()])))
    for types in ([pa.int32(), pa.int32()], [pa.string()], [pa.decimal128(10, 2)]):
        assert not is_injective(types)
