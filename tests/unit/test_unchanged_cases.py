"""Tables whose commands leave values unchanged, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope
from spark_upsert.errors import DataError
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.write.group_commit import sealed
from spark_upsert.table.write.stage import Stash
from tests.support.unchanged_cases import (
    CASES,
    MERGES,
    Case,
    Epoch,
    Step,
    Upkeep,
    parse_counters,
    parse_rows,
    parse_steps,
    unknown_in,
    with_merges,
)
from tests.support.unchanged_tables import UnchangedTable

PENDING = {
    "a row of a key after the earlier of two moves": "not strayed: the newest move is kept",
}


def marked(*, counted: bool) -> list[Any]:
    """Return the cases, with a mark where the table fails; ``counted`` also compares counters."""
    return [pytest.param(case, marks=_marks(case, counted=counted), id=str(case)) for case in CASES]


def _marks(case: Case, *, counted: bool) -> tuple[pytest.MarkDecorator, ...]:
    reason = PENDING.get(case.name, "")
    if not counted and ("filled" in reason or "strayed" in reason):
        reason = ""
    return (pytest.mark.xfail(strict=True, reason=reason),) if reason else ()


@pytest.mark.parametrize("case", marked(counted=True))
def test_a_case(case: Case) -> None:
    table, before, commit = _played(case, case.parsed)
    check_rows(table, case)
    if case.fails:
        return
    assert commit is not None
    if case.changes is not None:
        changes = table.changes(before + 1, table.table.log.head().upper)
        assert sorted(changes, key=repr) == sorted(parse_rows(case.changes), key=repr)
    if case.counters is not None:
        expected = parse_counters(case.counters)
        found = {name: commit.counters.get(name, 0) for name in {*_COUNTERS, *expected}}
        assert found == {name: expected.get(name, 0) for name in found}


_COUNTERS = (
    *("inserts", "updates", "deletes", "absent", "rejected", "quarantined", "displaced"),
    *("retracted", "restored", "filled", "unknown", "strayed", "late"),
)
"""Zero unless a case says otherwise."""


def _played(case: Case, steps: Sequence[Step]) -> tuple[UnchangedTable, int, Any]:
    """Take the steps; returns the table, the version before the last step, and its commit."""
    table = UnchangedTable.of(case)
    for step in steps[:-1]:
        table.take(step)
    before = table.table.log.head().version
    if not case.fails:
        return table, before, table.take(steps[-1])
    with pytest.raises(DataError, match=_ERRORS[case.fails]):
        table.take(steps[-1])
    assert table.table.log.head().version == before
    return table, before, None


_ERRORS = {
    "unknown": r"column 'x' of 1 rows? was never sent \(for example k=1, order",
    "strayed": "came after the row of their key had moved",
    "tied": "have the order key of another row of their key",
}


def check_rows(table: UnchangedTable, case: Case) -> None:
    """Check the rows of a case, those that are unknown in a column, and the whole table."""
    table.check()
    assert table.rows() == {key: row for _, key, row in parse_rows(case.rows)}
    apart = {} if case.on_unknown is not OnUnknown.QUARANTINE else unknown_in_list(case.listed)
    if case.on_unknown is OnUnknown.QUARANTINE or case.on_error is ErrorPolicy.QUARANTINE:
        assert table.listed() == apart
    unknown = len(apart) or len(unknown_in(case.rows))
    assert getattr(table.table.log.head(), "unknown_rows", 0) == unknown


def unknown_in_list(listed: str) -> dict[int, tuple[str, ...]]:
    """Return unknown columns by key, from ``1: x``."""
    key, _, names = listed.partition(": ")
    return {int(key): tuple(names.split(","))} if key else {}


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
@pytest.mark.parametrize("case", marked(counted=False))
def test_compactions_change_no_case(case: Case, merge: Upkeep) -> None:
    """Case 44."""
    table, _, _ = _played(case, with_merges(case, merge))
    check_rows(table, case)
    for step in MERGES.values():
        table.take(step)
        check_rows(table, case)


def test_rows_of_each_version() -> None:
    """Cases 37 and 38."""
    table = UnchangedTable()
    for step in parse_steps("P5(n=0,x=a) | P10(n=1,x=·) | P7(n=7,x=b)"):
        table.take(step)
    assert [table.rows(version) for version in table.versions] == [
        {},
        {1: (0, "a")},
        {1: (1, "a")},
        {1: (1, "b")},
    ]
    snapshot = table.table.snapshot
    assert snapshot(columns=["n"]).to_pylist() == [{"n": 1}]
    assert snapshot(filter="x = 'b'").num_rows == 1
    assert snapshot(filter="x = 'a'").num_rows == 0
    assert snapshot(filter="x IS NULL").num_rows == 0


def test_of_two_writers_on_one_version_a_move_takes_the_value_of_the_earlier_commit() -> None:
    table = UnchangedTable()
    first, update, move = parse_steps("P1(n=0,x=a) | P3(n=·,x=b) | L5→2 2:C5(n=1,x=·)")
    table.take(first)
    assert isinstance(update, Epoch)
    assert isinstance(move, Epoch)
    staged = [table.stage(epoch) for epoch in (update, move)]
    for write_set in staged:
        table.commit(write_set)
    assert table.rows() == {2: (1, "b")}
    table.check()


def test_without_an_order_a_row_moves_without_its_values() -> None:
    table = UnchangedTable(scope=Scope.ARRIVAL)
    for step in parse_steps("P1(n=0,x=a) | L2→2 2:C2(n=1,x=·) | P3(n=5,x=b) L4→3 3:C4(n=·,x=·)"):
        table.take(step)
    assert table.rows() == {2: (1, None), 3: (None, None)}
    table.check()


def test_moves_are_not_committed_together_with_other_appends() -> None:
    """They take values from the table along, which a shared version decides only when it commits."""
    table = UnchangedTable()
    first, moves = parse_steps("P1(n=0,x=a) | L2→2 2:C2(n=1,x=·) L3→1 C3(n=2,x=·)")
    for step in (first, moves):
        table.take(step)
    schema = table.table.log.head().schema
    assert isinstance(moves, Epoch)
    with Stash(schema) as stash:
        stash.add(table.batch(schema, moves.commands[1:2]))
        assert sealed(schema, stash, None, LateRows.FAIL) is not None
    with Stash(schema) as stash:
        stash.add(table.batch(schema, moves.commands))
        assert sealed(schema, stash, None, LateRows.FAIL) is None


def test_of_two_writers_on_one_version_the_later_commit_decides_what_is_unknown() -> None:
    """Case 43."""
    insert, update = parse_steps("P5(n=0,x=a) | P10(n=1,x=·)")
    assert isinstance(insert, Epoch)
    assert isinstance(update, Epoch)
    table = UnchangedTable(on_unknown=OnUnknown.FAIL)
    staged = [table.stage(epoch) for epoch in (update, insert, update)]
    with pytest.raises(DataError, match="was never sent"):
        table.commit(staged[0])
    assert table.rows() == {}
    table.commit(staged[1])
    counters = table.commit(staged[2]).counters
    assert table.rows() == {1: (1, "a")}
    assert (counters["updates"], counters.get("unknown", 0)) == (1, 0)
    table.check()
