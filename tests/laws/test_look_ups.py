"""Rows by key are those of the table at the version, whatever is asked for and however often.

Few keys, so that some are asked for twice, were deleted, or never were; and, in half of the plays,
few hashes. Engines that choose an entry and such that fold all of them are looked up in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, TableSchema
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.tables import hashes_of_few_values

COLUMNS = pa.schema({"k": pa.string(), "n": pa.int64(), "v": pa.int64(), "seq": pa.int64()})
KEYS = [(text, number) for text in ("", "a", "a\0") for number in (-1, 1)]

Key = tuple[str | None, int | None]
Rows = dict[Key, Any]

SUMS = {"v": Rule.SUM}


def made(
    engine: MergeEngine | None = None, order: Sequence[str] = (), **settings: Any
) -> Callable[[], Table]:
    def make() -> Table:
        table = Table(MemoryStore())
        fields = [COLUMNS.field(name) for name in order]
        schema = TableSchema.of(COLUMNS, keys=["k", "n"], order=fields, engine=engine, **settings)
        table.ensure(schema)
        return table

    return make


KINDS = {
    "arrival": made(),
    "ordered": made(order=["seq"]),
    "quarantine": made(on_error=ErrorPolicy.QUARANTINE),
    "prefix": made(hash_prefix=1),
    "sums": made(MergeEngine(Engine.AGGREGATION, {**SUMS, "seq": Rule.MAX})),
    "ordered sums": made(MergeEngine(Engine.AGGREGATION, SUMS), order=["seq"]),
    "partial updates": made(MergeEngine(Engine.PARTIAL_UPDATE), order=["seq"]),
}
DELETES = {"arrival", "ordered", "quarantine", "prefix", "partial updates"}


def play(dice: random.Random, kind: str) -> tuple[Table, dict[int, Rows]]:
    """Return a table, and the rows that it has at each of its versions."""
    table, rows, versions = KINDS[kind](), Rows(), {}
    for seq in range(dice.randint(1, 5)):
        told = []
        for key in dice.sample(KEYS, dice.randint(1, 4)):
            gone, value = kind in DELETES and dice.random() < 0.3, dice.choice([1, 2, 3])
            told.append((*key, value, seq, gone))
            if gone:
                rows.pop(key, None)
            else:
                rows[key] = value + (rows.get(key, 0) if "sums" in kind else 0)
        arrays = [pa.array(list(each)) for each in zip(*told, strict=True)]
        names = [*COLUMNS.names, "gone"]
        deletes = "gone" if kind in DELETES else None
        given = pa.Table.from_arrays(arrays, names)
        table.upsert(given if deletes else given.drop_columns(["gone"]), deletes=deletes)
        if dice.random() < 0.3:
            table.compact(full=dice.random() < 0.5)
        versions[table.log.head().version] = dict(rows)
    return table, versions


def asked(dice: random.Random) -> tuple[list[Key], list[pa.Array]]:
    """Return keys to ask for, any of them more than once, and some that no row has."""
    keys: list[Key] = [*KEYS, ("b", 1), ("a", None), (None, None)]
    some = [dice.choice(keys) for _ in range(dice.randint(0, 9))]
    texts, numbers = zip(*some, strict=True) if some else ((), ())
    return some, [pa.array(texts, pa.string()), pa.array(numbers, pa.int64())]


@pytest.mark.parametrize("hashes", [None, 2], ids=["all hashes", "two hashes"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(5)
def test_rows_by_key_are_those_of_a_dictionary(kind: str, hashes: int | None) -> None:
    for seed in range(10):
        dice = random.Random(seed)
        with hashes_of_few_values(hashes):
            table, versions = play(dice, kind)
            for version, expected in versions.items():
                keys, columns = asked(dice)
                rows, at = table.at(version).look_up(columns, ["v", "n", "k"])
                values = rows.to_pylist()
                found = [None if place == ABSENT else values[place] for place in at.tolist()]
                assert found == [
                    {"v": expected[key], "n": key[1], "k": key[0]} if key in expected else None
                    for key in keys
                ], f"{keys} at {version} of seed {seed}"
                assert sorted(set(at.tolist()) - {ABSENT}) == list(range(rows.num_rows))
                assert table.at(version).look_up(columns, []).at.tolist() == at.tolist()


def test_rows_come_in_the_order_of_their_hashes_with_all_columns() -> None:
    table = made()()
    # So many that they stand in the order of their hashes by no chance.
    names, numbers = list("abcdefghijkl"), list(range(12))
    table.upsert(pa.table([names, numbers, numbers, [0] * 12], schema=COLUMNS))
    # One run, which is sorted by the hashes.
    by_hash = pa.Table.from_batches(table.at().read(COLUMNS.names))
    rows, at = table.at().look_up([pa.array(names[::-1]), pa.array(numbers[::-1])])
    assert pa.Table.from_batches([rows]).equals(by_hash)
    assert rows.column("k").take(pa.array(at)).to_pylist() == names[::-1]


def test_floats_are_found_as_keys_are_equal() -> None:
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(pa.schema({"f": pa.float64(), "v": pa.int64()}), keys=["f"]))
    table.upsert(pa.table({"f": [0.0, float("nan"), 1.5], "v": [1, 2, 3]}))
    other_nan = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0]
    keys = pa.array([other_nan, -0.0, 2.0, float("nan")])
    rows, at = table.at().look_up([keys], ["v"])
    values = rows.column("v").to_pylist()
    assert [values[p] if p != ABSENT else None for p in at.tolist()] == [2, 1, None, 2]


def test_keys_of_a_narrower_type_are_those_of_the_table() -> None:
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(pa.schema({"n": pa.int64(), "v": pa.int64()}), keys=["n"]))
    table.upsert(pa.table({"n": [1, 2], "v": [10, 20]}))
    rows, at = table.at().look_up([pa.array([2], pa.int16())], ["v"])
    assert (rows.column("v").to_pylist(), at.tolist()) == ([20], [0])
