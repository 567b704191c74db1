"""The reference model for unchanged values: its cases, and a source that applies rows in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from spark_upsert.core.schema import OnUnknown, Ties
from tests.support.registers_model import (
    Command,
    RegistersModel,
    Row,
    Tally,
    UnknownValueError,
    resolve,
)
from tests.support.registers_source import Source
from tests.support.seeds import seeds
from tests.support.unchanged_cases import (
    CASES,
    COLUMNS,
    Case,
    Epoch,
    Restore,
    ordered_by,
    parse_command,
    parse_counters,
    parse_rows,
    unknown_in,
)

_NOT_COUNTED = {"superseded", "duplicates", "rejected", "late"}
"""Counters that the model has under another name, or not at all."""

MODELED = [case for case in CASES if "forget" not in case.steps]
"""The model forgets no deletes, so it has no late rows."""


@pytest.mark.parametrize("case", MODELED, ids=str)
def test_the_model_agrees_with_the_case(case: Case) -> None:
    model = RegistersModel(COLUMNS, case.on_unknown, case.ties)
    pasts = [list(model.applied)]
    before: dict[int, Row] = {}
    tally = Tally()
    for version, step in enumerate(steps := case.parsed):
        before = model.rows()
        match step:
            case Restore(version=number):
                model.applied = list(pasts[number])
            case Epoch():
                commands = ordered_by(case.scope, version, step)
                if case.fails and step is steps[-1]:
                    _require_failure(model, commands, case, overwrite=step.overwrite)
                    break
                tally = model.apply(commands, overwrite=step.overwrite)
                pasts.append(list(model.applied))
    assert model.rows() == {key: row for _, key, row in parse_rows(case.rows)}
    if case.fails:
        return
    hidden = [*model.unknown_rows] if case.on_unknown is OnUnknown.QUARANTINE else []
    assert [f"{key}: {','.join(model.unknown_rows[key])}" for key in hidden] == (
        [case.listed] if case.listed else []
    )
    if not hidden:
        assert model.unknown_rows == unknown_in(case.rows)
    if case.changes is not None:
        assert _changes(before, model.rows()) == sorted(parse_rows(case.changes), key=repr)
    if case.counters is not None:
        expected = parse_counters(case.counters)
        found = {
            name: getattr(tally, name)
            for name in {*expected, "inserts", "updates", "deletes", "filled", "unknown"}
            if name not in _NOT_COUNTED
        }
        assert found == {name: expected.get(name, 0) for name in found}


def _require_failure(
    model: RegistersModel, commands: Sequence[Command], case: Case, *, overwrite: bool
) -> None:
    if case.fails in ("unknown", "strayed"):
        with pytest.raises(UnknownValueError):
            model.apply(commands, overwrite=overwrite)
    else:
        before = list(model.applied)
        assert model.apply(commands).tied
        model.applied = before


def _changes(before: dict[int, Row], after: dict[int, Row]) -> list[Any]:
    gone = [("-", key, row) for key, row in before.items() if after.get(key) != row]
    come = [("+", key, row) for key, row in after.items() if before.get(key) != row]
    return sorted([*gone, *come], key=repr)


@seeds(200, quick=20)
def test_commands_in_order_give_the_rows_of_the_source(seed: int) -> None:
    """And a replay from anywhere gives them again, with no counter but the ignored rows."""
    dice = random.Random(seed)
    source = Source(dice, moves=True)
    model = RegistersModel(COLUMNS, OnUnknown.FAIL)
    sent: list[Command] = []
    for _ in range(dice.randint(1, 12)):
        commands = [c for _ in range(dice.randint(1, 3)) for c in source.statement()]
        sent += commands
        model.apply(commands)
        assert model.rows() == source.expected
    again = sent[dice.randrange(len(sent)) :] if sent else []
    cut = dice.randint(0, len(again))
    for part in (again[:cut], again[cut:]):
        tally = model.apply(part)
        assert tally.ignored + tally.stale == tally.rows
    assert model.rows() == source.expected


@seeds(200, quick=20)
def test_commands_in_any_order_give_the_rows_of_the_source(seed: int) -> None:
    dice = random.Random(seed)
    source = Source(dice, moves=False)
    sent = [c for _ in range(dice.randint(1, 20)) for c in source.statement()]
    dice.shuffle(sent)
    model = RegistersModel(COLUMNS)
    while sent:
        count = dice.randint(1, 4)
        model.apply(sent[:count])
        sent = sent[count:]
    assert model.rows() == source.expected


def test_a_source_leaves_values_unchanged_and_moves_rows() -> None:
    source = Source(random.Random(1), moves=True)
    sent = [c for _ in range(1000) for c in source.statement()]
    assert source.unchanged > 300
    assert sum(c.moved_to is not None for c in sent) > 20


ALPHABET = ("P1(n=0,x=a)", "P2(n=·,x=b)", "D3", "P4(n=1,x=·)", "C5(n=·,x=c)", "T2", "P4(n=·,x=d)")


@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_an_entry_is_a_function_of_the_set_of_commands(count: int) -> None:
    for chosen in itertools.combinations(map(parse_command, ALPHABET), count):
        entries = [resolve(arrived, COLUMNS) for arrived in itertools.permutations(chosen)]
        assert all(entry == entries[0] for entry in entries)
        assert resolve([*chosen, *chosen], COLUMNS) == entries[0]


def test_ties_decide_per_register() -> None:
    first, second = parse_command("P4(n=1,x=·)"), parse_command("P4(n=2,x=b)")
    for ties, n in ((Ties.LAST, 2), (Ties.FIRST, 1)):
        registers = resolve([first, second], COLUMNS, ties).registers
        assert [register.value for register in registers] == [n, "b"]
