"""The public table: what it takes, what it refuses by name, what races must not lose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import (
    ContentionError,
    DataError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import (
    apply_epoch,
    make_table,
    plan_epoch,
    rows_at,
    schema_of,
    stage_tasks,
)

COLUMNS = {"id": pa.int64(), "name": pa.string(), "price": pa.int64()}


def orders(path: Path) -> Table:
    table = Table.create(str(path / "orders"), pa.schema(COLUMNS), keys=["id"])
    table.upsert(pa.table({"id": [1], "name": ["a"], "price": [10]}))
    return table


# -- opening ----------------------------------------------------------------------------


def test_a_table_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        Table.open(str(tmp_path / "nowhere"))


def test_a_table_is_not_created_over_another(tmp_path: Path) -> None:
    table = orders(tmp_path)
    head = table.log.head()
    for columns in ({"id": pa.int8()}, COLUMNS):
        with pytest.raises(TableExistsError, match="orders"):
            Table.create(str(tmp_path / "orders"), pa.schema(columns), keys=["id"])
    assert table.ensure(replace(head.schema, hash_seed=7)) == head
    with pytest.raises(TableExistsError):
        table.ensure(TableSchema.of(head.schema.columns, keys=["price"]))
    assert table.log.head() == head
    assert orders(tmp_path / "other").log.head().schema.hash_seed != head.schema.hash_seed


# -- appending --------------------------------------------------------------------------

ROW = {"id": [1], "name": ["x"], "price": [1]}


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        pytest.param(
            {"id": [1], "nmae": ["x"], "price": [1]}, SchemaError, "'nmae'", id="a mistyped column"
        ),
        pytest.param({"name": ["x"], "price": [1]}, SchemaError, "'id'", id="no key"),
        pytest.param({"id": [1]}, SchemaError, "'name'", id="nothing but the key"),
        pytest.param({**ROW, "id": [[1]]}, SchemaError, "'id'", id="a list as a key"),
        pytest.param({**ROW, "id": ["one"]}, DataError, "'id'", id="a text as a number"),
        pytest.param({**ROW, "price": [1.5]}, DataError, "'price'", id="a fraction lost"),
    ],
)
def test_rows_with_other_columns_or_values_are_refused(
    tmp_path: Path, rows: Any, error: type[Exception], text: str
) -> None:
    """A column that is left out would make every row a delete, or its values null."""
    table = orders(tmp_path)
    with pytest.raises(error, match=text):
        table.upsert(pa.table(rows))
    assert table.snapshot().to_pylist() == [{"id": 1, "name": "a", "price": 10}]


def test_a_column_that_cannot_mark_deletes_is_refused(tmp_path: Path) -> None:
    for deletes, text in {"gnoe": "Did you mean 'gone'", "price": "boolean"}.items():
        with pytest.raises(SchemaError, match=f"(?s){text}"):
            orders(tmp_path / deletes).upsert(pa.table({**ROW, "gone": [True]}), deletes=deletes)


def test_rows_of_several_chunks_and_slices_are_all_taken(tmp_path: Path) -> None:
    table = orders(tmp_path)
    names = [f"n{i}" for i in range(100)]
    whole = pa.table({"id": range(100), "name": names, "price": [1] * 100})
    table.upsert(pa.concat_tables([whole.slice(10, 20), whole.slice(50, 3), whole.slice(0, 0)]))
    assert sorted(table.snapshot().column("id").to_pylist()) == [1, *range(10, 30), *range(50, 53)]


# -- reading ----------------------------------------------------------------------------


def test_a_read_without_rows_or_columns_keeps_its_form(tmp_path: Path) -> None:
    table = orders(tmp_path)
    assert table.changes(2, 2).num_rows == 0
    assert table.snapshot(columns=[]).num_rows == 1
    with pytest.raises(SchemaError, match="Did you mean 'price'"):
        table.snapshot(columns=["prize"])
    empty = Table.create(str(tmp_path / "t"), pa.schema(COLUMNS), keys=["id"])
    assert empty.snapshot().schema == pa.schema(COLUMNS)
    added = ["_change_type", "_commit_version", "_commit_timestamp", "_diff"]
    assert empty.changes().schema.names[-4:] == added


# -- races ------------------------------------------------------------------------------


def test_two_writers_that_alter_the_schema_at_once_keep_both_changes() -> None:
    store = MemoryStore()
    narrow = schema_of(Scope.TABLE, value=pa.int8())
    one, other = (make_table(store, narrow) for _ in range(2))
    wide = narrow.accept(pa.schema({"k": pa.int64(), "v": pa.int64(), "y": pa.int8()}), merge=True)
    more = narrow.accept(pa.schema({"k": pa.int64(), "v": pa.int8(), "x": pa.int8()}), merge=True)
    one.alter(wide)
    other.alter(more)
    columns = one.log.head().schema.columns
    assert set(columns.names) == {"k", "v", "x", "y"}
    assert columns.field("v").type == pa.int64()


def test_an_epoch_staged_before_the_table_gained_a_column_can_be_committed() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE, key=pa.int8()))
    apply_epoch(table, [[[Command(1, 1, 1)]]])
    epoch = plan_epoch(table, [[[Command(1, 2, 2)], [Command(2, 2, 2)]], [[Command(1, 3, 3)]]])
    columns = {"k": pa.int64(), "v": pa.int64(), "x": pa.string()}
    table.alter(table.log.head().schema.accept(pa.schema(columns), merge=True))
    apply_epoch(table, [[[Command(2, 9, 1)]]])
    commit = table.commit(epoch)
    assert commit is not None
    assert rows_at(table) == {1: 3, 2: 2}
    assert (commit.counters["updates"], commit.counters["superseded"]) == (2, 1)


def test_two_deletes_of_one_key_are_no_ambiguity_whatever_their_values() -> None:
    """A delete that carries the last values of its row, as Debezium's do, is still a delete."""
    table = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    apply_epoch(table, [[[Command(1, 1)]]])
    base = table.at()
    [first] = stage_tasks(base, [[[Command(1, None)]]])
    rows = pa.record_batch({"k": [1], "v": [77], "gone": [True]})
    envelope = envelope_of_rows(base.manifest.schema, rows.schema, deletes="gone")
    epoch = WriteSet(base=base, staged=(first, stage(base, [envelope.commands(rows)])))
    commit = table.commit(epoch)
    assert commit is not None
    assert commit.counters["deletes"] == 1
    assert rows_at(table) == {}


@pytest.mark.parametrize("deleted_first", [True, False], ids=["before", "after"])
def test_a_command_staged_around_a_delete_that_is_then_forgotten_is_counted_once(
    deleted_first: bool,
) -> None:
    """The task counted it as stale, or as an update; the seal finds the key unknown."""
    forgetting = {"tombstoneRetention": "0 epochs"}
    table = make_table(MemoryStore(), schema_of(Scope.TABLE), properties=forgetting)
    apply_epoch(table, [[[Command(1, 1, 1), Command(2, 2, 1)]]])
    base = None if deleted_first else table.at()
    apply_epoch(table, [[[Command(1, None, 10)]]])
    commands = [[[Command(1, 5, 5), Command(3, 3, 20)]]]
    base = base or table.at()
    epoch = WriteSet(base=base, staged=tuple(stage_tasks(base, commands)))
    table.compact(full=True)
    assert table.log.head().low_water is not None
    commit = table.commit(epoch)
    assert commit is not None
    used = {name: n for name, n in commit.counters.items() if n}
    assert used == {"rows": 2, "inserts": 1, "rejected": 1}
    assert rows_at(table) == {2: 2, 3: 3}
    assert commit.live_rows == 2


def test_files_staged_for_nothing_are_removed_and_those_in_use_are_not() -> None:
    store = MemoryStore()
    table = make_table(store, schema_of(Scope.TABLE))
    transaction = Transaction(writer="w", number=1)
    first = plan_epoch(table, [[[Command(1, 1, 1)]]], transaction=transaction)
    second = plan_epoch(table, [[[Command(1, 1, 1)]]], transaction=transaction)
    assert table.commit(first) is not None
    assert table.commit(second) is None
    table.discard(first.staged)  # By who repeats a commit that succeeded, for example.
    assert {f.path for s in first.staged for f in s.files} <= set(store.objects)
    assert not {f.path for s in second.staged for f in s.files} & set(store.objects)
    assert rows_at(table) == {1: 1}


def of_writers(*names: str) -> tuple[Transaction, ...]:
    return tuple(Transaction(writer=name, number=1) for name in names)


def test_an_epoch_of_two_writers_is_there_once_whoever_repeats_it() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    first = plan_epoch(table, [[[Command(1, 1, 1)]], [[Command(2, 2, 1)]]])
    commit = table.commit(replace(first, transactions=of_writers("a", "b")))
    assert commit is not None
    assert commit.transactions == of_writers("a", "b")
    second = plan_epoch(table, [[[Command(3, 3, 3)]]])
    for again in ("a", "b", "ba"):
        assert table.commit(replace(second, transactions=of_writers(*again))) is None
    assert rows_at(table) == {1: 1, 2: 2}


def test_an_epoch_is_refused_if_the_table_has_some_of_its_transactions() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    first = plan_epoch(table, [[[Command(1, 1, 1)]]])
    table.commit(replace(first, transactions=of_writers("a")))
    both = replace(plan_epoch(table, [[[Command(2, 2, 1)]]]), transactions=of_writers("a", "b"))
    with pytest.raises(ContentionError, match=r"of 2 transactions .* 1 are in the table already"):
        table.commit(both)
    assert rows_at(table) == {1: 1}
    assert table.commit(replace(both, transactions=of_writers("b"))) is not None


def test_a_snapshot_of_many_small_runs_comes_in_few_batches() -> None:
    table = make_table(MemoryStore(), TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"]))
    for epoch in range(20):
        table.upsert(pa.table({"k": range(epoch * 50, epoch * 50 + 100)}))
    batches = list(table.at().read())
    assert len(batches) == 1
    assert sorted(batches[0].column("k").to_pylist()) == list(range(1050))
    assert sum(batch.num_rows for batch in table.at().read([])) == 1050


def test_nested_values_that_come_again_change_nothing(tmp_path: Path) -> None:
    lists = pa.list_(pa.struct({"x": pa.list_(pa.string())}))
    columns = pa.schema({"id": pa.int64(), "l": lists, "m": pa.map_(pa.string(), pa.int64())})
    rows = pa.Table.from_pylist(
        [
            {"id": 1, "l": [{"x": ["a"]}, None], "m": [("a", 1), ("b", None)]},
            {"id": 2, "l": None, "m": []},
        ],
        schema=columns,
    )
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    for _ in range(2):
        table.upsert(rows)
    table.compact(full=True)
    assert table.snapshot().sort_by("id").to_pylist() == rows.to_pylist()
    assert table.changes(2, 3).num_rows == 0
    assert table.changes(2, 3, emit_unchanged=True).num_rows == 4
