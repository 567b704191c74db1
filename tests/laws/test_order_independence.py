"""With a total order, the table depends on the set of commands alone (P4)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope
from tests.support.histories import (
    CONDITIONS,
    CompactionResult,
    Conditions,
    Step,
    WrittenEpoch,
    play,
    under,
)
from tests.support.model import Command, Model
from tests.support.tables import apply_epoch, plan_epoch, rows_at

COMMANDS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2), st.integers(0, 30)),
    max_size=12,
    unique_by=lambda command: (command[0], command[2]),
).map(lambda found: [Command(*each) for each in found])

DICE = st.randoms(use_true_random=False)


def final_rows(commands: Sequence[Command]) -> dict[int, int]:
    model = Model(Scope.TABLE)
    model.append(commands)
    return model.rows()


def scattered(commands: Sequence[Command], dice: random.Random) -> list[Step]:
    """Deliver commands in any order, over any epochs, tasks and batches, some of them again."""
    pending = [*commands, *(c for c in commands if dice.random() < 0.2)]
    dice.shuffle(pending)
    steps: list[Step] = []
    while pending or not steps:
        tasks = [
            [[pending.pop() for _ in range(min(len(pending), dice.randrange(4)))] for _ in range(2)]
            for _ in range(dice.randrange(4))
        ]
        steps.append(WrittenEpoch(tasks))
        if dice.random() < 0.2:
            steps.append(CompactionResult())
    return steps


@given(commands=COMMANDS, dice=DICE, conditions=CONDITIONS)
def test_batches_tasks_epochs_order_and_repeats_do_not_matter(
    commands: list[Command], dice: random.Random, conditions: Conditions
) -> None:
    with under(conditions):
        played = play(Scope.TABLE, scattered(commands, dice))
        assert rows_at(played.table) == final_rows(commands)


@given(commands=COMMANDS, dice=DICE, conditions=CONDITIONS)
def test_the_number_of_writers_and_who_wins_does_not_matter(
    commands: list[Command], dice: random.Random, conditions: Conditions
) -> None:
    """Two writers stage upon one version and commit in either order."""
    with under(conditions):
        played = play(Scope.TABLE, [])
        pending = list(commands)
        dice.shuffle(pending)
        while pending:
            sizes = [dice.randrange(1, 4) for _ in range(2)]
            taken = [[pending.pop() for _ in range(min(len(pending), size))] for size in sizes]
            epochs = [plan_epoch(played.table, [[commands]]) for commands in taken]
            for epoch in sorted(epochs, key=lambda _: dice.random()):
                commit = played.table.commit(epoch)
                assert commit is not None
                assert commit.live_rows == len(rows_at(played.table))
        assert rows_at(played.table) == final_rows(commands)


@given(commands=COMMANDS, dice=DICE, conditions=CONDITIONS)
def test_delivering_all_again_changes_nothing(
    commands: list[Command], dice: random.Random, conditions: Conditions
) -> None:
    with under(conditions):
        played = play(Scope.TABLE, scattered(commands, dice))
        before = rows_at(played.table)
        version = played.table.log.head().version
        apply_epoch(played.table, [[commands]])
        assert rows_at(played.table) == before
        assert not played.table.changes(version + 1).num_rows
