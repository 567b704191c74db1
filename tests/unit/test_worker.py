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
from spark_upsert_sink.types import arrow_of
from spark_upsert_sink.worker import give_back, settle_in, task

SCHEMA = StructType().add("key", "long", nullable=False)


def batch_reader_of(given: dict[str, str]) -> object:
    return batch_reader(given, SCHEMA)


PIECE_BYTES, PIECES = 60_000, 1_000


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    settle_in.cache_clear()
    yield
    settle_in.cache_clear()


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
def test_what_is_there_is_put_aside_where_spark_uses_a_process_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle_in()
    assert gc.get_freeze_count() > 1_000


@pytest.mark.usefixtures("nothing_aside")
@pytest.mark.slow
def test_it_is_put_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle_in()
    gc.unfreeze()
    settle_in()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_aside")
@pytest.mark.slow
@pytest.mark.parametrize("ask", [read_schema, batch_reader_of], ids=lambda ask: ask.__name__)
def test_the_process_of_a_planner_settles_in_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ask: Callable[[dict[str, str]], object]
) -> None:
    Table.create(str(tmp_path / "t"), arrow_of(SCHEMA), keys=["key"])
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    ask({"path": str(tmp_path / "t")})
    assert gc.get_freeze_count() > 1_000


@pytest.mark.usefixtures("nothing_aside")
def test_any_other_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    settle_in()
    assert gc.get_freeze_count() == 0


def of_arrow() -> Any:
    buffer = pa.allocate_buffer(PIECE_BYTES)
    np.frombuffer(buffer, dtype=np.uint8)[:] = 1
    return buffer


def of_numpy() -> Any:
    return np.ones(PIECE_BYTES, dtype=np.uint8)


def anonymous_bytes() -> int:
    """Return what this process has in memory that is of no file."""
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line
    ]
    return int(line.split()[1]) << 10


@pytest.fixture
def nothing_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back what tests before have left, which would be used again and not be counted."""
    with monkeypatch.context() as patched:
        patched.setenv("SPARK_REUSE_WORKER", "1")
        give_back()


def left_behind(make: Callable[[], Any]) -> tuple[int, int, Any]:
    """Return what a task had in memory and what stays of it, beside the last piece of it.

    As long as the last piece is there, the heap cannot just be cut.
    """
    before = anonymous_bytes()
    with task():
        pieces = [make() for _ in range(PIECES)]
        within, last = anonymous_bytes() - before, pieces.pop()
        del pieces
    return within, anonymous_bytes() - before, last


@pytest.mark.usefixtures("nothing_freed")
@pytest.mark.parametrize("make", [of_arrow, of_numpy])
def test_what_a_task_has_freed_is_given_back(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    within, behind, _ = left_behind(make)
    assert within > PIECE_BYTES * PIECES * 3 // 4
    assert behind < PIECE_BYTES * PIECES // 4


@pytest.mark.usefixtures("nothing_freed")
@pytest.mark.parametrize("make", [of_arrow, of_numpy])
def test_a_process_that_ends_with_its_task_keeps_what_it_freed(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    _, behind, _ = left_behind(make)
    assert behind > PIECE_BYTES * PIECES // 2


def test_a_task_works_frugally() -> None:
    with task():
        assert is_frugal()
    assert not is_frugal()
