"""Memory that mapped files take is seen, given back, and its contents stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.state.run import file as run
from spark_upsert.state.run.file import RUNS
from spark_upsert.store import open_store, resident_bytes
from spark_upsert.table import Table

BYTES = 64 << 20


def mapped_file(folder: Path) -> tuple[object, pa.Buffer, np.ndarray]:
    contents = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
    (folder / "file").write_bytes(contents.tobytes())
    store = open_store(str(folder))
    return store, store.map("file"), contents


def test_what_is_touched_is_counted_and_given_back_and_stays_readable(tmp_path: Path) -> None:
    store, buffer, contents = mapped_file(tmp_path)
    before = resident_bytes()
    assert (np.frombuffer(buffer, np.uint8) == contents).all()
    assert resident_bytes() - before > BYTES // 2
    store.release(buffer)  # type: ignore[attr-defined]
    assert resident_bytes() - before < BYTES // 2
    assert (np.frombuffer(buffer, np.uint8) == contents).all()


def test_a_task_leaves_no_more_mapped_than_its_rows_call_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    table = Table.create(str(tmp_path / "table"), columns, keys=["k"])
    table.append(pa.table({"k": range(200_000), "v": ["x" * 200] * 200_000}))
    table.check()
    expected = table.snapshot()
    touched = resident_bytes()
    assert touched > 40 << 20
    RUNS.settle(rows=0)
    assert resident_bytes() > touched // 2, "plain Python keeps what it has"
    monkeypatch.setattr(run, "_RESIDENT_BYTES", 0)
    monkeypatch.setattr(RUNS, "is_frugal", True)
    RUNS.settle(rows=touched // run._RESIDENT_BYTES_PER_ROW + 1000)
    assert resident_bytes() > touched // 2, "many rows may leave much"
    RUNS.settle(rows=1)
    assert resident_bytes() < touched - (30 << 20)
    assert table.snapshot() == expected
