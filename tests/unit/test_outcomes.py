"""What one command does, for each state of its key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import Scope, Ties
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.state.lookup import find
from spark_upsert.table.write.outcomes import Outcome, Outcomes, classify, count
from tests.support.model import Command
from tests.support.tables import batch_of, schema_of

ROW = Command("k", 1, 5)
TOMBSTONE = Command("k", None, 5)
T, E, A = Scope.TABLE, Scope.EPOCH, Scope.ARRIVAL


def classified(
    scope: Scope, entry: Command | None, command: Command, *, ties: Ties = Ties.LAST
) -> Outcomes:
    schema = replace(schema_of(scope, key=pa.string()), ties=ties)
    commands = Rows(schema, [BatchPart(batch_of(schema, [command]))])
    state = [] if entry is None else [(BatchPart(batch_of(schema, [entry])), 1)]
    keys = commands.take(["k"], np.array([0]))
    found = find(schema, state, hash_keys(keys, seed=schema.hash_seed), keys)
    return classify(commands, np.array([0]), found)


def outcomes_of(kinds: list[int]) -> Outcomes:
    no = np.zeros(len(kinds), dtype=np.bool_)
    return Outcomes(np.array(kinds, dtype=np.int8), no, no)


@pytest.mark.parametrize(
    ("scope", "entry", "command", "expected"),
    [
        (T, None, Command("k", 2, 1), "INSERT"),
        (T, None, Command("k", None, 1), "ABSENT"),
        (T, ROW, Command("k", 2, 6), "UPDATE"),
        (T, ROW, Command("k", None, 6), "DELETE"),
        (T, ROW, Command("k", 1, 5), "DUPLICATE"),
        (T, ROW, Command("k", 2, 5), "UPDATE"),
        (T, ROW, Command("k", None, 5), "DELETE"),
        (T, ROW, Command("k", 2, 4), "STALE"),
        (T, ROW, Command("k", None, 4), "STALE"),
        (T, TOMBSTONE, Command("k", 2, 6), "INSERT"),
        (T, TOMBSTONE, Command("k", None, 6), "ABSENT"),
        (T, TOMBSTONE, Command("k", 2, 5), "INSERT"),
        (T, TOMBSTONE, Command("k", None, 5), "DUPLICATE"),
        (T, TOMBSTONE, Command("k", 2, 4), "STALE"),
        (E, ROW, Command("k", 2, 4), "UPDATE"),
        (E, ROW, Command("k", 2, 5), "UPDATE"),
        (E, ROW, Command("k", None, 4), "DELETE"),
        (E, TOMBSTONE, Command("k", 2, 4), "INSERT"),
        (E, TOMBSTONE, Command("k", None, 4), "ABSENT"),
        (E, None, Command("k", None, 4), "ABSENT"),
        (A, None, Command("k", 2), "INSERT"),
        (A, ROW, Command("k", 2), "UPDATE"),
        (A, ROW, Command("k", 1), "UPDATE"),
        (A, ROW, Command("k", None), "DELETE"),
        (A, TOMBSTONE, Command("k", 2), "INSERT"),
        (A, TOMBSTONE, Command("k", None), "ABSENT"),
        (T, Command("other", 1, 9), Command("k", 2, 1), "INSERT"),
    ],
    ids=lambda v: v.value if isinstance(v, Scope) else str(v),
)
def test_the_outcome_of_a_command(
    scope: Scope, entry: Command | None, command: Command, expected: str
) -> None:
    assert Outcome(classified(scope, entry, command).kinds[0]).name == expected


@pytest.mark.parametrize(
    ("ties", "command", "expected"),
    [
        (Ties.LAST, Command("k", 2, 5), ("UPDATE", True)),
        (Ties.LAST, Command("k", 1, 5), ("DUPLICATE", False)),
        (Ties.LAST, Command("k", 2, 6), ("UPDATE", False)),
        (Ties.FIRST, Command("k", 2, 5), ("STALE", True)),
        (Ties.FIRST, Command("k", 1, 5), ("DUPLICATE", False)),
        (Ties.FIRST, Command("k", 2, 4), ("STALE", False)),
        (Ties.FAIL, Command("k", None, 5), ("DELETE", True)),
    ],
    ids=str,
)
def test_an_equal_order_with_another_content_is_a_tie(
    ties: Ties, command: Command, expected: tuple[str, bool]
) -> None:
    outcomes = classified(T, ROW, command, ties=ties)
    assert (Outcome(outcomes.kinds[0]).name, bool(outcomes.are_tied[0])) == expected


def test_each_outcome_is_counted_under_its_name() -> None:
    outcomes = outcomes_of([0, 1, 1, 2, 2, 2, 3, 4, 4, 5])
    assert count(outcomes) == Counters(
        inserts=1, updates=2, deletes=3, absent=1, stale=2, duplicates=1
    )


def test_nothing_is_counted_as_nothing() -> None:
    assert count(outcomes_of([])) == Counters()


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
def test_outcomes_stand_in_the_order_of_the_commands(scope: Scope) -> None:
    schema = schema_of(scope)
    commands = [Command(key, None if key % 3 else key, 1) for key in range(50)]
    batch = batch_of(schema, commands).sort_by("__hash")
    rows = Rows(schema, [BatchPart(batch)])
    found = find(schema, [], rows.hashes, rows.take(["k"], np.arange(50)))
    expected = [
        Outcome.INSERT if key % 3 == 0 else Outcome.ABSENT for key in batch["k"].to_pylist()
    ]
    assert classify(rows, np.arange(50), found).kinds.tolist() == expected
