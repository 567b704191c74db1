"""Spark's writers without a JVM: what is planned, when, and what the commit needs of it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.errors import SchemaError, TableFullError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert_sink import UpsertBatchWriter, UpsertStreamWriter
from spark_upsert_sink.writers import plan_sink
from tests.support.calls import Recorded
from tests.support.stores import BrokenError, MemoryStore, SlowStore

COLUMNS = StructType([StructField("id", LongType()), StructField("n", LongType())])


def writer(path: Path, **options: str) -> UpsertStreamWriter:
    given = {"path": str(path), "keys": "id", "checkpointLocation": "c", **options}
    return UpsertStreamWriter(given, COLUMNS, False)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Return the calls of the planner."""
    plans = Recorded(plan_sink)
    monkeypatch.setattr("spark_upsert_sink.writers.plan_sink", plans)
    return plans


def sent(path: Path, **options: str) -> Any:
    """Return a writer as a task has it."""
    return pickle.loads(pickle.dumps(writer(path, **options)))


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    ids, numbers = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())})


def rows_of(table: Table) -> dict[int, int]:
    columns = table.snapshot().sort_by("id").to_pydict()
    return dict(zip(columns["id"], columns["n"], strict=True))


@pytest.mark.parametrize(
    ("task", "staged", "expected"),
    [
        pytest.param(0, 0, [10], id="the first task does one job whatever the batch has"),
        pytest.param(1, 0, [], id="the others none without rows"),
        pytest.param(1, 4, [11], id="four times the bytes that it staged"),
        pytest.param(1, 7, [11, 13], id="and no more"),
        pytest.param(0, 100, [10, 12, 14], id="its own share of the jobs"),
        pytest.param(2, 100, [], id="more tasks than expected do no job of another one"),
    ],
)
def test_a_task_compacts_by_the_bytes_that_it_staged(
    tmp_path: Path, task: int, staged: int, expected: list[int]
) -> None:
    jobs: Any = [SimpleNamespace(bytes=size) for size in (10, 11, 12, 13, 14)]
    options = WriteOptions.parse({"path": str(tmp_path / "t"), "keys": "id"})
    plan = plan_sink(options, rows((1, 1)).schema, overwrite=False)
    plan = replace(plan, jobs=tuple(jobs), task_count=2)
    assert [job.bytes for job in plan.iter_share(task, staged)] == expected


def test_a_micro_batch_is_planned_once_and_its_commit_not_at_all(
    tmp_path: Path, plans: Recorded
) -> None:
    for batch in range(3):
        messages = [sent(tmp_path / "t").write(iter([rows((1, batch), (batch, 7))]))]
        writer(tmp_path / "t").commit(messages, batch)
        assert len(plans.calls) == batch + 1
    table = Table.open(str(tmp_path / "t"))
    assert rows_of(table) == {0: 7, 1: 2, 2: 7}


def test_a_micro_batch_without_tasks_is_planned_by_its_commit(
    tmp_path: Path, plans: Recorded
) -> None:
    writer(tmp_path / "t").commit([], 0)
    assert len(plans.calls) == 1
    assert Table.open(str(tmp_path / "t")).snapshot().num_rows == 0


def test_overlapping_tasks_are_a_warning_once_per_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(batch: int, *tasks: pa.RecordBatch) -> int:
        caplog.clear()
        messages = [sent(tmp_path / "t").write(iter([task])) for task in tasks]
        for index, message in enumerate(messages):
            message.task_index, message.query_id = index, "q"
        writer(tmp_path / "t").commit(messages, batch)
        return caplog.text.count("by_hash")

    task = rows(*((n, n) for n in range(100)))
    assert write(0, task, task) == 0  # Some kilobytes.
    monkeypatch.setattr("spark_upsert_sink.writers._OVERLAP_BYTES_MIN", 1)
    assert write(1, task) == 0
    assert write(2, task, rows()) == 0
    assert [write(batch, task, task) for batch in (3, 4)] == [1, 0]


def test_tasks_read_many_slices_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_upsert.table.log.slices.LEAF_SLICES", 2)
    path = tmp_path / "t"
    for batch in range(5):
        writer(path).commit([sent(path).write(iter([rows((batch, 0), (9, batch))]))], batch)
    task = sent(path)
    plan = task._write._plan
    assert plan.is_reference
    assert not plan.write.base.slices
    table = Table.open(str(path))
    assert plan.with_slices().base.slices == table.log.head().slices
    table.upsert(pa.table({"id": [9], "n": [100]}))
    writer(path).commit([task.write(iter([rows((9, 5))]))], 5)
    assert rows_of(table) == {**dict.fromkeys(range(5), 0), 9: 5}
    assert table.check().is_sound


def test_an_abort_plans_nothing(tmp_path: Path, plans: Recorded) -> None:
    messages = [sent(tmp_path / "t").write(iter([rows((1, 1))])), None]
    assert list((tmp_path / "t").rglob("*.arrow"))
    plans.calls.clear()
    writer(tmp_path / "t").abort(messages, 0)
    assert not plans.calls
    assert not list((tmp_path / "t").rglob("*.arrow"))


def committed_slowly(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> list[Any]:
    """Return the messages of a batch whose commit got no answer."""
    monkeypatch.setattr("spark_upsert_sink.writers.open_store", lambda *_: store)
    path = Path("t")
    if not is_first:
        writer(path).commit([sent(path).write(iter([rows((1, 1))]))], 0)
    messages = [sent(path).write(iter([rows((1, 2), (2, 2))]))]
    store.is_slow = True
    with pytest.raises(BrokenError):
        writer(path).commit(messages, 0 if is_first else 1)
    return messages


@pytest.mark.parametrize("is_first", [True, False], ids=["the first batch", "a later batch"])
def test_a_commit_that_lands_behind_its_abort_finds_its_files(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore(MemoryStore())
    messages = committed_slowly(store, monkeypatch, is_first=is_first)
    writer(Path("t")).abort(messages, 0)
    assert store.land() == [True]
    assert rows_of(Table(store)) == {1: 2, 2: 2}
    assert Table(store).check().is_sound


def test_a_commit_that_lands_behind_the_one_that_repeats_it_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SlowStore(MemoryStore())
    messages = committed_slowly(store, monkeypatch, is_first=False)
    writer(Path("t")).abort(messages, 1)
    store.is_slow = False
    writer(Path("t")).commit([sent(Path("t")).write(iter([rows((1, 2), (2, 2))]))], 1)
    assert store.land() == [False]
    assert Table(store).log.head().version == 1
    assert Table(store).check().is_sound


def test_a_batch_that_does_not_fit_is_refused_before_the_tasks_begin(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'oid' is not among"):
        sent(tmp_path / "t", keys="oid")


def run_as(query: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark name a micro-batch to its tasks."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    task = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: 0)
    monkeypatch.setattr("spark_upsert_sink.writers.TaskContext.get", lambda: task)


def full_table(path: Path) -> Table:
    """Return a table whose consumer has yet to read the one epoch that there is room for."""
    columns = pa.schema({"id": pa.int64(), "n": pa.int64()})
    caps = {"maxBacklogEpochs": "1", "onFull": "reject"}
    table = Table.create(str(path), columns, keys=["id"], properties=caps)
    table.hold("reader", 0)
    batch = Transaction(writer="query:q", number=0)
    table.upsert(pa.table({"id": [1], "n": [1]}), transaction=batch)
    return table


def files_of(path: Path) -> set[Path]:
    return {each for each in path.rglob("*") if each.is_file()}


def test_a_micro_batch_for_which_there_is_no_room_stages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is repeated is done although the table is full."""
    table, path = full_table(tmp_path / "t"), tmp_path / "t"
    before = files_of(tmp_path)
    task = sent(path)
    run_as("q", 0, monkeypatch)
    writer(path).commit([task.write(iter([rows((1, 1))]))], 0)
    run_as("q", 1, monkeypatch)
    with pytest.raises(TableFullError):
        sent(path).write(iter([rows((2, 2))]))
    assert files_of(tmp_path) == before
    table.hold("reader", 1)
    writer(path).commit([sent(path).write(iter([rows((2, 2))]))], 1)
    assert rows_of(table) == {1: 1, 2: 2}


def test_a_micro_batch_whose_room_was_taken_is_refused_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = full_table(tmp_path / "t")
    table.hold("reader", 1)
    run_as("q", 1, monkeypatch)
    messages = [sent(tmp_path / "t").write(iter([rows((2, 2))]))]
    table.upsert(pa.table({"id": [3], "n": [3]}))
    with pytest.raises(TableFullError):
        writer(tmp_path / "t").commit(messages, 1)
    writer(tmp_path / "t").abort(messages, 1)
    head = table.log.head()
    assert head.version == 2
    files = {str(each.relative_to(tmp_path / "t")) for each in tmp_path.rglob("*.arrow")}
    assert files == {slice_.file.path for slice_ in head.slices}


@pytest.mark.parametrize("number", [0, 1], ids=["repeated", "anew"])
def test_a_batch_write_is_judged_before_its_tasks_begin(tmp_path: Path, number: int) -> None:
    table = full_table(tmp_path / "t")
    given = {"path": str(tmp_path / "t"), "txnAppId": "a", "txnVersion": str(number)}
    table.hold("reader", 1)
    table.upsert(pa.table({"id": [3], "n": [3]}), transaction=Transaction(writer="app:a", number=0))
    batch = UpsertBatchWriter(given, COLUMNS, False)
    if number == 1:
        with pytest.raises(TableFullError, match="the consumer 'reader'") as refused:
            pickle.dumps(batch)
        assert 'option("maxBacklogEpochs"' in refused.value.hint
    else:
        batch.commit([pickle.loads(pickle.dumps(batch)).write(iter([rows((3, 3))]))])
    assert table.log.head().version == 2
