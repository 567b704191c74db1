"""Mirrors, indexes and look-ups of a table with unchanged values show its rows.

The histories of `test_unchanged_histories`: after each step, or after some of them, the mirror is
published, and the index on a column catches up.
"""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.delta import publish as plan
from spark_upsert.delta.publish import Mirror, check_mirror
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import MemoryStore
from tests.support.unchanged_histories import VALUES, Played, history_of

COPIES = int(os.environ.get("UNCHANGED_COPIES", "40"))


@pytest.mark.parametrize("seed", range(COPIES))
def test_copies_show_the_rows_of_their_table(seed: int) -> None:
    history = history_of(10_000 + seed)
    dice = random.Random(seed)
    played, target = Played(history), MemoryStore()
    column = dice.choice([*VALUES])
    table = played.table.table
    table.alter(table.schema, {**table.log.head().properties, "indexBy": column})
    for step in history.steps:
        played.take(step)
        table = played.table.table
        if dice.random() < 0.7:
            require_mirror(played, target, by_key=dice.random() < 0.5)
        rows = table.snapshot()
        require_look_ups(played, rows)
        if dice.random() < 0.5:
            table.build_indexes()
            values = pc.unique(rows[column]).drop_null()
            found = table.rows_having(column, values) if len(values) else rows.slice(0, 0)
            assert canonical(found) == canonical(rows.filter(rows[column].is_valid()))
    require_mirror(played, target, by_key=True)


def require_mirror(played: Played, target: MemoryStore, *, by_key: bool) -> None:
    """Publish a table, and compare the mirror with it."""
    table = played.table.table
    mirror = Mirror(table.log, table.store, target)
    with patch.object(plan, "_SETTLED_FROM", 0 if by_key else 8):
        mirror.publish()
    assert canonical(DeltaTable(target).rows()) == canonical(table.snapshot())
    assert not list(check_mirror(mirror))


def require_look_ups(played: Played, rows: pa.Table) -> None:
    """Compare reads of some columns, by key and by a condition, with all rows."""
    table = played.table.table
    for name in VALUES:
        some = table.snapshot(columns=["k", name])
        assert canonical(some) == canonical(rows.select(["k", name]))
        nulls = table.snapshot(filter=f"{name} IS NULL")
        assert canonical(nulls) == canonical(rows.filter(rows[name].is_null()))
    found = table.get(pa.array(np.arange(4)))
    assert canonical(found) == canonical(rows)
