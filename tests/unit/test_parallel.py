"""Several threads: the same outcomes in the same order, bounded, and errors come out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert import parallel
from spark_upsert.parallel import ROWS_PER_THREAD, in_order, useful_threads
from spark_upsert.state.tombstones import LateRows
from spark_upsert.table import Table


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_outcomes_come_in_the_order_of_the_items(threads: int) -> None:
    assert list(in_order(lambda n: n * n, range(20), threads)) == [n * n for n in range(20)]


def test_no_more_items_are_taken_than_there_are_threads() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    outcomes = in_order(lambda n: n, items(), 3)
    assert next(outcomes) == 0
    assert len(taken) <= 4


def test_items_are_worked_upon_at_once() -> None:
    meeting = threading.Barrier(2, timeout=240)
    assert sorted(in_order(lambda _: meeting.wait(), range(2), 2)) == [0, 1]


def test_an_error_comes_out_and_nothing_is_left_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda n: 1 // n, [1, 0, 2], 2))
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("rows", "useful"),
    [(0, 1), (1, 1), (2 * ROWS_PER_THREAD - 1, 1), (2 * ROWS_PER_THREAD, 2), (1 << 40, 4)],
)
def test_few_rows_are_not_cut(rows: int, useful: int) -> None:
    assert useful_threads(rows, 4) == useful
    assert useful_threads(rows, 1) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_a_table_is_the_same_with_any_number_of_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ROWS_PER_THREAD", 10)
    dice = np.random.default_rng(1)
    columns = pa.schema({"k": pa.int64(), "v": pa.int64()})
    seq = pa.field("seq", pa.int64())
    tables = []
    for name, count in (("one", 1), ("several", threads)):
        Table.create(
            str(tmp_path / name),
            columns.append(seq),
            keys=["k"],
            sequence_by=["seq"],
            # Forgotten at once: late commands are rejected, which takes each out of its place.
            properties={"tombstoneRetention": "0 epochs"},
        )
        tables.append(Table.open(str(tmp_path / name), threads=count))
    for epoch in range(4):
        numbers = [dice.integers(0, below, 500) for below in (300, 3, 9)]
        rows = pa.table([*numbers, dice.random(500) < 0.2], names=["k", "v", "seq", "gone"])
        for table in tables:
            table.append(rows, deletes="gone", late_rows=LateRows.REJECT)
            table.compact(full=True)
        counted = [table.log.commit(2 * epoch + 1).counters for table in tables]
        assert counted[0] == counted[1], epoch
    assert counted[0]["rejected"]
    for read in (Table.snapshot, Table.changes):
        one, several = (
            sorted(map(repr, read(table).drop_columns(times_of(read)).to_pylist()))
            for table in tables
        )
        assert one == several


def times_of(read: object) -> list[str]:
    return ["_commit_timestamp"] if read is Table.changes else []
