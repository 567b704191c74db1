"""What commands change in a state, told of rows in memory alone: no table, no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_upsert.core.keys import Positions
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import HASH, Scope, TableSchema
from spark_upsert.table.changelog.changes import (
    Changes,
    Entries,
    changes_of_commands,
    changes_of_overwrite,
)
from spark_upsert.table.changelog.render import ChangeOptions, Deduplication, render
from spark_upsert.table.run.rows import BatchPart
from spark_upsert.table.state.lookup import find
from spark_upsert.table.state.reduce import ABSENT, EntryMatches
from tests.support.model import Command
from tests.support.tables import batch_of, schema_of

ARRIVAL = schema_of(Scope.ARRIVAL)
SUMS = replace(ARRIVAL, engine=MergeEngine(kind=Engine.AGGREGATION, rules={"v": Rule.SUM}))

Pair = tuple[int | None, int | None, int]
"""The old value of a key, the new one, and the epoch."""


def entries(schema: TableSchema, epochs: dict[int, dict[int, int | None]]) -> Entries:
    """Return the commands of some epochs: for each key its value, None for a delete."""
    found = []
    for epoch, values in epochs.items():
        commands = [Command(key, value, epoch) for key, value in values.items()]
        batch = batch_of(schema, commands)
        order = np.argsort(batch.column(HASH).to_numpy())
        found.append((BatchPart(batch.take(pa.array(order))), epoch))
    return found


def changed(
    state: dict[int, int | None],
    epochs: dict[int, dict[int, int | None]],
    *,
    schema: TableSchema = ARRIVAL,
    net: bool = False,
) -> Changes:
    """Return what epochs change in a state."""
    before = entries(schema, {0: state} if state else {})

    def look_up(hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]) -> EntryMatches:
        return find(schema, before, hashes, keys)

    return changes_of_commands(entries(schema, epochs), look_up, schema=schema, net=net)


def pairs(changes: Changes) -> dict[int, list[Pair]]:
    """Return the pairs of each key."""
    found: dict[int, list[Pair]] = {}
    for old, new, epoch in zip(changes.old, changes.new, changes.epochs, strict=True):
        rows = [None if row == ABSENT else values(changes, np.array([row])) for row in (old, new)]
        key = next(row[0] for row in rows if row is not None)
        each = (*(None if row is None else row[1] for row in rows), int(epoch))
        found.setdefault(key, []).append(each)  # type: ignore[arg-type]
    return found


def values(changes: Changes, at: Positions) -> tuple[int, int]:
    key, value = changes.rows.take(["k", "v"], at)
    return key[0].as_py(), value[0].as_py()


EPOCHS: dict[int, dict[int, int | None]] = {
    4: {1: 11, 2: 20, 3: None},
    5: {1: 12, 2: None},
    6: {1: 12, 2: 21, 4: None},
}


def test_each_epoch_retracts_what_was_there_and_inserts_what_it_brings() -> None:
    assert pairs(changed({1: 10, 3: 30}, EPOCHS)) == {
        1: [(10, 11, 4), (11, 12, 5), (12, 12, 6)],
        2: [(None, 20, 4), (20, None, 5), (None, 21, 6)],
        3: [(30, None, 4)],
    }


def test_net_changes_are_one_pair_at_the_last_epoch_of_a_key() -> None:
    assert pairs(changed({1: 10, 3: 30}, EPOCHS, net=True)) == {
        1: [(10, 12, 6)],
        2: [(None, 21, 6)],
        3: [(30, None, 4)],
    }


def test_what_came_and_went_leaves_no_net_change() -> None:
    assert pairs(changed({}, {4: {1: 10}, 5: {1: None}}, net=True)) == {}


def test_an_engine_that_folds_brings_what_the_fold_gives() -> None:
    epochs: dict[int, dict[int, int | None]] = {4: {1: 1, 2: 2}, 5: {1: 3}}
    assert pairs(changed({1: 10}, epochs, schema=SUMS)) == {
        1: [(10, 11, 4), (11, 14, 5)],
        2: [(None, 2, 4)],
    }
    assert pairs(changed({1: 10}, epochs, schema=SUMS, net=True)) == {
        1: [(10, 14, 5)],
        2: [(None, 2, 4)],
    }


@pytest.mark.parametrize("schema", [ARRIVAL, SUMS], ids=["choosing", "folding"])
@pytest.mark.parametrize("net", [False, True])
def test_no_commands_change_nothing(schema: TableSchema, net: bool) -> None:
    assert pairs(changed({1: 10}, {}, schema=schema, net=net)) == {}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        pytest.param(
            ARRIVAL, {1: [(10, 12, 9)], 2: [(20, None, 9)], 3: [(None, 30, 9)]}, id="choosing"
        ),
        pytest.param(
            SUMS, {1: [(10, 23, 9)], 2: [(20, None, 9)], 3: [(None, 30, 9)]}, id="folding"
        ),
    ],
)
def test_an_overwrite_compares_two_contents(
    schema: TableSchema, expected: dict[int, list[Pair]]
) -> None:
    before = entries(schema, {1: {1: 10, 2: 20}})
    after = entries(schema, {7: {1: 11, 3: 30}, 8: {1: 12}})
    found = changes_of_overwrite(before, after, schema=schema, version=9)
    assert pairs(found) == expected


@pytest.mark.parametrize("empty", [0, 1, 2], ids=["before", "after", "both"])
def test_an_overwrite_of_nothing_or_by_nothing(empty: int) -> None:
    full = entries(ARRIVAL, {1: {1: 10}})
    sides = [[] if empty in (side, 2) else full for side in (0, 1)]
    found = pairs(changes_of_overwrite(*sides, schema=ARRIVAL, version=9))
    assert found == [{1: [(None, 10, 9)]}, {1: [(10, None, 9)]}, {}][empty]


# -- what a reader sees ------------------------------------------------------------------

TIMES_MS = {4: 40, 5: 50, 6: 60}

MirroredVersion = list[tuple[int | None, str, int, int, int]]


def shown(changes: Changes, key: int, **how: bool | Deduplication) -> MirroredVersion:
    """Return what is shown of a key: value, kind, epoch, milliseconds, diff."""
    options = ChangeOptions(columns=("k", "v"), **how)  # type: ignore[arg-type]
    batch = render(changes, TIMES_MS, options)
    assert batch.column("_commit_version").to_pylist() == sorted(
        batch.column("_commit_version").to_pylist()
    )
    return [
        (v, kind, epoch, int(time.timestamp() * 1000), diff)
        for k, v, kind, epoch, time, diff in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        )
        if k == key
    ]


def test_a_retraction_stands_before_its_insertion_and_epochs_in_order() -> None:
    assert shown(changed({1: 10}, EPOCHS), 1) == [
        (10, "update_preimage", 4, 40, -1),
        (11, "update_postimage", 4, 40, 1),
        (11, "update_preimage", 5, 50, -1),
        (12, "update_postimage", 5, 50, 1),
    ]


def test_an_update_without_a_change_is_shown_on_demand() -> None:
    found = shown(changed({1: 10}, EPOCHS), 1, deduplication=Deduplication.NONE)
    assert found[4:] == [
        (12, "update_preimage", 6, 60, -1),
        (12, "update_postimage", 6, 60, 1),
    ]


def test_updates_are_not_computed_on_demand() -> None:
    found = shown(changed({1: 10}, {4: {1: 11}}), 1, compute_updates=False)
    assert found == [(10, "delete", 4, 40, -1), (11, "insert", 4, 40, 1)]


def test_columns_are_those_that_are_wanted_and_those_of_the_changelog() -> None:
    batch = render(changed({}, {4: {1: 11}}), TIMES_MS, ChangeOptions(columns=("v",)))
    assert batch.schema.names[:2] == ["v", "_change_type"]
    assert "k" not in batch.schema.names
