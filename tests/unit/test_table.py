"""The public table: what it takes, what it refuses by name, what races must not lose."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
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
from spark_upsert.table.write.own_rows import envelope_of_rows
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


def orders(path: Path, *, sequence_by: tuple[str, ...] = ()) -> Table:
    columns = pa.schema({**COLUMNS, **{name: pa.int64() for name in sequence_by}})
    table = Table.create(str(path / "orders"), columns, keys=["id"], sequence_by=sequence_by)
    ones = {name: [1] for name in sequence_by}
    table.upsert(pa.table({"id": [1], "name": ["a"], "price": [10], **ones}))
    return table


# -- opening ----------------------------------------------------------------------------


def test_a_table_that_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        Table.open(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"id": pa.int8()}, id="another table"),
        pytest.param(COLUMNS, id="the same again"),
    ],
)
def test_to_create_over_a_table_is_an_error(
    tmp_path: Path, columns: dict[str, pa.DataType]
) -> None:
    one = orders(tmp_path)
    before = one.log.head()
    with pytest.raises(TableExistsError, match="orders"):
        Table.create(str(tmp_path / "orders"), pa.schema(columns), keys=["id"])
    assert one.log.head() == before


def test_to_ensure_a_table_opens_one_of_the_same_rules_only(tmp_path: Path) -> None:
    one = orders(tmp_path)
    own = one.log.head().schema
    assert one.ensure(replace(own, hash_seed=7)) == one.log.head()
    with pytest.raises(TableExistsError):
        one.ensure(TableSchema.of(own.columns, keys=own.columns.names[-1:]))


def test_tables_are_seeded_differently(tmp_path: Path) -> None:
    seeds = {orders(tmp_path / str(n)).log.head().schema.hash_seed for n in range(2)}
    assert len(seeds) == 2


def test_the_repr_says_where_and_how_much(tmp_path: Path) -> None:
    table = orders(tmp_path)
    assert repr(table).startswith(
        f"Table('{tmp_path}/orders', Manifest(version=1, rows=1, slices=1"
    )


# -- appending --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        pytest.param({"id": [1], "nmae": ["x"], "price": [1]}, "'nmae'", id="a mistyped column"),
        pytest.param({"id": [1], "name": ["x"]}, "'price'", id="a column less"),
        pytest.param({"id": [1]}, "'name'", id="nothing but the key"),
        pytest.param({"name": ["x"], "price": [1]}, "'id'", id="no key"),
        pytest.param(
            {"id": [1], "name": ["x"], "price": [1], "more": [1]}, "'more'", id="a column more"
        ),
        pytest.param({"id": [[1]], "name": ["x"], "price": [1]}, "'id'", id="a list as a key"),
    ],
)
def test_rows_with_other_columns_are_refused(tmp_path: Path, rows: Any, text: str) -> None:
    """A column that is left out would make every row a delete, or its values null."""
    table = orders(tmp_path)
    with pytest.raises(SchemaError) as caught:
        table.upsert(pa.table(rows))
    assert text in str(caught.value)
    assert table.snapshot().to_pylist() == [{"id": 1, "name": "a", "price": 10}]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        pytest.param({"id": ["one"], "name": ["x"], "price": [1]}, "'id'", id="a text as a number"),
        pytest.param({"id": [1], "name": ["x"], "price": [1.5]}, "'price'", id="a fraction lost"),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(tmp_path: Path, rows: Any, text: str) -> None:
    table = orders(tmp_path)
    with pytest.raises(DataError) as caught:
        table.upsert(pa.table(rows))
    assert text in str(caught.value)
    assert table.snapshot().to_pylist() == [{"id": 1, "name": "a", "price": 10}]


def test_rows_without_an_order_column_are_refused(tmp_path: Path) -> None:
    table = orders(tmp_path, sequence_by=("seq",))
    with pytest.raises(SchemaError, match="'seq'"):
        table.upsert(pa.table({"id": [1], "name": ["x"], "price": [1]}))


@pytest.mark.parametrize(
    ("deletes", "text"),
    [
        pytest.param("gnoe", "Did you mean 'gone'?", id="a mistyped name"),
        pytest.param("price", "boolean", id="a column that is not boolean"),
    ],
)
def test_a_column_that_cannot_mark_deletes_is_refused(
    tmp_path: Path, deletes: str, text: str
) -> None:
    table = orders(tmp_path)
    with pytest.raises(SchemaError) as caught:
        table.upsert(
            pa.table({"id": [1], "name": ["x"], "price": [1], "gone": [True]}), deletes=deletes
        )
    assert text in str(caught.value)


def test_a_row_of_nulls_is_a_row_unless_it_is_said_to_delete(tmp_path: Path) -> None:
    table = orders(tmp_path)
    rows = pa.table({"id": [1], "name": pa.nulls(1, pa.string()), "price": pa.nulls(1, pa.int64())})
    table.upsert(rows)
    assert table.snapshot().to_pylist() == [{"id": 1, "name": None, "price": None}]
    envelope = envelope_of_rows(table.log.head().schema, rows.schema, nulls_as_deletes=True)
    table.upsert(rows, envelope=envelope)
    assert table.snapshot().num_rows == 0


def test_columns_may_stand_in_any_order_and_case(tmp_path: Path) -> None:
    table = orders(tmp_path)
    table.upsert(pa.table({"PRICE": [2], "Name": ["b"], "id": [1]}))
    assert table.snapshot().to_pylist() == [{"id": 1, "name": "b", "price": 2}]


def test_numbers_that_fit_are_narrowed(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int8()}), keys=["id"])
    table.upsert(pa.table({"id": pa.array([7], pa.int64())}))
    assert table.snapshot().to_pylist() == [{"id": 7}]


def test_rows_of_several_chunks_and_slices_are_all_taken(tmp_path: Path) -> None:
    table = orders(tmp_path)
    whole = pa.table(
        {"id": list(range(100)), "name": [f"n{i}" for i in range(100)], "price": [1] * 100}
    )
    table.upsert(pa.concat_tables([whole.slice(10, 20), whole.slice(50, 3), whole.slice(0, 0)]))
    assert sorted(table.snapshot().column("id").to_pylist()) == [1, *range(10, 30), *range(50, 53)]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "booleans": (pa.bool_(), [True, False, None, True]),
    "texts": (pa.large_string(), ["", None, "é\0", "x" * 5000]),
    "dictionaries": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a", "b"]),
    "binaries": (pa.binary(2), [b"ab", None, b"\0\0", b"cd"]),
    "floats": (pa.float32(), [1.5, None, float("inf"), -0.0]),
    "decimals": (pa.decimal128(10, 2), [Decimal("1.00"), None, Decimal("-2.50"), Decimal("0.00")]),
    "dates": (pa.date32(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
    "times of a zone": (
        pa.timestamp("ms", tz="Asia/Tokyo"),
        [dt.datetime(2024, 1, d, tzinfo=dt.UTC) if d else None for d in (1, 0, 2, 3)],
    ),
    "lists": (pa.large_list(pa.int64()), [[1, None], None, [], [2]]),
    "structs": (pa.struct({"x": pa.int64()}), [{"x": 1}, None, {"x": None}, {"x": 2}]),
    "maps": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("b", None)]]),
    "lists of structs": (
        pa.list_(pa.struct({"x": pa.list_(pa.string())})),
        [[{"x": ["a"]}], None, [{"x": None}, None], []],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_as_they_went_in_over_updates_and_merges(
    tmp_path: Path, name: str
) -> None:
    type_, values = VALUES[name]
    table = Table.create(
        str(tmp_path / "t"), pa.schema({"id": pa.int64(), "v": type_}), keys=["id"]
    )
    for shift in (0, 1, 1):
        rotated = [*values[shift:], *values[:shift]]
        rows = pa.table(
            {"id": pa.array(range(4)), "v": pa.array(rotated, type_), "gone": [False] * 4}
        )
        table.upsert(rows, deletes="gone")
    table.compact(full=True)
    assert table.snapshot().sort_by("id").column("v").to_pylist() == rotated
    assert table.snapshot(1).sort_by("id").column("v").to_pylist() == values
    assert table.changes(3, 4).num_rows == 0  # The third epoch changed nothing.
    assert table.changes(3, 4, emit_unchanged=True).num_rows == 8


@pytest.mark.parametrize(
    "name", [n for n in VALUES if n not in ("lists", "structs", "maps", "lists of structs")]
)
def test_each_kind_of_key_is_found_again(tmp_path: Path, name: str) -> None:
    type_, values = VALUES[name]
    keys = list(dict.fromkeys(v for v in values if v is not None))
    table = Table.create(str(tmp_path / "t"), pa.schema({"k": type_, "v": pa.int64()}), keys=["k"])
    for version in (1, 2):
        commit = table.upsert(
            pa.table({"k": pa.array(keys, type_), "v": pa.array([version] * len(keys))})
        )
    assert commit is not None
    assert commit.counters["updates"] == len(keys)
    assert table.snapshot().num_rows == len(keys)


def test_zeros_of_both_signs_are_one_key_and_nan_is_one(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), pa.schema({"k": pa.float64(), "v": pa.int64()}), keys=["k"]
    )
    table.upsert(pa.table({"k": [0.0, float("nan")], "v": [1, 2]}))
    commit = table.upsert(pa.table({"k": [-0.0, -float("nan")], "v": [3, 4]}))
    assert commit is not None
    assert commit.counters["updates"] == 2
    assert sorted(table.snapshot().column("v").to_pylist()) == [3, 4]


# -- reading ----------------------------------------------------------------------------


def test_a_range_without_epochs_has_no_changes(tmp_path: Path) -> None:
    assert orders(tmp_path).changes(2, 2).num_rows == 0


def test_a_snapshot_without_columns_still_counts_its_rows(tmp_path: Path) -> None:
    assert orders(tmp_path).snapshot(columns=[]).num_rows == 1


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="Did you mean 'price'"):
        orders(tmp_path).snapshot(columns=["prize"])


def test_a_snapshot_of_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema(COLUMNS), keys=["id"])
    assert table.snapshot().schema == pa.schema(COLUMNS)
    assert table.changes().schema.names[-4:] == [
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_diff",
    ]


# -- races ------------------------------------------------------------------------------


def test_two_writers_that_add_columns_at_once_keep_both() -> None:
    store = MemoryStore()
    one, other = (make_table(store, schema_of(Scope.TABLE)) for _ in range(2))
    schema = one.log.head().schema
    plain = {"k": pa.int64(), "v": pa.int64()}
    with_x = schema.accept(pa.schema({**plain, "x": pa.int8()}), merge=True)
    with_y = schema.accept(pa.schema({**plain, "y": pa.string()}), merge=True)
    one.alter(with_x)
    other.alter(with_y)
    assert set(one.log.head().schema.columns.names) == {"k", "v", "x", "y"}


def test_a_type_that_another_writer_widened_is_not_narrowed_again() -> None:
    store = MemoryStore()
    narrow = schema_of(Scope.TABLE, value=pa.int8())
    one, other = (make_table(store, narrow) for _ in range(2))
    wide = narrow.accept(pa.schema({"k": pa.int64(), "v": pa.int64()}), merge=True)
    more = narrow.accept(pa.schema({"k": pa.int64(), "v": pa.int8(), "x": pa.int8()}), merge=True)
    one.alter(wide)
    other.alter(more)
    assert one.log.head().schema.columns.field("v").type == pa.int64()


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
    staged = stage_tasks(base, [[[Command(1, None)]], [[Command(1, None)]]])
    rows = pa.table({"k": [1], "v": [77], "gone": [True]})
    [other] = stage_rows(base, rows)
    epoch = WriteSet(base=base, staged=(staged[0], other))
    commit = table.commit(epoch)
    assert commit is not None
    assert commit.counters["deletes"] == 1
    assert rows_at(table) == {}


def stage_rows(base: Any, rows: pa.Table) -> list[Any]:
    from spark_upsert.table.write.stage import stage

    envelope = envelope_of_rows(base.manifest.schema, rows.schema, deletes="gone")
    return [stage(base, [envelope.commands(batch)]) for batch in rows.to_batches()]


@pytest.mark.parametrize("deleted_first", [True, False], ids=["before", "after"])
def test_a_command_staged_around_a_delete_that_is_then_forgotten_is_counted_once(
    deleted_first: bool,
) -> None:
    """The task counted it as stale, or as an update; the seal finds the key unknown."""
    table = make_table(
        MemoryStore(), schema_of(Scope.TABLE), properties={"tombstoneRetention": "0 epochs"}
    )
    apply_epoch(table, [[[Command(1, 1, 1), Command(2, 2, 1)]]])
    steps: list[Any] = []
    for is_delete in (deleted_first, not deleted_first):
        if is_delete:
            apply_epoch(table, [[[Command(1, None, 10)]]])
        else:
            steps.append(plan_epoch(table, [[[Command(1, 5, 5), Command(3, 3, 20)]]]))
    table.compact(full=True)
    assert table.log.head().low_water is not None
    commit = table.commit(steps[0])
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


@pytest.mark.parametrize("again", [("a",), ("b",), ("a", "b"), ("b", "a")], ids="+".join)
def test_an_epoch_of_two_writers_is_there_once_whoever_repeats_it(again: tuple[str, ...]) -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    first = plan_epoch(table, [[[Command(1, 1, 1)]], [[Command(2, 2, 1)]]])
    commit = table.commit(replace(first, transactions=of_writers("a", "b")))
    assert commit is not None
    assert commit.transactions == of_writers("a", "b")
    second = plan_epoch(table, [[[Command(3, 3, 3)]]])
    assert table.commit(replace(second, transactions=of_writers(*again))) is None
    assert rows_at(table) == {1: 1, 2: 2}


def test_an_epoch_is_refused_if_the_table_has_some_of_its_transactions() -> None:
    table = make_table(MemoryStore(), schema_of(Scope.TABLE))
    planned = plan_epoch(table, [[[Command(1, 1, 1)]]])
    table.commit(replace(planned, transactions=of_writers("a")))
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


def test_rows_of_a_collected_column_are_elements(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "tags": pa.string(), "hits": pa.int64()})
    rules = {"tags": Rule.COLLECT, "hits": Rule.SUM}
    table = Table.create(
        str(tmp_path / "t"), columns, keys=["id"], engine=MergeEngine(Engine.AGGREGATION, rules)
    )
    table.upsert(pa.table({"id": [1, 1], "tags": ["a", "b"], "hits": [1, 2]}))
    table.upsert(pa.table({"id": [1], "tags": [["c"]], "hits": [4]}))
    assert table.snapshot().to_pylist() == [{"id": 1, "tags": ["a", "b", "c"], "hits": 7}]
