"""An index proposes, the table disposes: by whatever index, at whatever version, the same rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_upsert.plan.expressions import bind_condition
from spark_upsert.table.log.properties import covered_version
from tests.support.conditions import condition
from tests.support.indexed import IndexedTable, small_steps

SEEDS = pytest.mark.parametrize("seed", range(3))
ACTS = 14


@SEEDS
@pytest.mark.sweep(1)
def test_p3_an_index_finds_the_rows_of_every_version(seed: int) -> None:
    """Proposals and bridge, each looked up at the version, are what a scan of it finds."""
    for life in range(seed * 3, seed * 3 + 3):
        dice, lived = random.Random(life), IndexedTable(life)

        def look(life: int = life, dice: random.Random = dice, lived: IndexedTable = lived) -> None:
            head = lived.table.log.head()
            for version in dice.choices(range(head.since, head.version + 1), k=2):
                values = set(dice.sample([0, 1, 2], 2))
                found = lived.read(lived.table.rows_having("c", sorted(values), version=version))
                expected = lived.having(version, values)
                assert found == expected, f"life {life}: {values} at {version}"

        with small_steps(dice.choice([2, 8, 1 << 20])):
            lived.live(ACTS, look)


@SEEDS
@pytest.mark.sweep(1)
def test_p3_a_condition_finds_the_rows_of_every_version(seed: int) -> None:
    """By key, by prefix, by index or by reading all: what the condition is true for."""
    literals = {name: ["0", "1", "2", "3", "1.0", "0.5", "9999999999"] for name in ("id", "c")}
    literals["part"] = literals["v"] = ["0", "1", "2", "7"]
    for life in range(seed * 3, seed * 3 + 3):
        dice, lived = random.Random(life), IndexedTable(life)

        def look(life: int = life, dice: random.Random = dice, lived: IndexedTable = lived) -> None:
            head = lived.table.log.head()
            for version in dice.choices(range(head.since, head.version + 1), k=2):
                asked = condition(dice, literals)
                snapshot = lived.table.at(version)
                bound = bind_condition(asked, snapshot.manifest.schema.columns)
                whole = pa.Table.from_batches(
                    [bound.true_rows(batch) for batch in snapshot.read()],
                    schema=snapshot.manifest.schema.columns,
                )
                found = lived.table.snapshot(
                    version, filter=asked, columns=["v", "id", "c", "part"]
                )
                assert lived.read(found) == lived.read(whole), f"life {life}: {asked} at {version}"

        with small_steps(dice.choice([2, 8, 1 << 20])):
            lived.live(ACTS, look)


@SEEDS
@pytest.mark.sweep(1)
def test_p3_keys_find_their_rows_at_every_version(seed: int) -> None:
    """Rows come in the order of the keys; a key without a row has none."""
    for life in range(seed * 3, seed * 3 + 3):
        dice, lived = random.Random(life), IndexedTable(life)

        def look(life: int = life, dice: random.Random = dice, lived: IndexedTable = lived) -> None:
            head = lived.table.log.head()
            version = dice.randint(head.since, head.version)
            rows = lived.rows[version]
            known = [*rows, *(tuple(dice.choices([None, 0, 1, 7], k=len(lived.keys))),)]
            asked = dice.choices(known, k=4)
            found = lived.table.get(
                asked if len(lived.keys) > 1 else [key for (key,) in asked], version=version
            )
            told = [tuple(row[name] for name in lived.keys) for row in found.to_pylist()]
            assert told == [key for key in asked if key in rows], f"life {life} at {version}"
            if told:
                distinct = pa.Table.from_pylist(
                    [dict(each) for each in {tuple(r.items()) for r in found.to_pylist()}]
                )
                expected = {key: rows[key] for key in told}
                assert lived.read(distinct) == expected, f"life {life} at {version}"

        with small_steps(dice.choice([2, 8, 1 << 20])):
            lived.live(ACTS, look)


@SEEDS
@pytest.mark.sweep(1)
def test_p2_an_index_holds_the_keys_of_the_version_that_it_shows(seed: int) -> None:
    """What is not looked up is bounded: no entry is left of values that rows had before."""
    for life in range(seed * 3, seed * 3 + 3):
        lived = IndexedTable(life)

        def look(life: int = life, lived: IndexedTable = lived) -> None:
            own = lived.index.log.try_head()
            place = None if own is None else covered_version(own)
            if place is None:
                return
            assert place.version <= lived.table.log.head().version
            names = (*lived.keys, *lived.others)
            rows = [
                dict(zip(names, (*key, *others), strict=True))
                for key, others in lived.rows[place.version].items()
            ]
            expected = {
                (row["c"], *(row[name] for name in lived.keys))
                for row in rows
                if row["c"] is not None
            }
            assert lived.entries() == expected, f"life {life}: at {place.version}"

        with small_steps(random.Random(life).choice([2, 8, 1 << 20])):
            lived.live(ACTS, look)


@SEEDS
def test_p7_an_index_is_up_to_date_behind_each_commit(seed: int) -> None:
    """No row of the table is read to find those with a value."""
    lived = IndexedTable(seed)
    for _ in range(6):
        lived.append()
        index, head = lived.table.index_of("c"), lived.table.log.head()
        assert index is not None
        values = pa.array([0, 1, 2], lived.schema.columns.field("c").type)
        proposals = index.keys_having(values)
        assert proposals.shows_version == head.version
        found = {tuple(row[name] for name in lived.keys) for row in proposals.keys.to_pylist()}
        assert found == lived.having(head.version, {0, 1, 2}).keys()
        assert index.log.head().run_count < 10
    assert lived.table.index_failures == 0
