"""Tables that fail in a routed write: what is parked, what stops the write, and what is applied."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.schema import TableSchema
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import (
    CorruptionError,
    DataError,
    DataLossError,
    OptionError,
    SchemaError,
    StorageError,
)
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed import commit, dead_letter, group, replay
from spark_upsert.routed import plan as routed_plan
from spark_upsert.routed.commit import GroupCommit, commit_routed
from spark_upsert.routed.dead_letter import NAMELESS, DeadLetterTable
from spark_upsert.routed.group import GroupTable, Member
from spark_upsert.routed.plan import RoutedPlan, plan_routed, table_below
from spark_upsert.routed.replay import ReplayResult, drop_dead_letters, replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore, Store
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.compaction import CompactionResult, due_jobs
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.retention import expiry
from spark_upsert.table.table import Table
from tests.support.calls import Recorded, raising
from tests.support.routed_worlds import transaction
from tests.support.stores import FaultyStore, MemoryStore, Steps

ROWS = pa.schema({"topic": pa.string(), "id": pa.int64(), "v": pa.int64()})
OPTIONS = {"path": "/lake/{topic}", "keys": "id", "columnList": "id,v"}

NARROW = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])
"""Of a table that has neither the column ``v`` nor an order."""

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
    columns = table_below(root, folder).snapshot().to_pydict()
    return dict(zip(columns["id"], columns["v"], strict=True))


def counts(root: Store) -> dict[str, int]:
    return DeadLetterTable(root).counts()


@pytest.fixture
def root() -> MemoryStore:
    """A root with the table `a`, which lacks the column `v`, and nothing else."""
    store = MemoryStore()
    table_below(store, "a").ensure(NARROW)
    return store


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
    first, second = DeadLetterTable(root).list_batches("a")
    assert (first.batch, first.rows, first.error) == (0, 2, "SCHEMA")
    assert "rows before these are parked" in second.reason


def test_parked_rows_are_applied_in_order_when_the_table_takes_them(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)], [("a", 2, 2)])
    write(root, 1, [("a", 1, 3)])
    with pytest.raises(SchemaError, match="table 'a'") as caught:
        replay_dead_letters(root)
    assert caught.value.fields["table"] == "a"
    [result] = replay_dead_letters(root, ["a"], options={"mergeSchema": "true"})
    assert (result.batches, result.rows, result.left) == (2, 3, 0)
    assert rows_in(root, "a") == {1: 3, 2: 2}
    assert counts(root) == {}
    member = GroupTable(root).at().members["a"]
    table = table_below(root, "a")
    assert (member.batch, member.parked) == (1, 0)
    assert member.place == table.log.head().version_ref
    numbers = [each.number for c in table.log.commits(0, 4) for each in c.transactions]
    assert numbers == [0, 1]
    write(root, 2, [("a", 4, 4)])
    assert rows_in(root, "a") == {1: 3, 2: 2, 4: 4}


def test_a_table_that_cannot_take_its_rows_yet_does_not_stop_the_others(root: MemoryStore) -> None:
    mended = table_below(root, "b")
    mended.ensure(NARROW)
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    assert counts(root) == {"a": 1, "b": 1}
    mended.alter(replace(mended.schema, columns=ROWS.remove(0)))
    applied: list[ReplayResult] = []
    with pytest.raises(SchemaError, match="table 'a'"):
        replay_dead_letters(root, on_result=applied.append)
    assert [(each.name, each.rows) for each in applied] == [("b", 1)]
    assert (rows_in(root, "b"), counts(root)) == ({1: 1}, {"a": 1})


def test_an_outage_stops_an_unpark_at_once(
    root: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_below(root, "b").ensure(NARROW)
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    unpark_one = Recorded(raising(StorageError("the storage does not answer.")))
    monkeypatch.setattr(replay, "_replay_one", unpark_one)
    with pytest.raises(StorageError):
        replay_dead_letters(root)
    assert len(unpark_one.calls) == 1


def test_batches_of_a_query_that_took_over_come_behind_those_before(root: MemoryStore) -> None:
    for number in range(2):
        write(root, number, [("a", 1, number)])
    write(root, 0, [("a", 1, 10)], query="a-later-one", takeOver="true")
    replay_dead_letters(root, options={"mergeSchema": "true"})
    assert rows_in(root, "a") == {1: 10}
    commits = table_below(root, "a").log.commits(0, 5)
    batches = [(each.writer, each.number) for commit in commits for each in commit.transactions]
    assert batches == [("query:q", 0), ("query:q", 1), ("query:a-later-one", 0)]


@pytest.mark.parametrize(
    ("rows", "given", "error", "reason"),
    [
        ([("a", 1, 1), ("b", 1, 1)], {"onTableError": "fail"}, SchemaError, "table 'a'"),
        ([("a", 1, 1)], {"overwrite": True}, SchemaError, "table 'a'"),
        ([(None, 1, 1)], {"onTableError": "fail"}, DataError, "topic is null"),
    ],
    ids=["without the option", "an overwrite", "rows without a table"],
)
def test_a_write_that_may_not_park_stops(
    root: MemoryStore, rows: Rows, given: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        write(root, 0, rows, **given)
    assert counts(root) == {}
    assert GroupTable(root).at().batch is None


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


def test_a_table_that_fails_when_it_is_committed_is_parked() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1), ("b", 1, 1)], [("a", 1, 2)])  # Two values of a key, no order.
    [parked] = DeadLetterTable(root).list_batches()
    assert (parked.name, parked.error, parked.rows) == ("a", "DATA", 2)
    replay_dead_letters(root)
    assert (rows_in(root, "a"), rows_in(root, "b")) == ({1: 2}, {1: 1})


def test_rows_are_cut_into_pieces_and_come_back_in_order(
    root: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter, "CHUNK_BYTES", 64)
    write(root, 0, [("a", 1, value) for value in range(20)])
    [parked] = DeadLetterTable(root).list_batches()
    assert len(parked.pieces) > 3
    replay_dead_letters(root, options={"mergeSchema": "true"})
    assert rows_in(root, "a") == {1: 19}


@pytest.mark.parametrize("other", [False, True], ids=["onTableError", "onError"])
def test_p5_several_values_that_name_no_table_are_kept_together(other: bool) -> None:
    root = MemoryStore()
    given = {"onTableError": "fail", "onError": "quarantine"} if other else {}
    tasks: list[Rows] = [
        [(None, 1, 1), ("x" * 300, 2, 2), ("b", 1, 1)],
        [("y" * 300, 3, 3), ("", 4, 4)],
    ]
    write(root, 0, *tasks, **given)
    [parked] = DeadLetterTable(root).list_batches()
    assert (parked.folder, parked.rows, parked.name) == (NAMELESS, 4, "")
    assert "topic is null" in parked.reason
    ids = [
        row["id"] for _, batch in DeadLetterTable(root).read(parked) for row in batch.to_pylist()
    ]
    assert sorted(ids) == [1, 2, 3, 4]
    assert rows_in(root, "b") == {1: 1}
    assert replay_dead_letters(root) == []
    [result] = drop_dead_letters(root, nameless=True)
    assert (result.rows, counts(root)) == (4, {})


def test_dropped_rows_are_gone_and_the_table_goes_on(root: MemoryStore) -> None:
    """Until then a write that may not park stops at the table."""
    write(root, 0, [("a", 1, 1)])
    with pytest.raises(DataError, match="table 'a': rows of earlier batches are parked"):
        write(root, 1, [("a", 2, 2)], onTableError="fail")
    write(root, 1, [("b", 2, 2)], onTableError="fail")
    with pytest.raises(OptionError, match="nothing is parked for 'x'"):
        replay_dead_letters(root, ["x"])
    [result] = drop_dead_letters(root, ["a"])
    assert (result.name, result.rows) == ("a", 1)
    assert counts(root) == {}
    write(root, 2, [("a", 2, 2)], **{"table.a.mergeSchema": "true"})
    assert rows_in(root, "a") == {2: 2}


@pytest.mark.parametrize(
    "name",
    ["schemaRegistry.password", "schema_registry.password", "table.*.Schema-Registry.Password"],
)
def test_secrets_are_not_kept_with_the_rows(name: str) -> None:
    registry = {"url": "http://registry", "user": "me"}
    given = {f"schemaRegistry.{part}": text for part, text in registry.items()}
    for part in ("key", "value"):
        given |= {f"{part}Schema": "registry", f"{part}Format": "avro-confluent"}
    secrets = {"storage.secret_access_key": "s3cr3t", name: "s3cr3t"}
    options = RoutedOptions.parse({**OPTIONS, "envelope": "kafka", **given, **secrets})
    assert "s3cr3t" not in str(options.given("a"))
    assert options.given("a")["schemaRegistry.url"] == "http://registry"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, arguments)


def test_the_commands_show_apply_and_drop(tmp_path: Path) -> None:
    root, path = LocalStore(str(tmp_path)), str(tmp_path)
    write(root, 0, [("a", 1, 1), (None, 5, 5)], [("a", None, 2)])
    lines = [json.loads(line) for line in run("dead-letters", path, "--json").stdout.splitlines()]
    shown = [(line["name"], line["rows"], line["error"]) for line in lines]
    assert shown == [("", 1, "DATA"), ("a", 2, "DATA")]
    assert "null" in run("replay", path, "a").stderr
    assert "needs NAMES" in run("replay", path, "--drop").stderr
    assert "--drop" in run("replay", path, "--nameless").stderr
    result = run("replay", f"{path}/{{topic}}", "a", "--set", "onError=quarantine", "--json")
    assert json.loads(result.stdout)["rows"] == 2
    assert rows_in(root, "a") == {1: 1}
    assert run("replay", path, "--drop", "--nameless").exit_code == 0
    assert run("dead-letters", path, "--json").stdout == ""


def damaged(root: MemoryStore) -> RoutedPlan:
    """Damage a table that is due for compaction; return the plan of the next batch."""
    for number in range(2):
        write(root, number, [("old", number, number)])
    for path in root.objects:
        if path.startswith("old/") and "/_log/" not in path:
            root.objects[path] = b""
    return replace(plan_of(root), compaction_folders=(("old",),))


def plan_of(root: Store, **given: str) -> RoutedPlan:
    options = RoutedOptions.parse({**OPTIONS, "onTableError": "park", **given})
    return plan_routed(options, ROWS, root=root, late_rows=LateRows.REJECT)


def test_a_damaged_table_without_rows_is_not_compacted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = MemoryStore()
    plan = damaged(root)
    all_jobs = lambda self, **_: due_jobs(self.log, self.log.now_ms(), full=True)  # noqa: E731
    monkeypatch.setattr(Table, "compaction_jobs", all_jobs)
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
    due = CompactionResult(base=base.version_ref, taken=(), added=())

    def broken(_: Table, compacted: Iterable[CompactionResult]) -> int:
        if list(compacted):
            raise CorruptionError.in_file("x", "a file", "none")
        return 0

    monkeypatch.setattr(Table, "commit_compactions", broken)
    commit_routed(root, plan.options, [replace(staged, compacted=(("old", due),))], transaction(1))
    assert rows_in(root, "new") == {1: 1}
    assert counts(root) == {}


def test_a_value_that_is_no_utf8_names_no_table() -> None:
    root = MemoryStore()
    raw = pa.array([b"b\xff", b"b", b"b\xfe"], pa.binary())
    topics = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    numbers = pa.array([1, 2, 3], pa.int64())
    rows = pa.RecordBatch.from_arrays([topics, numbers, numbers], schema=ROWS)
    plan = plan_of(root)
    staged = stage_routed(plan, root, [rows], transaction(0), 0)
    commit_routed(root, plan.options, [staged], transaction(0))
    [parked] = DeadLetterTable(root).list_batches()
    assert (parked.folder, parked.rows) == (NAMELESS, 2)
    assert "the first because topic is no UTF-8" in parked.reason
    assert rows_in(root, "b") == {2: 2}


def test_a_fault_of_this_release_parks_the_table_that_meets_it(
    monkeypatch: pytest.MonkeyPatch, root: MemoryStore
) -> None:
    def faulty(table: Table, *args: Any, **how: Any) -> Any:
        if table.store.url.endswith("/a"):
            raise IndexError("the value 'secret' of a row")
        return plan_table_write(table, *args, **how)

    monkeypatch.setattr(routed_plan, "plan_table_write", faulty)
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    assert rows_in(root, "b") == {1: 1}
    [parked] = DeadLetterTable(root).list_batches()
    assert parked.error == "DATA"
    assert "(IndexError in test_parking.py, line " in parked.reason
    assert "secret" not in parked.reason
    with pytest.raises(DataError, match="table 'a': the rows cannot be written"):
        replay_dead_letters(root)
    with pytest.raises(IndexError):
        write(MemoryStore(), 0, [("a", 1, 1)], onTableError="fail")
    assert counts(root) == {"a": 1}


def test_a_reason_shows_no_row(root: MemoryStore) -> None:
    write(root, 0, [("b", 77001, 1)], [("b", 77001, 77002), ("c", None, 77003), ("x" * 300, 1, 1)])
    said = " ".join(each.reason + each.hint for each in DeadLetterTable(root).list_batches())
    assert "different values in several tasks" in said
    assert "the key 'id' is null" in said
    assert "a folder name of 300 bytes" in said
    assert "7700" not in said
    assert "xxx" not in said


def test_options_given_to_unpark_hold_however_they_are_spelled(root: MemoryStore) -> None:
    write(root, 0, [("a", 1, 1)], mergeSchema="false")
    write(root, 1, [("a", 2, 2)], MERGESCHEMA="false", **{"table.a.sequenceBy": "v"})
    with pytest.raises(OptionError, match="sequenceBy"):
        replay_dead_letters(root, options={"merge_schema": "true"})
    replay_dead_letters(root, options={"merge_schema": "true", "sequenceby": ""})
    assert rows_in(root, "a") == {1: 1, 2: 2}


def test_for_people_there_is_an_age_and_what_to_do(tmp_path: Path) -> None:
    write(LocalStore(str(tmp_path)), 0, [("b", 1, 1)], [("b", 1, 2)])
    shown = run("dead-letters", str(tmp_path)).stdout
    assert "less than a second" in shown
    assert "b: give an order, --set sequenceBy=..." in shown
    assert f"upsertflow replay {tmp_path} NAME" in shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": "idd"},
        {"sequenceBy": "seq"},
        {"columnList": "id,w"},
        {"applyAsDeletes": "v"},
        {"table.*.keys": "idd"},
        {"table.[ab].indexBy": "w"},
    ],
    ids=lambda given: "-".join(given),
)
def test_an_option_that_fits_no_table_stops_the_write(wrong: dict[str, str]) -> None:
    root = MemoryStore()
    with pytest.raises(SchemaError, match="table 'a'") as caught:
        write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **wrong)
    assert "no table has taken rows by these options" in caught.value.hint
    assert "'table.a.<option>'" in caught.value.hint
    assert counts(root) == {}
    assert not [path for path in root.objects if "/_log/" not in path], "nothing is left"
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)])
    assert (rows_in(root, "a"), rows_in(root, "b")) == ({1: 1}, {1: 1})


def test_p5_an_option_that_is_made_wrong_stops_a_write_that_went_well() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    with pytest.raises(OptionError, match="table 'b': option 'keys' is 'v'"):
        write(root, 1, [("b", 2, 2)], keys="v")
    renamed = ROWS.set(1, pa.field("key", pa.int64()))
    rows = pa.RecordBatch.from_pylist([{"topic": "a", "key": 2, "v": 2}], schema=renamed)
    options = RoutedOptions.parse({**OPTIONS, "onTableError": "park"})
    plan = plan_routed(options, renamed, root=root)
    staged = [stage_routed(plan, root, [rows], transaction(1), 0)]
    with pytest.raises(SchemaError, match="table 'a': the column of 'columnList' 'id'"):
        commit_routed(root, options, staged, transaction(1))
    assert counts(root) == {}


def test_an_option_that_fits_some_tables_parks_the_others() -> None:
    root, other = MemoryStore(), {"sequenceBy": "v", "columnList": "id"}
    table_below(root, "a").ensure(NARROW)
    with pytest.raises(OptionError, match="table 'a': option 'sequenceBy'"):
        write(root, 0, [("a", 1, 1)], **other)
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **other)
    assert counts(root) == {"a": 1}
    table_below(root, "c").ensure(NARROW)
    write(root, 1, [("c", 1, 1)], **other)
    write(root, 2, [("d", 1, 1)], **{"table.d.keys": "idd"})
    assert counts(root) == {"a": 1, "c": 1, "d": 1}, "the options have been right for 'b'"
    with pytest.raises(SchemaError, match="table 'e'"):
        write(root, 3, [("d", 2, 2), ("e", 1, 1)], **{"keys": "idd", "table.d.keys": "idd"})


def test_a_table_that_is_parked_already_says_nothing_of_the_options() -> None:
    root = MemoryStore()
    table_below(root, "a").ensure(NARROW)
    write(root, 0, [("a", 1, 1)])
    write(root, 1, [("a", 2, 2)], keys="idd")
    with pytest.raises(SchemaError, match="table 'b'"):
        write(root, 2, [("a", 2, 2), ("b", 1, 1)], keys="idd")
    assert counts(root) == {"a": 2}


def test_a_batch_that_is_repeated_is_judged_as_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root, other = MemoryStore(), {"sequenceBy": "v", "columnList": "id"}
    table_below(root, "a").ensure(NARROW)
    put = root.put_if_absent

    def failing(path: str, data: bytes) -> bool:
        if path.startswith("_group/_log/"):
            raise OSError("stop")
        return put(path, data)

    monkeypatch.setattr(root, "put_if_absent", failing)
    with pytest.raises(OSError, match="stop"):
        write(root, 0, [("a", 1, 1), ("b", 1, 1)], **other)
    monkeypatch.undo()
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **other)
    assert counts(root) == {"a": 1}
    assert table_below(root, "b").snapshot(columns=["id"]).to_pydict() == {"id": [1]}


DAY_MS = 24 * 3_600_000
WIDER = {"mergeSchema": "true"}


def narrow(*folders: str) -> MemoryStore:
    """Return a root with tables that do not take the column ``v``."""
    root = MemoryStore()
    for folder in folders:
        table_below(root, folder).ensure(NARROW)
    return root


def give_up_in(root: MemoryStore, days: int, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Give up what is older than 7 days, so many days from now; return what is parked."""
    monkeypatch.setattr(expiry, "require_clock", lambda store, now_ms: None)
    parked = DeadLetterTable(root)
    now_ms = parked.table.log.now_ms() + days * DAY_MS
    later = Table(parked.table.store, clock=lambda: now_ms / 1000)
    group.expire_old_versions([later], 7 * DAY_MS)
    return parked.table


def bytes_parked(root: MemoryStore) -> int:
    return sum(len(data) for path, data in root.objects.items() if path.startswith("_parked/data"))


def test_rows_that_wait_stay_however_old_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    root = narrow("a", "b")
    for number in range(3):
        write(root, number, [("a", number, number), ("b", number, number)])
    replay_dead_letters(root, ["b"], options=WIDER)
    table = give_up_in(root, 400, monkeypatch)
    assert table.log.head().since > 0
    with pytest.raises(DataLossError):
        table.at(0)
    assert counts(root) == {"a": 3}
    replay_dead_letters(root, options=WIDER)
    assert rows_in(root, "a") == rows_in(root, "b") == {0: 0, 1: 1, 2: 2}


def test_what_is_applied_goes_after_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    root = narrow("a")
    write(root, 0, [("a", key, key) for key in range(20_000)])
    replay_dead_letters(root, options=WIDER)
    held = bytes_parked(root)
    give_up_in(root, 6, monkeypatch)
    assert DeadLetterTable(root).table.at(1).manifest.live_rows, "it is not yet so long ago"
    give_up_in(root, 400, monkeypatch)
    versions = DeadLetterTable(root).table.log.head().version
    give_up_in(root, 800, monkeypatch)
    assert DeadLetterTable(root).table.log.head().version == versions, (
        "a table at rest stays as it is"
    )
    assert bytes_parked(root) < held / 10
    write(root, 1, [("a", 1, 7)])
    assert rows_in(root, "a")[1] == 7


def test_a_batch_gives_up_the_past_of_both(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "UPKEEP_EVERY", 4)
    given_up = Recorded(lambda *_: None)
    monkeypatch.setattr(commit, "expire_old_versions", given_up)
    root = MemoryStore()
    for number in range(9):
        write(root, number, [("a", number, number)], groupRetention="2 days")
    both = [GroupTable(root).table.store.url, DeadLetterTable(root).table.store.url]
    assert len(given_up.calls) == GroupTable(root).table.log.head().version // 4
    for tables, retention_ms in given_up.calls:
        assert [table.store.url for table in tables] == both
        assert retention_ms == 2 * DAY_MS
    monkeypatch.setattr(commit, "expire_old_versions", group.expire_old_versions)
    parked = DeadLetterTable(root)
    parked.ensure()
    root.put("_parked/_consumers/broken.json", b"?")
    with caplog.at_level(logging.WARNING, "spark_upsert"):
        for number in range(9, 14):
            write(root, number, [("a", number, number)])
    assert "a table keeps its past" in caplog.text
    batch = GroupTable(root).at().batch
    assert batch is not None
    assert batch.number == 13


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
    of_row = Recorded(Member.of_row)
    monkeypatch.setattr(Member, "of_row", of_row)
    asked = {}
    for tables in (10, 150):
        root = beside(tables)
        of_row.calls.clear()
        asked[tables] = len(of_one_row(root).names)
        assert {row["folder"] for (row, *_) in of_row.calls} <= {"t3"}
        assert GroupTable(root).at().members["t3"].rows == 1
        assert len(GroupTable(root).at().members) == tables
    assert asked[150] == asked[10]
