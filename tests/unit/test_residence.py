"""Memory that mapped files take is seen, given back, and its contents stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructType

from pyspark_upsertflow.readers import to_spark
from spark_upsert.core.threads import map_in_order
from spark_upsert.store import resident_bytes
from spark_upsert.store.open import open_store
from spark_upsert.table.run import file as run
from spark_upsert.table.run.file import RUNS, frugal, frugally, is_frugal
from spark_upsert.table.table import Table
from spark_upsert_sink import UpsertBatchWriter, UpsertStreamWriter

BYTES = 64 << 20


def mapped_file(folder: Path) -> tuple[object, pa.Buffer, np.ndarray]:
    contents = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
    (folder / "file").write_bytes(contents.tobytes())
    store = open_store(str(folder))
    return store, store.map("file"), contents


@pytest.mark.slow
def test_touched_memory_is_counted_and_given_back_and_stays_readable(tmp_path: Path) -> None:
    store, buffer, contents = mapped_file(tmp_path)
    before = resident_bytes()
    assert (np.frombuffer(buffer, np.uint8) == contents).all()
    assert resident_bytes() - before > BYTES // 2
    store.release(buffer)  # type: ignore[attr-defined]
    assert resident_bytes() - before < BYTES // 2
    assert (np.frombuffer(buffer, np.uint8) == contents).all()


def test_task_leaves_no_more_mapped_than_its_rows_call_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    table = Table.create(str(tmp_path / "table"), columns, keys=["k"])
    table.upsert(pa.table({"k": range(200_000), "v": ["x" * 200] * 200_000}))
    table.check()
    expected = table.snapshot()
    touched = resident_bytes()
    assert touched > 40 << 20
    RUNS.trim(rows=0)
    assert resident_bytes() > touched // 2, "plain Python keeps what it has"
    monkeypatch.setattr(run, "_RESIDENT_BYTES", 0)
    with frugal():
        RUNS.trim(rows=touched // run._RESIDENT_BYTES_PER_ROW + 1000)
        assert resident_bytes() > touched // 2, "many rows may leave much"
        RUNS.trim(rows=1)
    assert resident_bytes() < touched - (30 << 20)
    assert table.snapshot() == expected


@pytest.mark.slow
def test_what_no_run_holds_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries above the bound made each step of work walk over thousands of open runs."""
    store, buffer, contents = mapped_file(tmp_path)
    table = Table.create(str(tmp_path / "table"), pa.schema({"k": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": [1]}))
    [file] = table.log.commit(1).added
    released: list[object] = []
    monkeypatch.setattr(run.Run, "release", lambda one: released.append(one))
    monkeypatch.setattr(run, "_RESIDENT_BYTES", 0)
    runs = run.RunCache()
    runs.open(table.store, file)
    with frugal():
        runs.trim(rows=0)
        assert len(released) == 1, "nothing was known of others"
        runs.trim(rows=0)
        assert len(released) == 1, "what a release leaves is no run's"
        assert (np.frombuffer(buffer, np.uint8) == contents).all()
        runs.trim(rows=0)
        assert len(released) == 2, "more than it left"
        store.release(buffer)  # type: ignore[attr-defined]
        runs.trim(rows=0)
        assert (np.frombuffer(buffer, np.uint8) == contents).all()
        runs.trim(rows=0)
        assert len(released) == 3, "others had become less meanwhile"


def test_only_the_work_within_and_its_threads_are_frugal() -> None:
    def fail() -> None:
        raise KeyError(is_frugal())

    with frugal():
        assert all(map_in_order(lambda _: is_frugal(), range(5), 3))
    assert not any(map_in_order(lambda _: is_frugal(), range(5), 3))
    with pytest.raises(KeyError, match="True"), frugal():
        fail()
    assert not is_frugal()


def test_frugal_iterator_leaves_its_reader_as_it_is() -> None:
    states: list[bool] = []

    def items() -> Iterator[int]:
        for number in range(3):
            states.append(is_frugal())
            yield number

    for one, other in zip(frugally(items()), frugally(items()), strict=True):
        assert one == other
        assert not is_frugal()
    assert states == [True] * 6


def test_spark_reads_and_writes_frugally() -> None:
    states: list[bool] = []

    def batches() -> Iterator[pa.RecordBatch]:
        states.append(is_frugal())
        yield pa.record_batch({"k": [1]})

    [batch] = to_spark(batches(), StructType().add("k", IntegerType()))
    assert batch.schema.field("k").type == pa.int32()

    def note(*_: object) -> None:
        states.append(is_frugal())

    write = SimpleNamespace(stage=note, commit=note)
    kinds: list[Any] = [UpsertBatchWriter, UpsertStreamWriter]
    for kind in kinds:
        writer = kind.__new__(kind)
        writer._write = write
        writer.write(iter(()))
        writer._transaction = lambda *_: None
        writer.commit([], *([0] if kind is UpsertStreamWriter else []))
    assert states == [True] * 5
    assert not is_frugal()
