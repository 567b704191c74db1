"""An index proposes, the table disposes: by whatever index, at whatever version, the same rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_upsert.table.log.indexed import shown
from tests.support.indexed import IndexedTable, small_steps

SEEDS = pytest.mark.parametrize("seed", range(3))
ACTS = 14


@SEEDS
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
def test_p2_an_index_holds_the_keys_of_the_version_that_it_shows(seed: int) -> None:
    """What is not looked up is bounded: no entry is left of values that rows had before."""
    for life in range(seed * 3, seed * 3 + 3):
        lived = IndexedTable(life)

        def look(life: int = life, lived: IndexedTable = lived) -> None:
            own = lived.index.log.try_head()
            place = None if own is None else shown(own)
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
