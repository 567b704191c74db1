"""A commit writes what only the newest version needs, and leaves behind what the table uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.errors import ContentionError, DataError
from spark_upsert.table.log import log as log_module
from spark_upsert.table.log.manifest import Commit, Kind, Transaction
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, with_truncates
from tests.support.model import Command
from tests.support.stores import MemorySink, MemoryStore
from tests.support.tables import (
    Ticks,
    append,
    apply_epoch,
    batch_of,
    changes_of,
    make_table,
    plan_epoch,
    rows_at,
    schema_of,
)

SCHEMA = schema_of(Scope.TABLE)
STRICT = replace(SCHEMA, ties=Ties.FAIL)


class RacedStore(MemoryStore):
    """Lets rivals commit right before the next put of a version, and counts the data files."""

    def __init__(self) -> None:
        super().__init__()
        self.rivals: list[Callable[[], Any]] = []
        self.created: list[str] = []

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.rivals and path.startswith("_log/"):
            # While a rival is at work, it has none itself.
            first, *others = self.rivals
            self.rivals = []
            first()
            self.rivals = others
        return super().put_if_absent(path, data)

    def create(self, path: str) -> MemorySink:
        self.created.append(path)
        return super().create(path)

    @property
    def files(self) -> set[str]:
        return {path for path in self.objects if path.startswith("data/")}


def raced(schema: TableSchema = SCHEMA) -> tuple[Table, RacedStore]:
    store = RacedStore()
    return make_table(store, schema, properties={"tombstoneRetention": "0 epochs"}), store


def used(table: Table) -> set[str]:
    """Return the files that some readable version needs."""
    head = table.log.head()
    first = {slice_.file.path for slice_ in table.log.at(head.since).slices}
    return first.union(*(c.paths for c in table.log.commits(head.since, head.upper)))


def a_delete_that_is_forgotten(table: Table, key: int, order: int) -> Callable[[], None]:
    def act() -> None:
        append(table, [Command(key, 1, order - 1)])
        append(table, [Command(key, None, order)])
        assert table.compact(full=True)
        assert table.log.head().forgot == table.log.head().version

    return act


def another_row(table: Table, key: int, order: int) -> Callable[[], Any]:
    return lambda: append(table, [Command(key, key, order)])


def with_truncate(table: Table, at: int, *tasks: Sequence[Command]) -> WriteSet:
    """Stage an epoch of which the first task holds a truncate."""
    base = table.at()
    schema = base.manifest.schema
    batches = [batch_of(schema, task) for task in tasks]
    batches[0] = with_truncates(batches[0], [pa.array([at])], schema)
    return WriteSet(base=base, staged=tuple(stage(base, [batch]) for batch in batches))


def committed(table: Table, planned: WriteSet) -> Commit:
    commit = table.commit(planned)
    assert commit is not None
    return commit


PLANNED = [Command(1, 1, 5), Command(2, 2, 90)]
BEFORE = [Command(1, 1, 1), Command(2, 2, 9)]

# -- three lost races --------------------------------------------------------------------


def test_three_lost_races_leave_no_file_of_rows_that_became_late() -> None:
    table, store = raced()
    planned = plan_epoch(table, [[PLANNED]])
    store.rivals = [a_delete_that_is_forgotten(table, key, 10 + key) for key in (7, 8, 9)]
    commit = committed(table, planned)
    assert commit.counters["rejected"] == 1
    assert rows_at(table) == {2: 2}
    assert store.files == used(table)


def test_three_lost_races_write_rows_without_the_late_ones_once() -> None:
    table, store = raced()
    planned = plan_epoch(table, [[PLANNED]])
    a_delete_that_is_forgotten(table, 7, 10)()
    store.rivals = [another_row(table, key, 50) for key in (3, 4, 5)]
    store.created.clear()
    commit = committed(table, planned)
    assert commit.counters["rejected"] == 1
    assert rows_at(table) == {2: 2, 3: 3, 4: 4, 5: 5}
    assert len(store.created) == 3 + 1
    assert store.files == used(table)


def test_three_lost_races_leave_no_file_of_a_truncate() -> None:
    table, store = raced()
    apply_epoch(table, [[BEFORE]])
    planned = with_truncate(table, 5, [Command(3, 3, 7), Command(4, 4, 2)])
    store.rivals = [another_row(table, key, 9) for key in (6, 7, 8)]
    commit = committed(table, planned)
    assert commit.kind is Kind.OVERWRITE
    assert rows_at(table) == {2: 2, 3: 3, 6: 6, 7: 7, 8: 8}
    assert table.check().is_sound
    assert store.files == used(table)


def test_three_lost_races_do_not_truncate_again_if_the_contents_are_the_same() -> None:
    table, store = raced()
    apply_epoch(table, [[BEFORE]])
    planned = with_truncate(table, 5, [Command(3, 3, 7)])
    columns = [
        SCHEMA.accept(SCHEMA.columns.append(pa.field(name, pa.string())), merge=True)
        for name in ("a", "b", "c")
    ]
    store.rivals = [partial(table.alter, wider) for wider in columns]
    store.created.clear()
    commit = committed(table, planned)
    assert commit.version == 5
    assert len(store.created) == 1
    assert rows_at(table) == {2: 2, 3: 3}
    assert table.check().is_sound


def test_a_lost_race_leaves_nothing_if_a_rival_has_committed_the_same() -> None:
    table, store = raced()
    transactions = (Transaction(writer="w", number=1),)
    planned = replace(plan_epoch(table, [[PLANNED]]), transactions=transactions)
    a_delete_that_is_forgotten(table, 7, 10)()
    same = replace(plan_epoch(table, [[[Command(2, 2, 90)]]]), transactions=transactions)
    store.rivals = [lambda: table.commit(same)]
    assert table.commit(planned) is None
    assert store.files == used(table)


# -- a truncate --------------------------------------------------------------------------


def test_a_truncate_is_not_made_by_an_epoch_that_is_refused_for_its_rows() -> None:
    table, store = raced(STRICT)
    apply_epoch(table, [[BEFORE]])
    planned = with_truncate(table, 5, [Command(3, 3, 7)], [Command(3, 4, 7)])
    staged = {file.path for file in planned.files}
    with pytest.raises(DataError, match="nothing says which is the later one"):
        table.commit(planned)
    assert table.log.head().version == 1
    assert rows_at(table) == {1: 1, 2: 2}
    assert store.files == used(table) | staged


def test_a_truncate_is_not_made_by_an_epoch_that_is_given_up_under_way() -> None:
    table, store = raced()
    apply_epoch(table, [[BEFORE]])
    planned = with_truncate(table, 5, [Command(3, 3, 7)])
    staged = {file.path for file in planned.files}

    def expire() -> None:
        append(table, [Command(8, 8, 9)])
        table.expire(retain_versions=0, safety_ms=0)

    store.rivals = [expire]
    with pytest.raises(ContentionError, match="given up by now"):
        table.commit(planned)
    assert rows_at(table) == {1: 1, 2: 2, 8: 8}
    assert store.files == used(table) | staged


@pytest.mark.parametrize("youngest", [0, 9], ids=["what is all younger", "an empty table"])
def test_a_truncate_writes_nothing_again_of(youngest: int) -> None:
    table, store = raced()
    if not youngest:
        apply_epoch(table, [[[Command(1, 1, 6), Command(2, 2, 9)]]])
    planned = with_truncate(table, 5, [Command(3, 3, 7)])
    store.created.clear()
    commit = committed(table, planned)
    assert commit.low_water is not None
    assert store.created == []
    assert rows_at(table) == ({3: 3} if youngest else {1: 1, 2: 2, 3: 3})
    assert commit.counters["inserts"] == 1


def test_a_truncate_counts_what_its_changes_show() -> None:
    """A row that stays is a pair without a change, one that a command meets is counted once."""
    table, _ = raced()
    rows = [Command(key, key, order) for key, order in ((1, 1), (2, 9), (3, 9), (4, 1))]
    apply_epoch(table, [[rows]])
    met = [Command(1, 0, 7), Command(2, 0, 10), Command(3, None, 10), Command(6, 6, 2)]
    commit = committed(table, with_truncate(table, 5, met))
    counters = Counters.from_json(commit.counters)
    assert counters.output_count == len(changes_of(table, 2))
    assert (counters.rejected, counters.retracted, counters.restored) == (1, 2, 0)
    assert commit.live_rows == len(rows_at(table)) == 2


def test_a_log_that_is_never_won_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "COMMIT_TRIES_MAX", 3)
    table, store = raced()
    planned = plan_epoch(table, [[[Command(1, 1, 1)]]])
    store.rivals = [another_row(table, key, 5) for key in (2, 3, 4, 5)]
    with pytest.raises(ContentionError, match="3 attempts"):
        table.commit(planned)
    assert Table(store, clock=Ticks()).log.head().version == 4
