"""What a merge holds is bounded in bytes, too: by its producers, and where it is put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_upsertflow.python_source import iter_tuple_portions
from spark_upsert.core.threads import BATCH_BYTES, HAND_OFF_ROWS, split_batch
from spark_upsert.merge import RoundRobin, arrange, iter_picks
from spark_upsert.streams.reads.packing import InputSplit, read_pack
from spark_upsert.table.run.remote import share_limits
from spark_upsert.table.table import Table
from tests.support.waiting import watched

COLUMNS = pa.schema({"id": pa.int64(), "text": pa.string()})

MB = 1_000_000


def rows_of(sizes: Sequence[int]) -> pa.RecordBatch:
    """Return rows with texts of some sizes, which no two share."""
    texts = [f"{index:09}" + "x" * (size - 9) for index, size in enumerate(sizes)]
    return pa.RecordBatch.from_pydict({"id": range(len(sizes)), "text": texts}, schema=COLUMNS)


def ids(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch["id"].to_pylist()]


def within(batches: Sequence[pa.RecordBatch]) -> None:
    """Check both bounds of batches; a single row may be larger."""
    assert max(batch.num_rows for batch in batches) <= HAND_OFF_ROWS
    for batch in batches:
        assert batch.nbytes <= BATCH_BYTES or batch.num_rows == 1, f"{batch.nbytes} bytes"


SIZES = {
    "narrow rows": [10] * 5_000,
    "wide rows": [20_000] * 300,
    "rows that are larger than a batch": [3 * BATCH_BYTES] * 3,
    "one that is larger than a batch": [*[10] * 500, 2 * BATCH_BYTES, *[10] * 500],
    "narrow rows, then wide ones": [*[10] * 3_000, *[50_000] * 100],
    "wide rows, then narrow ones": [*[50_000] * 100, *[10] * 3_000],
    "by turns": [*[10] * 400, *[30_000] * 40] * 5,
    "one row": [10],
}


@pytest.fixture(params=SIZES.values(), ids=list(SIZES))
def sizes(request: pytest.FixtureRequest) -> list[int]:
    return list(request.param)


def test_a_batch_is_cut_into_portions(sizes: list[int]) -> None:
    found = list(split_batch(rows_of(sizes)))
    assert ids(found) == list(range(len(sizes)))
    within(found)


# -- producers


OF_TUPLES = StructType([StructField("id", LongType()), StructField("text", StringType())])


def test_tuples_become_batches_of_so_many_bytes(sizes: list[int]) -> None:
    rows = [(index, "x" * size) for index, size in enumerate(sizes)]
    found = list(iter_tuple_portions(iter(rows), OF_TUPLES))
    assert [row for held in found for row in held] == rows
    for held in found:
        assert len(held) <= HAND_OFF_ROWS
        assert len(held) == 1 or sum(8 + len(text) for _, text in held) <= BATCH_BYTES


def test_narrow_tuples_become_large_batches() -> None:
    rows = iter([(index, None) for index in range(20_000)])
    assert max(len(held) for held in iter_tuple_portions(rows, OF_TUPLES)) == HAND_OFF_ROWS


def test_few_wide_tuples_are_taken_at_once() -> None:
    taken = 0

    def rows() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for taken in range(1, 10_000):
            yield taken, "x" * 100_000

    given = 0
    for held in islice(iter_tuple_portions(rows(), OF_TUPLES), 30):
        given += len(held)
        assert taken - given <= 64


@pytest.mark.parametrize(
    "row",
    [
        ({"k": ["x" * 300_000, b"y" * 300_000]}, None),
        {"nested": "x" * 600_000, "other": None},
        7,
    ],
    ids=["nested", "no tuple", "no row at all"],
)
def test_whatever_is_no_plain_tuple_is_measured_whole(row: Any) -> None:
    kinds = StructType(
        [
            StructField("nested", MapType(StringType(), ArrayType(StringType()))),
            StructField("other", StringType()),
        ]
    )
    expected = [1] * 4 if row != 7 else [4]
    assert [len(held) for held in iter_tuple_portions(iter([row] * 4), kinds)] == expected


def test_a_table_in_a_merge_is_read_in_smaller_pieces(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, keys=["id"])
    table.upsert(pa.Table.from_batches([rows_of([100_000] * 400)]))
    alone = [batch.nbytes for batch in table.at().read()]
    with share_limits(32):
        shared = [batch.nbytes for batch in table.at().read()]
    assert sum(shared) == pytest.approx(sum(alone), rel=0.01)
    assert max(alone) > 30 * MB
    assert max(shared) < 5 * MB


# -- what a task holds


@dataclass
class Producer:
    """The same rows as each of the inputs, made while they are read."""

    row_bytes: int

    def __getitem__(self, name: str) -> Producer:
        return self

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            yield from split_batch(rows_of([self.row_bytes] * (MB // self.row_bytes)))

    def split_bytes(self, split: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("inputs", "row_bytes"), [(8, 20_000), (16, 100_000)], ids=["8 of 20 kB", "16 of 100 kB"]
)
@pytest.mark.slow
def test_wide_rows_that_are_read_and_not_taken_are_below_64_mb(inputs: int, row_bytes: int) -> None:
    before = pa.total_allocated_bytes()
    pack = tuple(InputSplit(f"input-{number}", None) for number in range(inputs))
    with watched() as waits:
        merged = read_pack(Producer(row_bytes), pack, ())
        taken = next(iter(merged))
        waits.until(inputs)  # All readers: the sink stands.
        held = pa.total_allocated_bytes() - before
        merged.close()  # type: ignore[attr-defined]
    assert taken.nbytes <= BATCH_BYTES
    assert held < 64 * MB, f"{held:_} bytes are held"


def test_an_exact_order_puts_wide_rows_together_in_portions() -> None:
    inputs = [iter(list(split_batch(rows_of([50_000] * 400)))) for _ in range(4)]
    picks = (found for found, _ in iter_picks(RoundRobin(), [400] * 4))
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for batch in arrange(inputs, picks):
        assert batch.nbytes <= BATCH_BYTES
        most = max(most, pa.total_allocated_bytes() - before)
        count += batch.num_rows
    assert count == 1_600
    assert most < 16 * MB
