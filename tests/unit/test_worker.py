"""A process that Spark uses again looks at its modules once, and gives back what tasks freed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_upsertflow.readers import batch_reader, read_schema
from spark_upsert.table.run.file import is_frugal
from spark_upsert.table.table import Table
from spark_upsert_sink.types import to_arrow_columns
from spark_upsert_sink.worker import freeze_loaded_objects, release_memory, task_housekeeping

SCHEMA = StructType().add("key", "long", nullable=False)


def batch_reader_of(given: dict[str, str]) -> object:
    return batch_reader(given, SCHEMA)


PIECE_BYTES, PIECES = 60_000, 1_000


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    freeze_loaded_objects.cache_clear()
    yield
    freeze_loaded_objects.cache_clear()


@pytest.fixture
def nothing_aside() -> Iterator[None]:
    """Take back what the collection of the tests has put aside, and behind the test aside again.

    As long as it is not, each look for garbage goes over all tests and modules.
    """
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_aside")
@pytest.mark.slow
@pytest.mark.parametrize("ask", [None, read_schema, batch_reader_of])
def test_a_process_that_spark_uses_again_puts_aside_what_is_there_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ask: Callable[[dict[str, str]], object] | None,
) -> None:
    Table.create(str(tmp_path / "t"), to_arrow_columns(SCHEMA), keys=["key"])
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    if ask is None:
        freeze_loaded_objects()
    else:
        ask({"path": str(tmp_path / "t")})
    assert gc.get_freeze_count() > 1_000
    gc.unfreeze()
    freeze_loaded_objects()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_aside")
def test_any_other_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    freeze_loaded_objects()
    assert gc.get_freeze_count() == 0


def of_arrow() -> Any:
    buffer = pa.allocate_buffer(PIECE_BYTES)
    np.frombuffer(buffer, dtype=np.uint8)[:] = 1
    return buffer


def of_numpy() -> Any:
    return np.ones(PIECE_BYTES, dtype=np.uint8)


def anonymous_bytes() -> int:
    """Return what this process has in memory that is of no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


@pytest.fixture
def nothing_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back what tests before have left, which would be used again and not be counted."""
    with monkeypatch.context() as patched:
        patched.setenv("SPARK_REUSE_WORKER", "1")
        release_memory()


def left_behind(make: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return what a task had in memory and what stays of it, beside the last piece of it.

    As long as the last piece is there, the heap cannot just be cut.
    """
    before = anonymous_bytes()
    with task_housekeeping():
        pieces = [make() for _ in range(PIECES)]
        within, last = anonymous_bytes() - before, pieces.pop()
        del pieces
    return within, anonymous_bytes() - before, last


@pytest.mark.usefixtures("nothing_freed")
@pytest.mark.parametrize("make", [of_arrow, of_numpy])
def test_memory_that_a_task_freed_is_given_back_unless_the_process_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    within, behind, _ = left_behind(make)
    assert within > PIECE_BYTES * PIECES * 3 // 4
    assert behind < PIECE_BYTES * PIECES // 4
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    _, behind, _ = left_behind(make)
    assert behind > PIECE_BYTES * PIECES // 2


def test_a_task_works_frugally() -> None:
    with task_housekeeping():
        assert is_frugal()
    assert not is_frugal()
