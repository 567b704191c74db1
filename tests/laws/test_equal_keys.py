"""Equal keys are those of a plain comparison, whichever kernel is asked.

Rows are numbered, sought in an index, made into groups by their bits, hashed and put in order: all
say the same of any two. Few values, of all types that a key may have: NULL, NaN, -0.0, texts of
which one begins with the other, and decimals.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys, is_injective
from spark_upsert.core.keys import equal_rows
from spark_upsert.plan import join_keys
from spark_upsert.plan.join_keys import (
    NOWHERE,
    KeyIndex,
    canonical,
    cast_rows,
    codes,
    common_type,
    first_indices,
    first_occurrences,
    is_among,
    join_codes,
    joinable,
    matches,
    ranks_of,
    to_common_types,
)
from tests.support.operator_rows import VALUES, place_of

SEEDS = int(os.environ.get("OPERATOR_SEEDS", "40"))

Key = tuple[Any, ...]


class Side(NamedTuple):
    """Rows of key columns, and the same keys so that equal ones are equal."""

    columns: list[pa.Array]
    keys: list[Key]

    def joinable(self) -> list[bool]:
        return [all(place[0] for place in key) for key in self.keys]


def sides(seed: int) -> tuple[Side, Side]:
    """Return two sides of the same types; the columns of the first are slices."""
    dice = random.Random(seed)
    types = [dice.choice(list(VALUES)) for _ in range(dice.choice([1, 1, 2, 3]))]
    found = []
    for skipped in (2, 0):
        count = skipped + dice.randint(0, 9)
        values = [[dice.choice(VALUES[type_]) for _ in range(count)] for type_ in types]
        columns = [pa.array(v, t).slice(skipped) for v, t in zip(values, types, strict=True)]
        rows = zip(*(column[skipped:] for column in values), strict=True)
        found.append(Side(columns, [tuple(map(_bare, map(place_of, row))) for row in rows]))
    return found[0], found[1]


def _bare(place: tuple[int, Any]) -> tuple[int, Any]:
    """Return a place in which 0.0 is written one way: keys of a dictionary show it."""
    return (place[0], place[1] + 0.0) if isinstance(place[1], float) else place


def worlds() -> Iterator[tuple[int, Side, Side]]:
    for seed in range(SEEDS):
        yield (seed, *sides(seed))


def pairs(left: Side, right: Side) -> list[tuple[int, int]]:
    """Return the places of rows that join, by nested loops."""
    return [
        (i, j)
        for i, key in enumerate(left.keys)
        for j, other in enumerate(right.keys)
        if key == other and left.joinable()[i]
    ]


def test_rows_are_numbered_as_they_first_come() -> None:
    for seed, left, right in worlds():
        numbers: dict[Key, int] = {}
        expected = [numbers.setdefault(key, len(numbers)) for key in (*left.keys, *right.keys)]
        found = codes(left.columns, right.columns)
        assert np.concatenate(found).tolist() == expected, seed
        whole = np.concatenate(found)
        assert first_occurrences(whole).tolist() == [
            expected.index(n) for n in range(len(numbers))
        ], seed


def test_a_row_stands_where_the_first_of_its_key_does() -> None:
    for seed, left, right in worlds():
        found = first_indices(*codes(left.columns, right.columns))
        expected = [right.keys.index(k) if k in right.keys else NOWHERE for k in left.keys]
        assert found.tolist() == expected, seed
        among = is_among(left.columns, right.columns)
        assert among.tolist() == [key in right.keys for key in left.keys], seed


def test_rows_match_as_nested_loops_say_and_null_joins_nothing() -> None:
    for seed, left, right in worlds():
        numbers = join_codes(left.columns, right.columns)
        found = matches(*numbers)
        assert list(zip(*(side.tolist() for side in found), strict=True)) == pairs(left, right)
        can = joinable(left.columns)
        assert ([True] * len(left.keys) if can is None else can.tolist()) == left.joinable(), seed
        has_match = {i for i, _ in pairs(left, right)}
        assert np.flatnonzero(first_indices(*numbers) != NOWHERE).tolist() == sorted(has_match), (
            seed
        )


@pytest.mark.parametrize("few", [False, True], ids=["all hashes", "two hashes"])
def test_an_index_finds_the_rows_that_match(few: bool) -> None:
    def hashed(columns: Sequence[pa.Array], *, seed: int) -> Any:
        hashes = hash_keys(columns, seed=seed)
        return (hashes % np.uint64(2)) << np.uint64(63) if few else hashes

    with (
        patch.object(join_keys, "hash_keys", hashed),
        patch.object(join_keys, "is_injective", lambda types: not few and is_injective(types)),
    ):
        for seed, left, right in worlds():
            own, other = np.flatnonzero(left.joinable()), np.flatnonzero(right.joinable())
            index = KeyIndex([column.take(pa.array(other)) for column in right.columns])
            groups = index.find([column.take(pa.array(own)) for column in left.columns])
            found = [
                (int(row), int(other[place]))
                for row, group in zip(own, groups.tolist(), strict=True)
                if group != NOWHERE
                for place in index.order[index.starts[group] :][: index.counts[group]]
            ]
            assert found == pairs(left, right), seed


def test_groups_of_canonical_columns_are_those_of_equal_keys() -> None:
    for seed, side, _ in worlds():
        whole = pa.table(
            [canonical(c) for c in side.columns], names=list("abc"[: len(side.columns)])
        )
        grouped = whole.group_by(whole.column_names, use_threads=False).aggregate(
            [([], "count_all")]
        )
        assert sorted(grouped["count_all"].to_pylist()) == sorted(
            np.unique(codes(side.columns)[0], return_counts=True)[1].tolist()
        ), seed


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()], ids=str)
def test_equal_floats_have_equal_bits_and_hashes(type_: pa.DataType) -> None:
    unsigned = np.dtype(f"u{type_.bit_width // 8}")
    quiet, sign = (0x7FC00000, 1 << 31) if type_ == pa.float32() else (0x7FF8 << 48, 1 << 63)
    bits = np.array([quiet, quiet + 1, quiet | sign, 0, sign], dtype=unsigned)
    column = pa.array([*bits.view(unsigned.str.replace("u", "f")), None], type_)
    told = [canonical(column), canonical(column.slice(1))]
    assert [np.asarray(each.drop_null()).view(unsigned).tolist() for each in told] == [
        [quiet, quiet, quiet, 0, 0],
        [quiet, quiet, 0, 0],
    ]
    assert codes([column])[0].tolist() == [0, 0, 0, 1, 1, 2]
    assert len(np.unique(hash_keys([column], seed=5))) == 3


def test_equal_rows_have_equal_hashes_and_numbers() -> None:
    for seed, left, right in worlds():
        count = min(len(left.keys), len(right.keys))
        if not count:
            continue
        cut = [[column.slice(0, count) for column in side.columns] for side in (left, right)]
        same = equal_rows(*cut)
        assert same.tolist() == [a == b for a, b in zip(left.keys, right.keys, strict=False)], seed
        numbers, hashes = codes(*cut), [hash_keys(columns, seed=seed) for columns in cut]
        assert (numbers[0] == numbers[1]).tolist() == same.tolist(), seed
        assert (hashes[0] == hashes[1])[same].all(), seed


def test_keys_are_in_the_order_of_their_values() -> None:
    for seed, *both in worlds():
        left, right = (
            Side([c.filter(pa.array(side.joinable(), pa.bool_())) for c in side.columns], side.keys)
            for side in both
        )
        keys = [key for side in both for key in side.keys if all(place[0] for place in key)]
        if not len(left.columns[0]) or not len(right.columns[0]):
            continue
        ranks = np.concatenate(ranks_of(left.columns, right.columns)).tolist()
        order = [[(a > b) - (a < b) for b in ranks] for a in ranks]
        assert order == [[(a > b) - (a < b) for b in keys] for a in keys], seed


def test_without_columns_all_rows_are_equal() -> None:
    assert [side.tolist() for side in codes([], [])] == [[], []]
    assert joinable([]) is None


WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


def test_whole_numbers_of_any_two_widths_are_equal_by_their_values() -> None:
    for one in WHOLE:
        for other in WHOLE:
            assert common_type(one, other) == (one if one == other else pa.int64())
            sides = to_common_types([pa.array([1, 2, None], one)], [pa.array([2, None, 1], other)])
            assert [side.tolist() for side in matches(*join_codes(*sides))] == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.int64(), pa.uint64()),
        (pa.int64(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_keys_of_other_types_are_not_compared(one: pa.DataType, other: pa.DataType) -> None:
    assert common_type(one, other) is None
    assert common_type(other, one) is None


def test_a_number_that_does_not_fit_the_other_side_joins_nothing_there() -> None:
    rows = pa.record_batch({"n": pa.array([1, 300, None], pa.int64())})
    found = cast_rows(rows, pa.schema({"n": pa.int8()}))
    assert found.column("n").to_pylist() == [1, None, None]
    assert found.schema.field("n").type == pa.int8()
