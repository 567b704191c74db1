"""Fail every step of writes that leave values unchanged or move rows, before and after its effect.

After each fault the table has the rows of before or those of after, and the same write again ends as
if nothing had happened: with the marks in the schema, which are announced in a version of their own,
and the files in which a commit carries values from task to task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest

from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction
from tests.support.registers_model import Row
from tests.support.stores import MemoryStore, Moment
from tests.support.sweep import KINDS, Attempts, Process, State, state_of, store_of
from tests.support.unchanged_cases import Epoch, Step, parse_rows, parse_steps
from tests.support.unchanged_tables import UnchangedTable

STEPS = (
    ("P5(n=0,x=a) 3:P5(n=3,x=c)", "1: 0,a 3: 3,c"),
    ("P10(n=1,x=·) / 3:P4(n=·,x=z)", "1: 1,a 3: 3,c"),
    ("P7(n=7,x=b)", "1: 1,b 3: 3,c"),
    ("P11(n=·,x=d) / L12→2 2:C12(n=2,x=·) / 3:L13→4 4:C13(n=·,x=·)", "2: 2,d 4: 3,c"),
    ("merge", "2: 2,d 4: 3,c"),
    ("P9(n=9,x=e)", "2: 2,d 4: 3,c"),
    ("T12 2:P14(n=4,x=·)", "2: 4,? 4: 3,c"),
    ("restore 4", "1: 1,b 3: 3,c"),
)


def act(index: int, step: Step, store: Store) -> None:
    """Take a step, an epoch as one transaction."""
    table = UnchangedTable(store=store)
    if isinstance(step, Epoch):
        transaction = Transaction(writer="w", number=index)
        table.table.commit(replace(table.stage(step), transactions=(transaction,)))
    else:
        table.versions = [version for version, _ in enumerate(range(20))]
        table.take(step)


ACTS: list[Callable[[Store], None]] = [
    partial(act, index, step) for index, (text, _) in enumerate(STEPS) for step in parse_steps(text)
]


def rows_in(state: State) -> dict[int, Row]:
    """Return the rows of a table, which must be sound; none if there is no table."""
    store = store_of(state)
    if not state:
        return {}
    table = UnchangedTable(store=store)
    table.check()
    return table.rows()


@cache
def states() -> list[State]:
    """Return the state before each step, and behind the last one."""
    store = MemoryStore("memory:///swept")
    found = [state_of(store)]
    for each in ACTS:
        each(store)
        found.append(state_of(store))
    return found


def test_each_step_has_its_rows() -> None:
    for state, (text, rows) in zip(states()[1:], STEPS, strict=True):
        assert rows_in(state) == {key: row for _, key, row in parse_rows(rows)}, text


@pytest.mark.sweep(6)
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("index", range(len(STEPS)), ids=[text for text, _ in STEPS])
def test_a_fault_at_any_step_leaves_old_or_new(
    index: int, kind: type[BaseException], moment: Moment
) -> None:
    before, after = (rows_in(state) for state in states()[index : index + 2])
    attempts = Attempts(ACTS[index])
    look = cache(rows_in)
    for fault, left, _ in attempts.struck(states()[index], kind, moment):
        found = look(left.state)
        assert found in (before, after), fault
        assert not left.finished or found == after, fault
        again = attempts.attempt(left.state, Process.LAST)
        assert again.finished, fault
        assert look(again.state) == after, fault
