"""Laws of views: what comes out of a plan, folded, is the batch query, at every position."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.errors import UpsertFlowError
from spark_upsert.plan.nodes import Scan
from spark_upsert.views.intervals import Pairs, RelationRows
from spark_upsert.views.plan_builder import prune_columns
from spark_upsert.views.relation import Relation, Step, changes_of, timed_changes_of
from spark_upsert.views.view import RefreshStrategy, bind, pairs_by_piece
from tests.support.seeds import seeds
from tests.support.view_cases import Row, between
from tests.support.view_plays import (
    P,
    World,
    canonical,
    changes,
    plan_of,
    records,
    rows_of,
)
from tests.support.view_tables import RealWorld, of_any_kind
from tests.support.view_trees import random_epoch, random_plan

RUNS = int(os.environ.get("VIEW_RUNS", "80"))
"""Random plans with a history each; ``VIEW_RUNS=20000`` is the long form."""

SLICES = 5

PLANS = sorted({case.plan for case in between(1, 28)})
"""Those of the cases: of each kind one at least."""

State = dict[Any, Row]


def batch(plan: P, tables: World | RealWorld, at: Mapping[str, int]) -> list[Row]:
    return [tuple(row.values()) for row in rows_of(plan.node, tables.contents(at))]


def by_key(relation: Relation, rows: list[Row]) -> State:
    assert relation.key is not None
    places = [relation.schema.names.index(name) for name in relation.key]
    found = {canonical([row[place] for place in places]): canonical(row) for row in rows}
    assert len(found) == len(rows), "two rows share a key"
    return found


def fold(relation: Relation, state: State, pairs: Pairs) -> None:
    """Apply pairs: an old row must be there as it is said, a new one must not."""
    given = changes(pairs)
    for old, new in given:
        assert old is not None or new is not None
        assert canonical(old) != canonical(new), "nothing changed"
    for row in (old for old, _ in given if old is not None):
        [(key, value)] = by_key(relation, [row]).items()
        assert state.pop(key, None) == value, "it retracts what is not there"
    for row in (new for _, new in given if new is not None):
        [(key, value)] = by_key(relation, [row]).items()
        assert key not in state, "it inserts what is there"
        state[key] = value


def advanced(
    chance: random.Random, tables: World | RealWorld, relation: Relation
) -> tuple[tuple[str, int], ...]:
    """Commit some epochs; return their tables and versions."""
    paths = list(dict.fromkeys(relation.paths))
    epochs = [random_epoch(chance, paths) for _ in range(chance.choice([1, 1, 1, 2, 3, 6]))]
    return tuple((epoch.table, tables.apply(epoch)) for epoch in epochs)


def delta(chance: random.Random, relation: Relation, step: Step) -> Pairs:
    """Return what a step changed, whole or range by range of the hash."""
    moved = [path for path in step.after if step.before[path] != step.after[path]]
    if chance.random() < 0.3:
        return changes_of(relation, step)
    pieces = ALL_HASHES.cut(3)
    if chance.random() < 0.3:
        compared = [
            pairs
            for piece in pieces
            for pairs in pairs_by_piece(
                relation, step, RefreshStrategy.SNAPSHOTS, rows=0, hash_range=piece
            )
        ]
        return Pairs.concat([Pairs.empty(relation.schema), *compared])
    if len(moved) == 1 and relation.depends_on_one_row(moved[0]) and chance.random() < 0.5:
        cut = [Step(step.before, step.after, hash_range=piece) for piece in pieces]
    else:
        cut = [Step(step.before, step.after, within=piece) for piece in pieces]
    return Pairs.concat([changes_of(relation, each) for each in cut])


def fold_each(
    chance: random.Random,
    plan: P,
    tables: World | RealWorld,
    relation: Relation,
    state: State,
    step: Step,
) -> None:
    """Apply what a step changed epoch by epoch; behind each it is the batch query there."""
    parts = [step]
    if chance.random() < 0.5:
        parts = [replace(step, within=piece) for piece in ALL_HASHES.cut(3)]
        moved = {path for path, _ in step.epochs}
        if len(moved) == 1 and relation.depends_on_one_row(*moved) and chance.random() < 0.5:
            parts = [replace(step, hash_range=piece) for piece in ALL_HASHES.cut(3)]
    found = [pairs for part in parts for pairs in timed_changes_of(relation, part)]
    pairs = Pairs.concat([each for each, _ in found])
    times = np.concatenate([each for _, each in found])
    at = dict(step.before)
    for time, (path, version) in enumerate(step.epochs, 1):
        at[path] = version
        fold(relation, state, pairs.filter(times == time))
        assert state == by_key(relation, batch(plan, tables, at)), f"at the time {time}"
    assert set(times) <= set(range(1, step.last_time + 1))


def check_reads(
    chance: random.Random, relation: Relation, expected: list[Row], at: Mapping[str, int]
) -> None:
    """Compare what is read at a position by range, by key and by values."""
    ranges = ALL_HASHES.cut(chance.choice([1, 2, 3]))  # Of three, each has few partners.
    rows = [row for piece in ranges for row in records(relation.scan(at, piece))]
    state = by_key(relation, expected)
    assert by_key(relation, rows) == state
    assert relation.key is not None
    if not expected:
        return
    sample = pa.RecordBatch.from_pylist(
        [
            dict(zip(relation.schema.names, row, strict=True))
            for row in chance.sample(expected, chance.randint(1, len(expected)))
        ],
        schema=relation.schema,
    )
    found = relation.look_up(sample.select(list(relation.key)), at)
    assert list(map(canonical, records(found.rows))) == list(map(canonical, records(sample)))
    assert bool(np.all(found.present))
    column = chance.choice(relation.schema.names)
    if pa.types.is_list(relation.schema.field(column).type):
        return
    check_having(relation, sample.select([column]), expected, at, ranges)


def check_having(
    relation: Relation,
    values: RelationRows,
    expected: list[Row],
    at: Mapping[str, int],
    ranges: list[HashRange],
) -> None:
    [column] = values.schema.names
    place = relation.schema.names.index(column)
    wanted = {canonical(value) for value in values.column(0).to_pylist()} - {None}
    having = [row for row in expected if canonical(row[place]) in wanted]
    found = [
        row
        for piece in ranges
        for rows in relation.find_matching(values, at, piece)
        for row in records(rows)
    ]
    assert by_key(relation, found) == by_key(relation, having)


def needed(plan: P, at: Mapping[str, int]) -> dict[str, int]:
    """Return the oldest version of each table that moves on and is read."""
    pins = [scan for scan in plan.node.walk() if isinstance(scan, Scan)]
    read = [(scan.path, scan.version) for scan in pins if scan.version is not None]
    return {
        path: min([version, *(pinned for where, pinned in read if where == path)])
        for path, version in at.items()
    }


def some_columns(plan: P, relation: Relation) -> P:
    """Return a plan with the key and every other column of another."""
    assert relation.key is not None
    names = [name for name in relation.schema.names if name not in relation.key]
    return plan.project(*relation.key, *names[::2])


def play(chance: random.Random, tables: World | RealWorld, *, count: int) -> None:
    for _ in range(chance.randint(0, 8)):
        tables.apply(random_epoch(chance, list(tables.shapes)))
    versions = tables.known_versions
    if chance.random() < 0.5:
        plan = P(plan_of(chance.choice(PLANS)))
        relation = bind(plan.node, tables.open)
    else:
        plan, relation = random_plan(chance, lambda node: bind(node, tables.open), versions)
    node = plan.node
    if isinstance(tables, RealWorld):
        plan = some_columns(plan, relation)
        node = prune_columns(plan.node)
        relation = bind(node, tables.open)
    at = {path: versions(path)[-1] for path in dict.fromkeys(relation.paths)}
    if not at:
        return
    state: State = {}
    fold(relation, state, changes_of(relation, Step({}, at)))
    assert state == by_key(relation, batch(plan, tables, at))
    for _ in range(count):
        epochs = advanced(chance, tables, relation)
        end = {**at, **dict(epochs)}
        if isinstance(tables, RealWorld):
            tables.disturb(chance, needed(plan, at))
            relation = bind(node, tables.open)
        if chance.random() < 0.5:
            fold_each(chance, plan, tables, relation, state, Step(at, end, epochs))
        else:
            fold(relation, state, delta(chance, relation, Step(at, end)))
        expected = batch(plan, tables, end)
        assert state == by_key(relation, expected)
        check_reads(chance, relation, expected, end)
        at = end


@seeds(SLICES)
def test_p2_folded_changes_of_a_view_are_the_batch_query(seed: int) -> None:
    for life in range(seed * RUNS // SLICES, (seed + 1) * RUNS // SLICES):
        chance = random.Random(life)
        try:
            play(chance, World(chance), count=5)
        except (AssertionError, UpsertFlowError) as error:
            error.add_note(f"life {life}")
            raise


@seeds(4)
@pytest.mark.parametrize("other", [False, True], ids=["indexes as played", "own indexes"])
@pytest.mark.sweep(1)
def test_p2_folded_changes_of_a_view_of_real_tables_are_the_batch_query(
    seed: int, other: bool
) -> None:
    for life in range(seed * RUNS // 16, (seed + 1) * RUNS // 16):
        chance = random.Random(life)
        try:
            tables = RealWorld(chance, has_own_indexes=other, kind=of_any_kind(chance))
            play(chance, tables, count=4)
        except (AssertionError, UpsertFlowError) as error:
            error.add_note(f"life {life}")
            raise
