"""A restore is an epoch that turns the present table into an old one, and rewrites nothing."""

from __future__ import annotations

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataLossError, UpsertFlowError
from spark_upsert.metadata import summary
from spark_upsert.table.log.manifest import Kind
from spark_upsert.table.table import Table
from tests.support.lived import Lived
from tests.support.model import Command
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import (
    append,
    make_table,
    plan_epoch,
    rows_at,
    schema_of,
)

# -- what it costs and says --------------------------------------------------------------


@pytest.fixture
def table() -> Table:
    """Return a table of three epochs."""
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    append(table, [Command(1, 10, 1), Command(2, 20, 1)])
    append(table, [Command(1, None, 2), Command(3, 30, 2)])
    append(table, [Command(2, 21, 3)])
    return table


def test_restore_is_an_overwrite_that_accounts_for_its_rows_and_writes_nothing_but_a_version(
    table: Table,
) -> None:
    store = table.store
    assert isinstance(store, MemoryStore)
    objects, appended = set(store.objects), summary(table).bytes_appended
    commit = table.restore(1)
    assert commit is not None
    [new] = set(store.objects) - objects
    assert new.startswith("_log/")
    assert (commit.kind, commit.restored, commit.live_rows) == (Kind.OVERWRITE, 1, 2)
    counters = commit.counters
    assert (counters["rows"], counters["retracted"], counters["restored"]) == (0, 2, 2)
    assert summary(table).bytes_appended == appended, "what it takes over was written once"
    assert table.check().is_sound


def test_restore_of_the_present_is_no_version_and_a_restore_can_be_undone(table: Table) -> None:
    rows = rows_at(table)
    assert table.restore(3) is None
    table.restore(1)
    assert table.restore(1) is None
    assert table.restore(4) is None
    for version in (5, -1):
        with pytest.raises(UpsertFlowError, match=f"{version}"):
            table.restore(version)
    table.restore(3)
    assert rows_at(table) == rows
    table.restore(0)
    append(table, [Command(1, 11, 1)])
    assert rows_at(table) == {1: 11}


def test_deletes_that_were_forgotten_before_stay_forgotten() -> None:
    properties = {"tombstoneRetention": "1 epochs"}
    table = make_table(MemoryStore(), schema_of(Scope.TABLE), properties=properties)
    append(table, [Command(1, 10, 1)])
    append(table, [Command(1, None, 50)])
    for order in range(60, 64):
        append(table, [Command(2, order, order)])
    table.compact(full=True)
    mark, version = table.log.head().low_water, table.log.head().version
    append(table, [Command(3, 30, 70)], overwrite=True)
    assert table.log.head().low_water is None
    staged = plan_epoch(table, [[[Command(1, 11, 49)]]])
    table.restore(version)
    assert table.log.head().low_water == mark
    commit = table.commit(staged)
    assert commit is not None
    assert commit.counters["rejected"] == 1
    assert rows_at(table) == {2: 63}


def test_restored_rows_survive_the_expiry_of_their_version() -> None:
    lived = Lived(4)
    lived.now.advance(86_400)
    append(lived.table, [Command(9, 9, 9)], overwrite=True)
    lived.now.advance(86_400)
    lived.table.restore(3)
    for _ in range(2):
        lived.now.advance(86_400)
        lived.table.expire(retain_versions=0)
        lived.table.vacuum(grace_ms=0)
    forget_runs_and_logs()
    table = lived.reopened()
    assert table.log.head().since >= 6
    assert rows_at(table) == lived.expected(3)
    assert table.check().is_sound
    with pytest.raises(DataLossError):
        table.restore(3)
