"""Who wins is one order of the entries of a key, and everybody who asks gets its answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import Words, sort_words
from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import DIFF, PUT, Scope, TableSchema, Ties
from tests.support.model import Command, fold
from tests.support.stores import MemoryStore
from tests.support.tables import apply_epoch, changes_of, make_table, rows_at, schema_of


class Entry(NamedTuple):
    """An entry of the one key that there is."""

    order: int
    epoch: int
    task: int
    position: int
    value: int | None


BY_SCOPE = pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
RULES = st.tuples(st.sampled_from([Ties.LAST, Ties.FIRST]), st.booleans())
"""The rest of a rule: what ties are decided by, and whether the engine is ``first-row``."""


def rank(rule: Precedence, entry: Entry) -> tuple[Any, ...]:
    """Return what decides, but for ties: the greatest wins."""
    newest, place = entry.epoch, (entry.epoch, entry.task, entry.position)
    order = -entry.order if rule.first_row else entry.order
    if rule.scope is Scope.TABLE:
        return order, -newest if rule.ties is Ties.FIRST else newest
    if rule.scope is Scope.EPOCH:
        return -newest if rule.first_row else newest, order
    return tuple(-p for p in place) if rule.first_row else place


def winner_in_task(rule: Precedence, entries: Sequence[Entry]) -> Entry:
    sign = -1 if rule.ties is Ties.FIRST else 1
    return max(entries, key=lambda e: (rank(rule, e), sign * e.position))


def winner(rule: Precedence, entries: Sequence[Entry]) -> Entry:
    """Return the winner of entries of which no two are of one task and epoch."""
    return max(entries, key=lambda e: (rank(rule, e), e.value is not None, e.value))


# -- the rule alone -------------------------------------------------------------------------

SMALL = st.integers(0, 2)
VALUES = st.none() | SMALL


def of_one_task(count: int) -> st.SearchStrategy[list[Entry]]:
    """Return entries of one task, by epoch and position."""
    pairs = st.lists(st.tuples(SMALL, SMALL, VALUES), min_size=1, max_size=count)
    return pairs.map(
        lambda found: [
            Entry(order, epoch, 0, position, value)
            for position, (epoch, order, value) in enumerate(sorted(found, key=lambda f: f[0]))
        ]
    )


OF_MANY_TASKS = st.lists(
    st.tuples(SMALL, SMALL, SMALL, VALUES),
    min_size=1,
    max_size=7,
    unique_by=lambda found: (found[0], found[1]),
).map(
    lambda found: [
        Entry(order, epoch, task, 0, value)
        for epoch, task, order, value in sorted(found, key=lambda f: f[:2])
    ]
)
"""At most one entry of each task and epoch, in the order of these."""


class PublicationSettings:
    """The rule, asked about entries by their places."""

    def __init__(self, rule: Precedence, entries: Sequence[Entry]) -> None:
        self._rule = rule
        self._entries = entries
        self._orders = np.array([e.order for e in entries])
        self._epochs = np.array([e.epoch for e in entries], dtype=np.uint64)

    def best(self, groups: Sequence[Sequence[int]], *, is_one_task: bool) -> list[int]:
        members = np.array([place for group in groups for place in group])
        firsts = np.cumsum([0, *(len(group) for group in groups)])[:-1]
        found = self._rule.pick_winners(
            members,
            firsts,
            order=lambda at: [pa.array(self._orders[at])],
            epochs=lambda at: self._epochs[at],
            contents=None if is_one_task else self._contents,
        )
        return [int(place) for place in found]

    def _contents(self, at: Any) -> list[Words]:
        return sort_words([pa.array([self._entries[i].value for i in at], pa.int64())])

    def compared(self) -> Any:
        """Return how each pair compares, by all but the content."""
        one, other = (side.ravel() for side in np.indices((len(self._entries),) * 2))
        epochs = self._epochs.astype(np.int64)
        signs = self._rule.compare(
            order=np.sign(self._orders[one] - self._orders[other]).astype(np.int8),
            epoch=np.sign(epochs[one] - epochs[other]).astype(np.int8),
            place=np.sign(one - other).astype(np.int8),
        )
        return signs.reshape(len(self._entries), len(self._entries))


@BY_SCOPE
@given(rest=RULES, entries=of_one_task(7) | OF_MANY_TASKS)
def test_two_entries_compare_as_their_ranks_do(
    scope: Scope, rest: tuple[Ties, bool], entries: list[Entry]
) -> None:
    rule = Precedence(scope, *rest)
    ranks = [rank(rule, entry) for entry in entries]
    expected = [[(a > b) - (a < b) for b in ranks] for a in ranks]
    assert PublicationSettings(rule, entries).compared().tolist() == expected


@BY_SCOPE
@given(rest=RULES, entries=of_one_task(7), data=st.data())
def test_entries_of_one_task_may_be_grouped_in_any_way(
    scope: Scope, rest: tuple[Ties, bool], entries: list[Entry], data: st.DataObject
) -> None:
    rule = Precedence(scope, *rest)
    assert grouped(rule, entries, data, is_one_task=True) == winner_in_task(rule, entries)


@BY_SCOPE
@given(rest=RULES, entries=OF_MANY_TASKS, data=st.data())
def test_what_is_left_of_the_tasks_may_be_grouped_in_any_way(
    scope: Scope, rest: tuple[Ties, bool], entries: list[Entry], data: st.DataObject
) -> None:
    rule = Precedence(scope, *rest)
    found = grouped(rule, entries, data, is_one_task=False)
    assert found == winner(rule, entries)


def grouped(
    rule: Precedence, entries: list[Entry], data: st.DataObject, *, is_one_task: bool
) -> Entry:
    """Return the winner among the winners of some groups of the entries."""
    places = data.draw(st.permutations(range(len(entries))))
    cuts = data.draw(st.sets(st.integers(1, len(entries)), max_size=3))
    bounds = sorted({0, len(entries), *cuts})
    asked = PublicationSettings(rule, entries)
    groups = [places[low:high] for low, high in itertools.pairwise(bounds)]
    best = asked.best([asked.best(groups, is_one_task=is_one_task)], is_one_task=is_one_task)
    return entries[best[0]]


# -- everybody who asks ---------------------------------------------------------------------

EPOCHS = st.lists(
    st.lists(st.lists(st.tuples(st.integers(0, 1), VALUES), max_size=2), max_size=2),
    min_size=1,
    max_size=4,
)
"""Epochs of tasks of commands of one key: order and value, None to delete."""


def schema_with(rule: Precedence) -> TableSchema:
    engine = MergeEngine(Engine.FIRST_ROW) if rule.first_row else MergeEngine()
    return replace(schema_of(rule.scope), ties=rule.ties, engine=engine)


@BY_SCOPE
@given(rest=RULES, epochs=EPOCHS)
def test_reads_look_ups_changes_counters_and_compaction_agree(
    scope: Scope, rest: tuple[Ties, bool], epochs: list[list[list[tuple[int, int | None]]]]
) -> None:
    rule = Precedence(scope, *rest)
    table = make_table(MemoryStore(), schema_with(rule))
    entries: list[Entry] = []
    rows: dict[Any, Any] = {}
    for version, tasks in enumerate(epochs, start=1):
        # The engine takes no deletes.
        sent = [[(o, v or 0 if rule.first_row else v) for o, v in task] for task in tasks]
        staged = [
            winner_in_task(rule, [Entry(o, version, number, i, v) for i, (o, v) in enumerate(task)])
            for number, task in enumerate(sent)
            if task
        ]
        commit = apply_epoch(table, [[[Command(0, v, o) for o, v in task]] for task in sent])
        before, entries = entries, [*entries, *staged]
        if entries:
            best = winner(rule, entries)
            expected = {} if best.value is None else {0: best.value}
            assert rows_at(table) == expected
            assert looked_up(table.at().find, schema_with(rule)) == best.value
            rows = fold(changes_of(table, version, version + 1), rows)
            assert rows == expected
        assert commit.counters["stale"] == is_stale(rule, before, staged)
    table.compact(full=True)
    assert rows_at(table) == rows


def looked_up(find: Any, schema: TableSchema) -> int | None:
    keys = [pa.array([0])]
    found = find(hash_keys(keys, seed=schema.hash_seed), keys)
    diff, value = found.rows.take([DIFF, "v"], found.at)
    return value[0].as_py() if diff[0].as_py() == PUT else None


def is_stale(rule: Precedence, before: list[Entry], staged: list[Entry]) -> bool:
    """Return whether what an epoch brings loses to what was there, and says something else."""
    if not (before and staged):
        return False
    old, new = winner(rule, before), winner(rule, staged)
    says_the_same = rule.scope is Scope.TABLE and (old.order, old.value) == (new.order, new.value)
    return winner(rule, [old, new]) == old and not says_the_same
