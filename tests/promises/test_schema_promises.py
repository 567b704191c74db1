"""One schema per read and per write while another process alters the table; effects of deletes.

Random histories of all paths: `tests.simulation.schema_changes`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import ORDERS_VERSION, Engine, MergeEngine
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import SchemaError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, Scan
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import ROW_TTL, ROW_TTL_BY, LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.group_commit import commands_of
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views import view as view_module
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.view import View
from tests.simulation.schema_changes import live
from tests.support.clocked import ClockedStore, Now
from tests.support.seeds import seeds
from tests.support.stores import FaultyStore, MemoryStore, Steps

COLUMNS = pa.schema(
    {"id": pa.int32(), "c": pa.string(), "n": pa.int32(), "d": pa.string(), "e": pa.string()}
)
ROWS = [
    {"id": 1, "c": "a", "n": 1, "d": "x", "e": "p"},
    {"id": 2, "c": "b", "n": 2, "d": "y", "e": "q"},
    {"id": 3, "c": "a", "n": 3, "d": "z", "e": "r"},
]


def wider(table: Table) -> None:
    own = table.schema
    types = {field.name: field.type for field in own.columns}
    types |= {"id": pa.int64(), "n": pa.int64()}
    table.alter(own.accept(pa.schema(types), merge=True))


def dropped(table: Table) -> None:
    table.drop_columns("d")


def added(table: Table) -> None:
    own = table.schema
    table.alter(own.accept(own.columns.append(pa.field("more", pa.string())), merge=True))


def replaced(table: Table) -> None:
    """Drop a column, widen two, and write a key that the narrow types do not hold."""
    dropped(table)
    wider(table)
    table.upsert(pa.table({"id": [2**40], "c": ["a"], "n": [2**41], "e": ["s"]}))


ALTERATIONS = {"drop": dropped, "widen": wider, "add": added, "all": replaced}


def indexed(store: MemoryStore) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]), {"indexBy": "c"})
    for row in ROWS:
        table.upsert(pa.Table.from_pylist([row], schema=COLUMNS))
    return table


def between_steps(
    alter: Callable[[Table], None], store: MemoryStore | None = None
) -> Iterator[tuple[Table, MemoryStore]]:
    """Yield tables; another process alters each of them after a step, the first, second, ..."""
    if store is None:
        indexed(store := MemoryStore())
    for step in range(40):
        own = MemoryStore()
        own.objects = dict(store.objects)
        steps = Steps()

        def watch(step: int = step, own: MemoryStore = own, steps: Steps = steps) -> None:
            if len(steps.names) == step + 1:
                alter(Table(own))

        steps.begin_anew(watch=watch)
        yield Table(FaultyStore(own, steps)), own
        if len(steps.names) <= step:
            return


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


READS: dict[str, Callable[[Table, int | None], pa.Table]] = {
    "filter": lambda table, version: table.snapshot(version, filter="c = 'a'"),
    "rows having": lambda table, version: table.rows_having("c", ["a"], version=version),
    "pieces": lambda table, version: pa.concat_tables(
        each.scan().read_all() for each in table.pieces(2, filter="c = 'a'", version=version)
    ),
    "get": lambda table, version: table.get([1, 3], version=version),
}
WANTED = [row for row in ROWS if row["c"] == "a"]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_p2_an_older_version_is_read_in_its_own_columns(
    read: Callable[[Table, int | None], pa.Table],
) -> None:
    table = indexed(MemoryStore())
    replaced(table)
    found = read(table, 3)
    assert by_id(found) == WANTED
    assert found.schema == COLUMNS


@pytest.mark.parametrize("alter", ALTERATIONS.values(), ids=ALTERATIONS)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_p2_the_newest_version_is_read_while_another_process_alters_the_table(
    read: Callable[[Table, int | None], pa.Table], alter: Callable[[Table], None]
) -> None:
    for table, _ in between_steps(alter):
        found = read(table, None)
        names = found.schema.names
        kept = [{name: row.get(name) for name in names} for row in WANTED]
        assert [row for row in by_id(found) if row["id"] < 4] == kept


@pytest.mark.parametrize("alter", ALTERATIONS.values(), ids=ALTERATIONS)
def test_p2_changes_are_of_one_schema_while_another_process_alters_the_table(
    alter: Callable[[Table], None],
) -> None:
    for table, _ in between_steps(alter):
        reader = table.scan_changes()
        found = [row for batch in reader for row in batch.to_pylist()]
        names = [name for name in reader.schema.names if name[0] != "_"]
        expected = [{name: row.get(name) for name in names} for row in ROWS]
        assert [{name: row[name] for name in names} for row in found][:3] == expected


@pytest.mark.parametrize("alter", [dropped, added], ids=["drop", "add"])
def test_p6_a_delete_by_keys_gets_through_whatever_columns_come_and_go(
    alter: Callable[[Table], None],
) -> None:
    for table, store in between_steps(alter):
        assert table.delete([1, 3]) is not None
        assert Table(store).get([1, 2, 3], columns=["id"]).to_pylist() == [{"id": 2}]


@pytest.mark.parametrize("alter", [dropped, added], ids=["drop", "add"])
def test_p6_rows_that_may_lack_columns_get_through(alter: Callable[[Table], None]) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "c": ["b"], "own": [1]})
    for table, store in between_steps(alter):
        table.upsert(rows, merge_schema=True)
        [row] = Table(store).get([1]).to_pylist()
        assert {name: value for name, value in row.items() if value is not None} == {
            "id": 1,
            "c": "b",
            "own": 1,
        }


COUNTED = Group(
    input=Scan.of("table", COLUMNS, ("id",)),
    keys=("c",),
    aggregates=(Aggregate("rows", AggregateKind.COUNT),),
)


@pytest.mark.parametrize("alter", ALTERATIONS.values(), ids=ALTERATIONS)
def test_p5_a_kept_view_is_right_or_asks_for_another_plan(alter: Callable[[Table], None]) -> None:
    store, first = MemoryStore(), MemoryStore()
    table = indexed(store)
    with patch.object(view_module, "open_store", lambda *_: store):
        refresh(View(COUNTED), Table(first))
    table.upsert(pa.Table.from_pylist([{**ROWS[0], "c": "z"}], schema=COLUMNS))
    refused = 0
    for own, raw in between_steps(alter, store):
        kept = MemoryStore()
        kept.objects = dict(first.objects)
        with patch.object(view_module, "open_store", lambda *_, own=own: own.store):
            try:
                refresh(View(COUNTED), Table(kept))
            except SchemaError as error:
                message = str(error)
                assert "make the plan anew" in message
                refused += 1
                continue
        found = {
            row["c"]: row["rows"] for row in MaterializedView.open(Table(kept)).rows().to_pylist()
        }
        newest = Counter(Table(raw).snapshot(columns=["c"]).column("c").to_pylist())
        assert found in ({"a": 1, "b": 1, "z": 1}, newest)
    assert bool(refused) is (alter is not added)


@pytest.mark.parametrize("columns", [None, ["c", "d"]], ids=["all", "named"])
def test_p2_a_kept_history_has_the_values_of_columns_that_were_dropped_since(
    columns: list[str] | None,
) -> None:
    table, kept = indexed(MemoryStore()), Table(MemoryStore())
    keep_history(table, kept, columns=columns, by=ValidBy.VERSION)
    table.upsert(pa.Table.from_pylist([{**ROWS[0], "d": "xx"}], schema=COLUMNS))
    dropped(table)
    table.upsert(pa.table({"id": pa.array([1, 2], pa.int32()), "c": ["b", "b"]}), merge_schema=True)
    keep_history(table, kept, columns=columns, by=ValidBy.VERSION)
    found = kept.snapshot(columns=["id", "from_version", "c", "d", "valid_to"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found if row["id"] < 3) == [
        (1, 1, "a", "x", 4),
        (1, 4, "a", "xx", 6),
        (1, 6, "b", None, None),
        (2, 2, "b", "y", 6),
        (2, 6, "b", None, None),
    ]


def test_p2_a_kept_history_shows_no_value_of_a_column_behind_its_drop() -> None:
    table, kept = indexed(MemoryStore()), Table(MemoryStore())
    keep_history(table, kept, by=ValidBy.VERSION)
    base = table.at()
    [commands] = commands_of(base.manifest, pa.Table.from_pylist([ROWS[0]], schema=COLUMNS))
    epoch = WriteSet(base=base, staged=(stage(base, [commands]),))
    dropped(table)
    assert table.commit(epoch) is not None
    keep_history(table, kept, by=ValidBy.VERSION)
    found = kept.snapshot(columns=["from_version", "d"], filter="id = 1").to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(1, "x"), (5, None)]


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("engine", [Engine.DEDUPLICATE, Engine.PARTIAL_UPDATE])
def test_p4_an_order_is_as_wide_as_the_column_that_it_is_of(
    engine: Engine, is_stored: bool
) -> None:
    columns = {"id": pa.int64(), "v": pa.string()}
    schema = TableSchema.of(
        pa.schema({**columns, **({"s": pa.int32()} if is_stored else {})}),
        keys=["id"],
        order=[pa.field("s", pa.int32())],
        engine=MergeEngine(engine),
    )
    table = Table(MemoryStore())
    table.ensure(schema, {"tombstoneRetention": "0 epochs"})

    def append(v: str | None, s: int, **how: Any) -> None:
        rows = pa.table({"id": [1], "v": [v], "s": pa.array([s], how.pop("type", pa.int64()))})
        table.upsert(rows, late_rows=LateRows.REJECT, **how)

    append("a", 5, type=pa.int32())
    table.delete(1)
    table.compact(full=True)  # The deletes are forgotten, up to an order of the narrow type.
    append("late", 4, type=pa.int32())
    assert table.snapshot().num_rows == 0
    append("b", 2**40, merge_schema=True)
    append("older", 7, type=pa.int32())
    table.compact(full=True)
    assert table.snapshot(columns=["v"]).to_pylist() == [{"v": "b"}]
    assert table.ensure(schema).schema.order[0].type == pa.int64()
    assert table.schema.to_json()["engine"]["version"] == ORDERS_VERSION
    assert TableSchema.from_json(table.schema.to_json()) == table.schema
    append("c", 2**41)
    assert Table(table.store).snapshot(columns=["v"]).to_pylist() == [{"v": "c"}]


def test_p4_an_order_of_several_columns_is_widened_in_a_kept_history_too() -> None:
    types = {"id": pa.int64(), "v": pa.string(), "a": pa.int32(), "b": pa.int32()}
    narrow, wide = pa.schema(types), pa.schema({**types, "b": pa.int64()})
    table, kept = Table(MemoryStore()), Table(MemoryStore())
    order = [narrow.field("a"), narrow.field("b")]
    table.ensure(TableSchema.of(narrow, keys=["id"], order=order))
    for v, b, schema in (("x", 1, narrow), ("y", 2**40, wide)):
        rows = pa.Table.from_pylist([{"id": 1, "v": v, "a": 1, "b": b}], schema=schema)
        table.upsert(rows, merge_schema=True)
        keep_history(table, kept, by=ValidBy.ORDER)
    kept.compact(full=True)
    rows = kept.snapshot(columns=["v", "valid_from"]).sort_by("v").to_pylist()
    assert [(row["v"], row["valid_from"]["b"]) for row in rows] == [("x", 1), ("y", 2**40)]


OWN = TableSchema.of(
    pa.schema({"id": pa.int64(), "v": pa.int64(), "w": pa.int64()}),
    keys=["id"],
    order=[pa.field("s", pa.int32())],
    engine=MergeEngine(Engine.PARTIAL_UPDATE, {}, {"v": "vs"}),
)


def of_own_order(v: int | None, s: int, vs: int | None, *, w: int | None = None) -> pa.Table:
    types = {"id": pa.int64(), "v": pa.int64(), "s": pa.int32(), "vs": pa.int64(), "w": pa.int64()}
    return pa.table({"id": [1], "v": [v], "s": [s], "vs": [vs], "w": [w]}, schema=pa.schema(types))


SENT = {
    "first": of_own_order(1, 10, 2**50),
    "second": of_own_order(2, 12, 40, w=9),
    "third": of_own_order(3, 14, 30),
    "delete": of_own_order(None, 11, None),
}


@pytest.mark.parametrize("compacts", [False, True], ids=["as they came", "compacted"])
def test_p4_a_delete_forgets_the_values_of_all_rows_before_it(compacts: bool) -> None:
    for order in permutations(SENT):
        table = Table(MemoryStore())
        table.ensure(OWN)
        for name in order:
            gone = pa.array([name == "delete"])
            rows = SENT[name].append_column("gone", gone)
            table.upsert(rows, deletes="gone", merge_schema=True)
            if compacts:
                table.compact(full=True)
        assert table.snapshot().to_pylist() == [{"id": 1, "v": 2, "w": 9}], order


def test_p4_a_delete_by_key_forgets_the_values_of_columns_with_orders_of_their_own() -> None:
    table = Table(MemoryStore())
    table.ensure(OWN)
    table.upsert(of_own_order(5, 10, 50))
    assert table.delete(1) is not None
    assert table.snapshot().num_rows == 0
    table.upsert(of_own_order(None, 11, None))
    assert table.snapshot().to_pylist() == [{"id": 1, "v": None, "w": None}]
    table.upsert(of_own_order(6, 11, 20))
    assert table.snapshot(columns=["v"]).to_pylist() == [{"v": 6}]


def test_p4_an_expired_row_forgets_the_values_of_columns_with_orders_of_their_own() -> None:
    now = Now()
    table = Table(ClockedStore(now), clock=now)
    table.ensure(OWN, {ROW_TTL: "1 day", ROW_TTL_BY: "_commit_timestamp"})
    table.upsert(of_own_order(5, 10, 50))
    now.advance(2 * 86_400)
    expired = table.expire_rows()
    assert expired is not None
    assert expired.deletes == 1
    table.upsert(of_own_order(None, 11, None))
    assert table.snapshot().to_pylist() == [{"id": 1, "v": None, "w": None}]
    table.upsert(of_own_order(6, 11, 20))
    assert table.snapshot(columns=["v"]).to_pylist() == [{"v": 6}]


def test_p5_a_value_without_the_column_that_orders_it_is_refused() -> None:
    table = Table(MemoryStore())
    table.ensure(OWN)
    with pytest.raises(SchemaError, match=r"sequenceBy\.v column 'vs'"):
        table.upsert(of_own_order(5, 10, 50).drop_columns("vs"))
    table.upsert(of_own_order(5, 10, 50, w=1).drop_columns(["v", "vs"]))
    assert table.snapshot().to_pylist() == [{"id": 1, "v": None, "w": 1}]


@pytest.mark.parametrize("by", ["keys", "filter"])
def test_p1_a_delete_that_finds_no_row_is_not_done_later(by: str) -> None:
    table = indexed(MemoryStore())
    transaction = Transaction(writer="w", number=1)
    how: dict[str, Any] = {"keys": 9} if by == "keys" else {"filter": "id = 9"}
    assert table.delete(**how) is None
    commit = table.delete(**how, transaction=transaction)
    assert commit is not None
    assert commit.counters["deletes"] == 0
    table.upsert(pa.Table.from_pylist([{**ROWS[0], "id": 9}], schema=COLUMNS))
    assert table.delete(**how, transaction=transaction) is None
    assert table.get(9).num_rows == 1


NAN = struct.unpack("<2d", bytes.fromhex("000000000000f87f010000000000f87f"))
"""Two NaN of other bits."""

FLOATS: dict[str, tuple[Any, Any, bool]] = {
    # The old value, the new value, and whether the row has changed.
    "zeros of both signs": (0.0, -0.0, True),
    "zeros of one sign": (-0.0, -0.0, False),
    "NaN of other bits": (*NAN, False),
    "zeros in a list": ([1.0, 0.0], [1.0, -0.0], True),
    "zeros in a struct": ({"x": -0.0}, {"x": 0.0}, True),
    "NaN in a list": ([NAN[0]], [NAN[1]], False),
}


def bits_of(values: Any) -> Any:
    """Return values in which a float is its bits."""
    if isinstance(values, dict):
        return {name: bits_of(value) for name, value in values.items()}
    if isinstance(values, list):
        return [bits_of(value) for value in values]
    return struct.pack("<d", values).hex() if isinstance(values, float) else values


@pytest.mark.parametrize("is_ordered", [False, True], ids=["by arrival", "with an order"])
@pytest.mark.parametrize(("old", "new", "is_change"), FLOATS.values(), ids=FLOATS)
def test_p2_snapshot_changes_and_counters_agree_about_floats(
    old: Any, new: Any, is_change: bool, is_ordered: bool
) -> None:
    schema = pa.schema({"id": pa.int64(), "f": pa.array([old]).type, "s": pa.int64()})
    table = Table(MemoryStore())
    order = [schema.field("s")] if is_ordered else []
    table.ensure(TableSchema.of(schema, keys=["id"], order=order))
    table.upsert(pa.Table.from_pylist([{"id": 1, "f": old, "s": 1}], schema=schema))
    was = bits_of(table.snapshot().to_pylist())
    commit = table.upsert(pa.Table.from_pylist([{"id": 1, "f": new, "s": 1}], schema=schema))
    assert commit is not None
    shown = bits_of(table.snapshot().to_pylist())
    changes = bits_of(table.changes(commit.version).select(schema.names).to_pylist())
    assert (shown != was) == is_change
    assert changes == ([*was, *shown] if is_change else [])
    if is_ordered:
        assert commit.counters["duplicates"] == int(not is_change)


def test_p2_a_float_key_of_the_other_sign_is_a_change_of_its_row() -> None:
    schema = pa.schema({"k": pa.float64(), "v": pa.int64()})
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(schema, keys=["k"]))
    for key in (0.0, -0.0):
        table.upsert(pa.table({"k": [key], "v": [1]}, schema=schema))
    changes = bits_of(table.changes(2).select(["k"]).to_pylist())
    assert changes == bits_of([{"k": 0.0}, {"k": -0.0}])
    assert bits_of(table.snapshot(columns=["k"]).to_pylist()) == changes[1:]


@seeds(16, quick=2)
def test_p6_every_path_goes_on_whenever_another_process_alters_the_table(seed: int) -> None:
    history = live(seed)
    assert history.visits, "nobody came between"
