"""The changes that PostgreSQL decodes, without the values that it does not send, make its table.

Random transactions (`integration.unsent_changes`) are read by whole transactions, by two
partitions of the keys, and in any order; the expected rows are PostgreSQL's own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from integration.servers.postgres import Postgres
from integration.unsent_changes import COLUMNS, Change, Rows, oracle_table, transactions
from tests.support.registers_model import Command, OnUnknown, RegistersModel

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("POSTGRES_HISTORIES", "200"))


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with oracle_table(postgres) as connection:
        yield connection


def commits_of(
    connection: psycopg.Connection[Any], seed: int, *, moves: bool = True
) -> list[tuple[list[Change], Rows]]:
    """Return the changes and the rows of some commits."""
    with transactions(connection, seed, moves=moves) as history:
        return list(history.commits(history.dice.randint(2, 12)))


def in_partitions(changes: Sequence[Change], dice: random.Random) -> list[Command]:
    """Return commands as two partitions of the keys are read: each in its order."""
    commands = [command for change in changes for command in change.commands]
    halves = [[c for c in commands if (c.key or 0) % 2 == side] for side in (0, 1)]
    read = []
    while any(halves):
        read.append(dice.choice([half for half in halves if half]).pop(0))
    return read


def apply_in_epochs(
    model: RegistersModel, commands: Sequence[Command], dice: random.Random
) -> None:
    """Apply commands, cut into epochs."""
    left = list(commands)
    while left:
        count = dice.randint(1, 6)
        model.apply(left[:count])
        left = left[count:]


def test_the_model_has_the_rows_of_each_commit(connection: psycopg.Connection[Any]) -> None:
    """And it finds what the statements are meant to make: values not sent, and moves of rows."""
    unsent = moves = 0
    for seed in range(HISTORIES):
        model = RegistersModel(COLUMNS, OnUnknown.FAIL)
        for changes, rows in commits_of(connection, seed):
            model.apply([command for change in changes for command in change.commands])
            assert model.rows() == rows, f"seed {seed}"
            unsent += sum(len(change.unsent) for change in changes)
            moves += sum(change.is_move for change in changes)
    assert unsent > 5 * HISTORIES
    assert moves > HISTORIES / 4


def test_the_model_has_no_wrong_value_after_two_partitions(
    connection: psycopg.Connection[Any],
) -> None:
    unknown = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed)
        changes = [change for part, _ in commits for change in part]
        model = RegistersModel(COLUMNS)
        apply_in_epochs(model, in_partitions(changes, dice), dice)
        unknown += bool(model.unknown_rows)
        assert set(model.rows()) == set(commits[-1][1])
        for number, row in model.rows().items():
            lost = model.unknown_rows.get(number, ())
            for name, value, own in zip(COLUMNS, row, commits[-1][1][number], strict=True):
                assert value == own or name in lost, f"seed {seed}, key {number}, column {name}"
    assert unknown < HISTORIES / 4


def test_the_model_has_the_rows_after_any_order(connection: psycopg.Connection[Any]) -> None:
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed, moves=False)
        commands = [c for part, _ in commits for change in part for c in change.commands]
        dice.shuffle(commands)
        model = RegistersModel(COLUMNS)
        apply_in_epochs(model, commands, dice)
        assert model.rows() == commits[-1][1], f"seed {seed}"
