"""A batch costs what the tables cost that it touches, however many there are: it is counted."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.group import GroupTable, Member, Members, TableVersions
from spark_upsert.routed.plan import plan_routed, require_same
from spark_upsert.routed.stage import stage_routed
from spark_upsert.table.log.properties import LateRows
from tests.support.routed_worlds import transaction
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.unit.test_parking import ROWS, batch_of, plan_of, write


def beside(tables: int) -> MemoryStore:
    """Return a root of so many tables, each of one row."""
    root = MemoryStore()
    write(root, 0, [(f"t{number}", 1, 1) for number in range(tables)])
    write(root, 1, [("t3", 1, 1)])
    return root


def of_one_row(root: MemoryStore) -> Steps:
    """Write a batch of one row; return what was asked of the storage."""
    steps = Steps()
    store = FaultyStore(root, steps)
    options, batch = plan_of(root).options, transaction(2)
    plan = plan_routed(options, ROWS, root=store, late_rows=LateRows.REJECT)
    staged = stage_routed(
        pickle.loads(pickle.dumps(plan)), store, [batch_of([("t3", 2, 2)])], batch, 0, threads=1
    )
    commit_routed(store, options, [staged], batch)
    return steps


@pytest.mark.slow
def test_p7_one_row_costs_as_much_beside_many_tables_as_beside_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    of_row = Member.of_row

    def counted(row: dict[str, object]) -> Member:
        made.append(str(row["folder"]))
        return of_row(row)

    monkeypatch.setattr(Member, "of_row", counted)
    asked = {}
    for tables in (10, 150):
        root = beside(tables)
        made.clear()
        asked[tables] = len(of_one_row(root).names)
        assert set(made) <= {"t3"}
        assert GroupTable(root).at().members["t3"].rows == 1
        assert len(GroupTable(root).at().members) == tables
    assert asked[150] == asked[10]


def members(*folders: str) -> Members:
    root = MemoryStore()
    write(root, 0, [(folder, 1, 1) for folder in folders])
    return GroupTable(root).at().members


def test_places_are_what_the_members_have_also_behind_pickle() -> None:
    found = members("a", "b")
    places = pickle.loads(pickle.dumps(found.places))
    assert isinstance(places, TableVersions)
    assert dict(places) == {folder: member.place for folder, member in found.items()}
    assert "a" in places
    assert places.get("c") is None
    assert places.folder_of(found["b"].place.table_id) == "b"
    assert places.folder_of("0" * 32) is None


def test_members_that_wait_are_found_by_their_columns() -> None:
    found = members("a", "b", "c")
    changed = Members.of([found["a"], replace(found["b"], debt=2), replace(found["c"], parked=1)])
    assert [each.folder for each in changed.waiting()] == ["b", "c"]
    assert changed.names == ["a", "b", "c"]
    assert Members.of(()).waiting() == []
    require_same(found.places, "x", "x", None, "memory:///x/x")
