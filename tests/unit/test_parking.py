"""Tables that fail in a routed write: what is parked, what stops the write, and what is applied."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.schema import TableSchema
from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.errors import (
    CorruptionError,
    DataError,
    OptionError,
    OtherTableError,
    SchemaError,
    StorageError,
)
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed import dead_letter
from spark_upsert.routed import plan as routed_plan
from spark_upsert.routed import replay as the_unpark
from spark_upsert.routed.commit import GroupCommit, commit_routed
from spark_upsert.routed.dead_letter import NAMELESS, ParkedTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import RoutedPlan, plan_routed, table_below
from spark_upsert.routed.replay import ReplayResult, drop, unpark
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore, Store
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.compaction import CompactionResult, due_jobs
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from tests.support.routed_worlds import transaction
from tests.support.stores import MemoryStore

ROWS = pa.schema({"topic": pa.string(), "id": pa.int64(), "v": pa.int64()})
OPTIONS = {"path": "/lake/{topic}", "keys": "id", "columnList": "id,v"}

Rows = list[tuple[str | None, int | None, int]]


def write(root: Store, number: int, *tasks: Rows, **given: Any) -> GroupCommit | None:
    """Write a batch; by default tables that fail are parked."""
    overwrite, query = given.pop("overwrite", False), given.pop("query", "q")
    options = RoutedOptions.parse({**OPTIONS, "onTableError": "park", **given})
    late, batch = LateRows.REJECT, transaction(number, query)
    plan = plan_routed(options, ROWS, root=root, overwrite=overwrite, late_rows=late)
    staged = [
        stage_routed(plan, root, [batch_of(rows)], batch, index, threads=1)
        for index, rows in enumerate(tasks)
    ]
    return commit_routed(root, options, staged, batch, overwrite=overwrite, late_rows=late)


def batch_of(rows: Rows) -> pa.RecordBatch:
    dicts = [dict(zip(ROWS.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(dicts, schema=ROWS)


def rows_in(root: Store, folder: str) -> dict[Any, Any]:
    found = table_below(root, folder).snapshot().to_pydict()
    return dict(zip(found["id"], found["v"], strict=True))


def counts(root: Store) -> dict[str, int]:
    return ParkedTable(root).counts()


@pytest.fixture
def root() -> MemoryStore:
    """A root with the table `a`, which lacks the column `v`, and nothing else."""
    store = MemoryStore()
    schema = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])
    table_below(store, "a").ensure(schema)
    return store


# -- what is parked, and what goes on ---------------------------------------------------------


def test_a_table_that_fails_is_parked_and_others_go_on(
    root: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spark_upsert"):
        write(root, 0, [("a", 1, 1), ("b", 1, 1)], [("a", 2, 2)])
        write(root, 1, [("a", 3, 3), ("b", 2, 2)])
    assert rows_in(root, "b") == {1: 1, 2: 2}
    assert counts(root) == {"a": 3}
    batch = GroupTable(root).at().batch
    assert batch is not None
    assert (batch.number, batch.rows, batch.parked) == (1, 2, 3)
    assert [each.message.count("table=a rows=2 batch=0") for each in caplog.records] == [1]
    first, second = ParkedTable(root).parked("a")
    assert (first.batch, first.rows, first.error) == (0, 2, "SCHEMA")
    assert "rows before these are parked" in second.reason


def test_parked_rows_are_applied_in_order_when_the_table_takes_them(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)], [("a", 2, 2)])
    write(root, 1, [("a", 1, 3)])
    with pytest.raises(SchemaError, match="table 'a'") as caught:
        unpark(root)
    assert caught.value.fields["table"] == "a"
    [done] = unpark(root, ["a"], given={"mergeSchema": "true"})
    assert (done.batches, done.rows, done.left) == (2, 3, 0)
    assert rows_in(root, "a") == {1: 3, 2: 2}
    assert counts(root) == {}
    member = GroupTable(root).at().members["a"]
    table = table_below(root, "a")
    assert (member.batch, member.parked) == (1, 0)
    assert member.place == table.log.head().place
    numbers = [each.number for c in table.log.commits(0, 4) for each in c.transactions]
    assert numbers == [0, 1]
    write(root, 2, [("a", 4, 4)])
    assert rows_in(root, "a") == {1: 3, 2: 2, 4: 4}


def test_a_table_that_cannot_take_its_rows_yet_does_not_stop_the_others(root: MemoryStore) -> None:
    narrow = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])
    mended = table_below(root, "b")
    mended.ensure(narrow)
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    assert counts(root) == {"a": 1, "b": 1}
    mended.alter(replace(mended.schema, columns=ROWS.remove(0)))
    applied: list[ReplayResult] = []
    with pytest.raises(SchemaError, match="table 'a'"):
        unpark(root, told=applied.append)
    assert [(each.name, each.rows) for each in applied] == [("b", 1)]
    assert (rows_in(root, "b"), counts(root)) == ({1: 1}, {"a": 1})


def test_an_outage_stops_an_unpark_at_once(
    root: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_below(root, "b").ensure(TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"]))
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    tried: list[str] = []

    def gone(root: Store, table: ParkedTable, folder: str, *_: object) -> ReplayResult:
        tried.append(folder)
        raise StorageError("the storage does not answer.")

    monkeypatch.setattr(the_unpark, "_unpark_one", gone)
    with pytest.raises(StorageError):
        unpark(root)
    assert tried == ["a"]


def test_batches_of_a_query_that_took_over_come_behind_those_before(root: MemoryStore) -> None:
    for number in range(2):
        write(root, number, [("a", 1, number)])
    write(root, 0, [("a", 1, 10)], query="a-later-one", takeOver="true")
    unpark(root, given={"mergeSchema": "true"})
    assert rows_in(root, "a") == {1: 10}
    commits = table_below(root, "a").log.commits(0, 5)
    told = [(each.writer, each.number) for commit in commits for each in commit.transactions]
    assert told == [("query:q", 0), ("query:q", 1), ("query:a-later-one", 0)]


def test_without_the_option_the_write_stops_and_names_the_table(root: MemoryStore) -> None:
    with pytest.raises(SchemaError, match="table 'a'"):
        write(root, 0, [("a", 1, 1), ("b", 1, 1)], onTableError="fail")
    assert counts(root) == {}
    assert GroupTable(root).at().batch is None


def test_a_write_that_may_not_park_stops_at_a_table_with_parked_rows(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)])
    with pytest.raises(DataError, match="table 'a': rows of earlier batches are parked") as caught:
        write(root, 1, [("a", 2, 2)], onTableError="fail")
    assert "upsertflow unpark" in caught.value.hint
    write(root, 1, [("b", 2, 2)], onTableError="fail")
    assert counts(root) == {"a": 1}


def test_an_overwrite_parks_nothing(root: MemoryStore) -> None:
    with pytest.raises(SchemaError, match="table 'a'"):
        write(root, 0, [("a", 1, 1)], overwrite=True)


def test_an_outage_parks_nothing() -> None:
    class Down(MemoryStore):
        def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
            if path.startswith("a/"):
                raise OSError("the storage is away")
            return super().read(path, bytes_max=bytes_max)

    root = Down()
    with pytest.raises(OSError, match="away"):
        write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    assert counts(root) == {}


def test_a_table_that_is_another_one_is_parked() -> None:
    root, other = MemoryStore(), MemoryStore()
    write(root, 0, [("b", 1, 1)])
    kept = {path: data for path, data in root.objects.items() if path.startswith("b/")}
    write(other, 0, [("b", 9, 9)])
    for path in kept:
        del root.objects[path]
    root.objects |= {p: data for p, data in other.objects.items() if p.startswith("b/")}
    write(root, 1, [("b", 2, 2)])
    assert [each.error for each in ParkedTable(root).parked()] == ["OTHER_TABLE"]
    with pytest.raises(OtherTableError, match="the group's table 'b'"):
        unpark(root)
    for path in [path for path in root.objects if path.startswith("b/")]:
        del root.objects[path]
    root.objects |= kept
    unpark(root)
    assert rows_in(root, "b") == {1: 1, 2: 2}


# -- all rows of a batch, or none -------------------------------------------------------------


def test_what_other_tasks_have_staged_is_parked_with_the_rest() -> None:
    root = MemoryStore()
    write(root, 0, [("new", 1, 1), ("new", 2, 2)], [("new", None, 3)])
    assert table_below(root, "new").log.try_head() is None
    assert counts(root) == {"new": 3}
    with pytest.raises(DataError, match="key 'id' is null"):
        unpark(root)
    unpark(root, given={"onError": "quarantine"})
    assert rows_in(root, "new") == {1: 1, 2: 2}
    assert len([*table_below(root, "new").quarantine()]) == 1


def test_a_table_that_fails_when_it_is_committed_is_parked() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1), ("b", 1, 1)], [("a", 1, 2)])  # Two values of a key, no order.
    assert rows_in(root, "b") == {1: 1}
    [parked] = ParkedTable(root).parked()
    assert (parked.name, parked.error, parked.rows) == ("a", "DATA", 2)
    unpark(root)
    assert rows_in(root, "a") == {1: 2}
    write(root, 1, [("a", 2, 2)])
    assert rows_in(root, "a") == {1: 2, 2: 2}


def test_rows_are_cut_into_pieces_and_come_back_in_order(
    root: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "CHUNK_BYTES", 64)
    write(root, 0, [("a", 1, value) for value in range(20)])
    [parked] = ParkedTable(root).parked()
    assert len(parked.pieces) > 3
    unpark(root, given={"mergeSchema": "true"})
    assert rows_in(root, "a") == {1: 19}


# -- rows without a table, and rows that nobody wants -----------------------------------------


@pytest.mark.parametrize("given", [{"onTableError": "park"}, {"onError": "quarantine"}], ids=str)
def test_rows_that_name_no_table_are_kept(given: dict[str, str]) -> None:
    root = MemoryStore()
    write(root, 0, [(None, 1, 1), ("b", 1, 1)], **{"onTableError": "fail", **given})
    [parked] = ParkedTable(root).parked()
    assert (parked.folder, parked.rows) == (NAMELESS, 1)
    assert "topic is null" in parked.reason
    assert unpark(root) == []
    [done] = drop(root, nameless=True)
    assert (done.rows, counts(root)) == (1, {})


def test_rows_that_name_no_table_stop_a_strict_write() -> None:
    with pytest.raises(DataError, match="topic is null"):
        write(MemoryStore(), 0, [(None, 1, 1)], onTableError="fail")


def test_what_is_dropped_is_gone_and_the_table_goes_on(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)])
    [done] = drop(root, ["a"])
    assert (done.name, done.rows) == ("a", 1)
    assert counts(root) == {}
    write(root, 1, [("a", 2, 2)], **{"table.a.mergeSchema": "true"})
    assert rows_in(root, "a") == {2: 2}


def test_a_name_for_which_nothing_is_parked_is_told(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)])
    with pytest.raises(OptionError, match="nothing is parked for 'x'"):
        unpark(root, ["x"])


@pytest.mark.parametrize(
    "name",
    ["schemaRegistry.password", "schema_registry.password", "table.*.Schema-Registry.Password"],
)
def test_secrets_are_not_kept_with_the_rows(name: str) -> None:
    options = RoutedOptions.parse(
        {
            **OPTIONS,
            "storage.secret_access_key": "s3cr3t",
            "schemaRegistry.url": "http://registry",
            "schemaRegistry.user": "me",
            name: "s3cr3t",
            "envelope": "kafka",
            "keySchema": "registry",
            "valueSchema": "registry",
            "keyFormat": "avro-confluent",
            "valueFormat": "avro-confluent",
        }
    )
    given = options.given("a")
    assert "s3cr3t" not in str(given)
    assert given["schemaRegistry.url"] == "http://registry"


# -- the command ------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, arguments)


def test_the_commands_show_apply_and_drop(tmp_path: Path) -> None:
    root = LocalStore(str(tmp_path))
    write(root, 0, [("a", 1, 1), (None, 5, 5)], [("a", None, 2)])
    shown = [
        json.loads(line) for line in run("parked", str(tmp_path), "--json").stdout.splitlines()
    ]
    assert [(line["name"], line["rows"], line["error"]) for line in shown] == [
        ("", 1, "DATA"),
        ("a", 2, "DATA"),
    ]
    assert "null" in run("unpark", str(tmp_path), "a").stderr
    assert "needs NAMES" in run("unpark", str(tmp_path), "--drop").stderr
    assert "--drop" in run("unpark", str(tmp_path), "--nameless").stderr
    result = run("unpark", f"{tmp_path}/{{topic}}", "a", "--set", "onError=quarantine", "--json")
    assert json.loads(result.stdout)["rows"] == 2
    assert rows_in(root, "a") == {1: 1}
    assert run("unpark", str(tmp_path), "--drop", "--nameless").exit_code == 0
    assert run("parked", str(tmp_path), "--json").stdout == ""


# -- damage that nobody has rows for ----------------------------------------------------------


def damaged(root: MemoryStore) -> RoutedPlan:
    """Damage a table that is due for compaction; return the plan of the next batch."""
    for number in range(2):
        write(root, number, [("old", number, number)])
    for path in root.objects:
        if path.startswith("old/") and "/_log/" not in path:
            root.objects[path] = b""
    return replace(plan_of(root), debts=(("old",),))


def plan_of(root: Store, **given: str) -> RoutedPlan:
    options = RoutedOptions.parse({**OPTIONS, "onTableError": "park", **given})
    return plan_routed(options, ROWS, root=root, late_rows=LateRows.REJECT)


def test_a_damaged_table_without_rows_is_not_compacted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = MemoryStore()
    plan = damaged(root)
    monkeypatch.setattr(
        Table,
        "compaction_jobs",
        lambda self, **_: due_jobs(self.log, self.log.now_ms(), full=True),
    )
    with caplog.at_level(logging.WARNING, "spark_upsert"):
        staged = stage_routed(plan, root, [batch_of([("new", 1, 1)])], transaction(2), 0)
    assert staged.compacted == ()
    assert "a table cannot be compacted, and is left as it is: table=old" in caplog.text
    strict = replace(plan, options=replace(plan.options, park=False))
    with pytest.raises(CorruptionError):
        stage_routed(strict, root, [batch_of([("new", 1, 1)])], transaction(2), 0)


def test_a_table_that_fails_in_its_compaction_alone_parks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = MemoryStore()
    write(root, 0, [("old", 1, 1)])
    plan = plan_of(root)
    base = table_below(root, "old").log.head()
    staged = stage_routed(plan, root, [batch_of([("new", 1, 1)])], transaction(1), 0)
    due = CompactionResult(base=base.place, taken=(), added=())

    def broken(_: Table, compacted: Iterable[CompactionResult]) -> int:
        if list(compacted):
            raise CorruptionError.in_file("x", "a file", "none")
        return 0

    monkeypatch.setattr(Table, "commit_compactions", broken)
    commit_routed(root, plan.options, [replace(staged, compacted=(("old", due),))], transaction(1))
    assert rows_in(root, "new") == {1: 1}
    assert counts(root) == {}


# -- data that no table can hold --------------------------------------------------------------


def test_p5_several_values_that_name_no_table_are_kept_together() -> None:
    root = MemoryStore()
    write(root, 0, [(None, 1, 1), ("x" * 300, 2, 2), ("b", 1, 1)], [("y" * 300, 3, 3), ("", 4, 4)])
    [parked] = ParkedTable(root).parked()
    assert (parked.folder, parked.rows, parked.name) == (NAMELESS, 4, "")
    found = [row["id"] for _, batch in ParkedTable(root).read(parked) for row in batch.to_pylist()]
    assert sorted(found) == [1, 2, 3, 4]
    assert rows_in(root, "b") == {1: 1}
    [done] = drop(root, nameless=True)
    assert (done.rows, counts(root)) == (4, {})


def test_a_value_that_is_no_utf8_names_no_table() -> None:
    root = MemoryStore()
    raw = pa.array([b"b\xff", b"b", b"b\xfe"], pa.binary())
    topics = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    numbers = pa.array([1, 2, 3], pa.int64())
    rows = pa.RecordBatch.from_arrays([topics, numbers, numbers], schema=ROWS)
    plan = plan_of(root)
    commit_routed(
        root, plan.options, [stage_routed(plan, root, [rows], transaction(0), 0)], transaction(0)
    )
    [parked] = ParkedTable(root).parked()
    assert (parked.folder, parked.rows) == (NAMELESS, 2)
    assert "the first because topic is no UTF-8" in parked.reason
    assert rows_in(root, "b") == {2: 2}


def test_a_fault_of_ours_parks_the_table_that_meets_it(
    monkeypatch: pytest.MonkeyPatch, root: MemoryStore
) -> None:
    plan_as_it_is = plan_upon

    def faulty(table: Table, *args: Any, **how: Any) -> Any:
        if table.store.url.endswith("/a"):
            raise IndexError("the value 'secret' of a row")
        return plan_as_it_is(table, *args, **how)

    monkeypatch.setattr(routed_plan, "plan_upon", faulty)
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    assert rows_in(root, "b") == {1: 1}
    [parked] = ParkedTable(root).parked()
    assert parked.error == "DATA"
    assert "(IndexError in test_parking.py, line " in parked.reason
    assert "secret" not in parked.reason
    with pytest.raises(DataError, match="table 'a': the rows cannot be written"):
        unpark(root)
    with pytest.raises(IndexError):
        write(MemoryStore(), 0, [("a", 1, 1)], onTableError="fail")
    assert counts(root) == {"a": 1}
    monkeypatch.setattr(routed_plan, "plan_upon", plan_as_it_is)
    unpark(root, given={"mergeSchema": "true"})
    assert rows_in(root, "a") == {1: 1}


def test_a_reason_shows_no_row(root: MemoryStore) -> None:
    write(root, 0, [("b", 77001, 1)], [("b", 77001, 77002), ("c", None, 77003), ("x" * 300, 1, 1)])
    said = " ".join(each.reason + each.hint for each in ParkedTable(root).parked())
    assert "different values in several tasks" in said
    assert "the key 'id' is null" in said
    assert "a folder name of 300 bytes" in said
    assert "7700" not in said
    assert "xxx" not in said


def test_options_given_to_unpark_hold_however_they_are_spelled(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)], mergeSchema="false")
    write(root, 1, [("a", 2, 2)], MERGESCHEMA="false")
    unpark(root, given={"merge_schema": "true"})
    assert rows_in(root, "a") == {1: 1, 2: 2}


def test_an_option_is_taken_back(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1), ("b", 1, 1)], **{"table.a.sequenceBy": "v", "mergeSchema": "true"})
    with pytest.raises(OptionError, match="sequenceBy"):
        unpark(root)
    unpark(root, given={"sequenceby": ""})
    assert rows_in(root, "a") == {1: 1}


def test_for_people_there_is_an_age_and_what_to_do(tmp_path: Path) -> None:
    write(LocalStore(str(tmp_path)), 0, [("b", 1, 1)], [("b", 1, 2)])
    shown = run("parked", str(tmp_path)).stdout
    assert "less than a second" in shown
    assert "b: give an order, --set sequenceBy=..." in shown
    assert f"upsertflow unpark {tmp_path} NAME" in shown
