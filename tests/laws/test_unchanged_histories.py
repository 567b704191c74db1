"""A table whose commands leave values unchanged is a function of the set of its commands.

Random commands on few keys, with random options, in epochs and tasks, with replays, compactions,
expiry, restores and a second writer between any two steps (`tests.support.unchanged_histories`).
Rows that move to another key follow their source (`tests.support.registers_source`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

import pytest

from spark_upsert.core.schema import OnUnknown
from tests.support.registers_model import Command, Row
from tests.support.registers_source import Source
from tests.support.unchanged_cases import MERGES, Epoch
from tests.support.unchanged_histories import VALUES, history_of, play_all
from tests.support.unchanged_tables import UnchangedTable

HISTORIES = int(os.environ.get("UNCHANGED_HISTORIES", "80"))


def test_a_table_agrees_with_its_model() -> None:
    play_all([(seed, history_of(seed)) for seed in range(HISTORIES)])


def test_mirror_index_and_filters_agree_with_the_model() -> None:
    play_all([(seed, history_of(seed)) for seed in range(HISTORIES // 4)], is_followed=True)


def statements(dice: random.Random) -> Iterator[tuple[list[Command], dict[int, Row]]]:
    """Yield the commands of some statements, and the rows of the source after them."""
    source = Source(dice, moves=True, columns=[*VALUES])
    for _ in range(dice.randint(1, 8)):
        yield [c for _ in range(dice.randint(1, 4)) for c in source.statement()], source.expected


def maintain(table: UnchangedTable, dice: random.Random) -> None:
    """Compact the table, or open it again, or neither."""
    if dice.random() < 0.4:
        table.take(dice.choice([*MERGES.values()]))
    if dice.random() < 0.2:
        table.reopen()


SEVERAL_TASKS = 0.5
"""The share of epochs that two tasks write."""


def halves(commands: Sequence[Command]) -> list[list[Command]]:
    """Return the commands of even keys, and those of odd ones."""
    return [[c for c in commands if (c.key or 0) % 2 == side] for side in (0, 1)]


def at_random(commands: Sequence[Command], dice: random.Random) -> list[list[Command]]:
    """Return commands in two parts, each in order."""
    first = [dice.random() < 0.5 for _ in commands]
    return [
        [c for c, chosen in zip(commands, first, strict=True) if chosen is side]
        for side in (True, False)
    ]


def write(
    table: UnchangedTable,
    commands: Sequence[Command],
    dice: random.Random,
    *,
    is_divided_by_key: bool = True,
) -> dict[str, int]:
    """Write commands as one epoch, in a task or in two; returns the counters."""
    tasks: Sequence[Sequence[Command]] = [commands]
    if dice.random() < SEVERAL_TASKS:
        tasks = halves(commands) if is_divided_by_key else at_random(commands, dice)
    counters = table.write(Epoch(tuple(map(tuple, tasks)))).counters
    return {name: int(number) for name, number in counters.items() if number}


def test_rows_of_a_key_in_two_tasks_never_give_a_wrong_value() -> None:
    """Each task is in order. A value that a task has replaced before the other reads it is counted."""
    counted = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        table = UnchangedTable(VALUES)
        for commands, expected in statements(dice):
            counters = write(table, commands, dice, is_divided_by_key=False)
            if counters.keys() & {"strayed", "unknown"}:
                counted += 1
                break
            assert table.rows() == expected, f"seed {seed}"
            maintain(table, dice)
        table.check()
    assert 0 < counted < HISTORIES / 5


def test_rows_that_move_have_the_values_of_the_source() -> None:
    """With `OnUnknown.FAIL`; and replays from anywhere change nothing."""
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        table, sent = UnchangedTable(VALUES, on_unknown=OnUnknown.FAIL), list[Command]()
        expected = dict[int, Row]()
        for commands, expected in statements(dice):
            sent += commands
            write(table, commands, dice)
            assert table.rows() == expected, f"seed {seed}"
            maintain(table, dice)
        again = sent[dice.randrange(len(sent)) :] if sent else []
        cut = dice.randint(0, len(again))
        for part in (again[:cut], again[cut:]):
            counted = write(table, part, dice).keys() - {
                "rows",
                "duplicates",
                "stale",
                "superseded",
            }
            assert not counted, f"seed {seed}: {counted}"
        assert table.rows() == expected, f"seed {seed}"
        table.check()


def by_keys(commands: Sequence[Command], dice: random.Random) -> list[Command]:
    """Return commands as two partitions of the keys are read: each in its order."""
    left, read = halves(commands), list[Command]()
    while any(left):
        read.append(dice.choice([half for half in left if half]).pop(0))
    return read


@pytest.mark.parametrize("arrival", ["by keys", "in any order"])
def test_rows_that_move_never_have_a_wrong_value(arrival: str) -> None:
    """A value is the source's, or unknown; in any order, a wrong one is counted as strayed."""
    unknown = strayed = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        sent, expected = list[Command](), dict[int, Row]()
        for commands, rows in statements(dice):
            sent, expected = [*sent, *commands], rows
        every = [*sent]
        if arrival == "by keys":
            sent = by_keys(sent, dice)
        else:
            dice.shuffle(sent)
        table, strays = UnchangedTable(VALUES), 0
        while sent:
            count = dice.randint(1, 5)
            strays += write(table, sent[:count], dice).get("strayed", 0)
            sent = sent[count:]
            maintain(table, dice)
        found, lost = table.rows(), table.table.log.head().unknown_rows
        wrong = {
            (key, name)
            for key, row in found.items()
            for name, value, own in zip(VALUES, row, expected[key], strict=True)
            if value != own and not (value is None and lost)
        }
        # Of several moves of a key the newest one is remembered.
        from_keys = [c.key for c in every if c.moved_to is not None]
        is_remembered = len(from_keys) == len(set(from_keys))
        assert strays or not wrong or not is_remembered, f"seed {seed}: {wrong}"
        assert set(found) == set(expected), f"seed {seed}"
        unknown += bool(lost)
        strayed += bool(strays)
        table.check()
    assert unknown < HISTORIES * (0.5 if arrival == "by keys" else 0.7)
    assert strayed or arrival == "by keys"
