"""Several threads: the same outcomes in the same order, bounded, and errors come out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core import threads as parallel
from spark_upsert.core.schema import Ties
from spark_upsert.core.threads import (
    ROWS_PER_THREAD,
    map_in_order,
    run_in_background,
    useful_threads,
)
from spark_upsert.errors import DataError
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write import stage
from spark_upsert.table.write.outcomes import outcomes_of
from spark_upsert.table.write.write_set import Scratch
from tests.support.waiting import no_thread_is_left


def test_outcomes_come_in_the_order_of_the_items_and_no_more_are_taken_than_threads() -> None:
    for threads in (0, 1, 2, 5):
        assert list(map_in_order(lambda n: n * n, range(20), threads)) == [n * n for n in range(20)]
    items = iter(range(10))
    assert next(map_in_order(lambda n: n, items, 3)) == 0
    assert next(items) <= 4


def test_an_error_comes_out_and_nothing_is_left_behind() -> None:
    with no_thread_is_left(), pytest.raises(ZeroDivisionError):
        list(map_in_order(lambda n: 1 // n, [1, 0, 2], 2))


def test_work_beside_a_block_begins_before_the_block_ends() -> None:
    meeting = threading.Barrier(2, timeout=240)
    with run_in_background(meeting.wait, rows=ROWS_PER_THREAD) as outcome:
        mine = meeting.wait()
        assert sorted([mine, outcome()]) == [0, 1]


def test_work_on_few_rows_is_done_when_it_is_asked_for() -> None:
    done: list[int] = []
    with run_in_background(lambda: done.append(1), rows=ROWS_PER_THREAD - 1) as outcome:
        assert done == []
        outcome()
    assert done == [1]
    assert [useful_threads(rows, 4) for rows in (0, 2 * ROWS_PER_THREAD - 1)] == [1, 1]
    assert [useful_threads(rows, 4) for rows in (2 * ROWS_PER_THREAD, 1 << 40)] == [2, 4]


def test_a_block_that_fails_ends_behind_the_work_beside_it() -> None:
    done: list[int] = []
    is_failing = threading.Event()

    def work() -> None:
        assert is_failing.wait(240)
        done.append(1)

    def fail() -> None:
        with run_in_background(work, rows=ROWS_PER_THREAD):
            is_failing.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert done == [1]


def test_an_error_beside_a_block_comes_out_where_its_outcome_is_asked_for() -> None:
    with (
        run_in_background(lambda: 1 // 0, rows=ROWS_PER_THREAD) as outcome,
        pytest.raises(ZeroDivisionError),
    ):
        outcome()


COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64(), "seq": pa.int64()})
ORDERED: dict[str, Any] = {"keys": ["k"], "sequence_by": ["seq"]}
FORGETS: dict[str, Any] = {"properties": {"tombstoneRetention": "0 epochs"}}
"""Deletes at once, so that what comes late is rejected, which takes each out of its place."""


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(parallel, "ROWS_PER_THREAD", 1)
    return monkeypatch


def files_of(table: Table) -> tuple[set[str], set[str]]:
    """Return the runs that a table names, and those that lie there."""
    named = {slice_.file.path for slice_ in table.log.head().slices}
    return named, {info.path for info in table.store.list("data")}


def test_a_run_is_written_while_its_rows_are_looked_up(
    tmp_path: Path, threaded: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, **ORDERED)
    meeting = threading.Barrier(2, timeout=240)

    def meeting_first(original: Any) -> Any:
        def meet(*args: Any, **how: Any) -> Any:
            meeting.wait()
            return original(*args, **how)

        return meet

    threaded.setattr(Scratch, "write", meeting_first(Scratch.write))
    threaded.setattr(stage, "outcomes_of", meeting_first(outcomes_of))
    assert table.upsert(pa.table({"k": [1], "v": [1], "seq": [1]})) is not None
    assert table.snapshot().num_rows == 1


@pytest.mark.usefixtures("threaded")
def test_rows_that_are_refused_leave_no_run_behind(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, **ORDERED, ties=Ties.FAIL)
    table.upsert(pa.table({"k": [1], "v": [1], "seq": [1]}))
    with pytest.raises(DataError):
        table.upsert(pa.table({"k": [1], "v": [2], "seq": [1]}))
    named, present = files_of(table)
    assert present == named


@pytest.mark.usefixtures("threaded")
def test_a_run_that_loses_late_rows_is_not_written_with_them(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, **ORDERED, **FORGETS)
    table.upsert(pa.table({"k": [1, 2], "v": [1, 1], "seq": [1, 5]}))
    table.upsert(pa.table({"k": [1], "v": [0], "seq": [4], "gone": [True]}), deletes="gone")
    table.compact(full=True)
    _, before = files_of(table)
    late = pa.table({"k": [1, 3], "v": [1, 1], "seq": [2, 6]})
    commit = table.upsert(late, late_rows=LateRows.REJECT)
    assert commit is not None
    assert commit.counters["rejected"] == 1
    _, after = files_of(table)
    assert len(after - before) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_a_table_is_the_same_with_any_number_of_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ROWS_PER_THREAD", 10)
    dice = np.random.default_rng(1)
    tables = []
    for name, count in (("one", 1), ("several", threads)):
        Table.create(str(tmp_path / name), COLUMNS, **ORDERED, **FORGETS)
        tables.append(Table.open(str(tmp_path / name), threads=count))
    for epoch in range(4):
        numbers = [dice.integers(0, below, 500) for below in (300, 3, 9)]
        rows = pa.table([*numbers, dice.random(500) < 0.2], names=["k", "v", "seq", "gone"])
        for table in tables:
            table.upsert(rows, deletes="gone", late_rows=LateRows.REJECT)
            table.compact(full=True)
        counted = [table.log.commit(2 * epoch + 1).counters for table in tables]
        assert counted[0] == counted[1], epoch
    assert counted[0]["rejected"]
    contents = [
        (
            sorted(map(repr, table.snapshot().to_pylist())),
            sorted(map(repr, table.changes().drop_columns("_commit_timestamp").to_pylist())),
        )
        for table in tables
    ]
    assert contents[0] == contents[1]
