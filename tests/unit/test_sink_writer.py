"""Spark's writers without a JVM: what is planned, when, and what the commit needs of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.errors import SchemaError
from spark_upsert.table import Table
from spark_upsert_sink import UpsertStreamWriter
from spark_upsert_sink.plan import plan_sink
from tests.support.stores import BrokenError, MemoryStore, SlowStore

COLUMNS = StructType([StructField("id", LongType()), StructField("n", LongType())])


def writer(path: Path, **options: str) -> UpsertStreamWriter:
    given = {"path": str(path), "keys": "id", "checkpointLocation": "c", **options}
    return UpsertStreamWriter(given, COLUMNS, False)


def planned(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows by each plan."""
    plans: list[Any] = []

    def count(*args: Any, **options: Any) -> Any:
        plans.append(plan_sink(*args, **options))
        return plans[-1]

    monkeypatch.setattr("spark_upsert_sink.writers.plan_sink", count)
    return plans


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    ids, numbers = zip(*pairs, strict=True)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())})


def test_a_micro_batch_is_planned_once_and_its_commit_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = planned(tmp_path, monkeypatch)
    for batch in range(3):
        sent = pickle.loads(pickle.dumps(writer(tmp_path / "t")))
        messages = [sent.write(iter([rows((1, batch), (batch, 7))]))]
        writer(tmp_path / "t").commit(messages, batch)
        assert len(plans) == batch + 1
    table = Table.open(str(tmp_path / "t"))
    assert table.snapshot().sort_by("id").to_pylist() == [
        {"id": 0, "n": 7},
        {"id": 1, "n": 2},
        {"id": 2, "n": 7},
    ]


def test_a_micro_batch_without_tasks_is_planned_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = planned(tmp_path, monkeypatch)
    writer(tmp_path / "t").commit([], 0)
    assert len(plans) == 1
    assert Table.open(str(tmp_path / "t")).snapshot().num_rows == 0


def test_an_abort_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.loads(pickle.dumps(writer(tmp_path / "t")))
    messages = [sent.write(iter([rows((1, 1))])), None]
    assert list((tmp_path / "t").rglob("*.arrow"))
    plans = planned(tmp_path, monkeypatch)
    writer(tmp_path / "t").abort(messages, 0)
    assert not plans
    assert not list((tmp_path / "t").rglob("*.arrow"))


def committed_slowly(
    store: SlowStore, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> list[Any]:
    """Return the messages of a batch whose commit got no answer."""
    for module in ("plan", "writers"):
        monkeypatch.setattr(f"spark_upsert_sink.{module}.open_store", lambda *_: store)
    if not is_first:
        sent = pickle.loads(pickle.dumps(writer(Path("t"))))
        writer(Path("t")).commit([sent.write(iter([rows((1, 1))]))], 0)
    batch = 0 if is_first else 1
    sent = pickle.loads(pickle.dumps(writer(Path("t"))))
    messages = [sent.write(iter([rows((1, 2), (2, 2))]))]
    store.is_slow = True
    with pytest.raises(BrokenError):
        writer(Path("t")).commit(messages, batch)
    return messages


@pytest.mark.parametrize("is_first", [True, False], ids=["the first batch", "a later batch"])
def test_a_commit_that_lands_behind_its_abort_finds_its_files(
    is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore(MemoryStore())
    messages = committed_slowly(store, monkeypatch, is_first=is_first)
    writer(Path("t")).abort(messages, 0)
    assert store.land() == [True]
    assert Table(store).snapshot().sort_by("id").to_pylist() == [
        {"id": 1, "n": 2},
        {"id": 2, "n": 2},
    ]
    assert Table(store).check().is_sound


def test_a_commit_that_lands_behind_the_one_that_repeats_it_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SlowStore(MemoryStore())
    messages = committed_slowly(store, monkeypatch, is_first=False)
    writer(Path("t")).abort(messages, 1)
    store.is_slow = False
    sent = pickle.loads(pickle.dumps(writer(Path("t"))))
    writer(Path("t")).commit([sent.write(iter([rows((1, 2), (2, 2))]))], 1)
    assert store.land() == [False]
    assert Table(store).log.head().version == 1
    assert Table(store).check().is_sound


def test_what_does_not_fit_is_found_before_the_tasks_begin(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'oid' is not among"):
        pickle.dumps(writer(tmp_path / "t", keys="oid"))
