"""What a merge holds is bounded in bytes, too: by its producers, and where it is put together."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pyspark_upsertflow.python_input import tuple_portions
from spark_upsert.merge import RoundRobin, arrange, iter_picks
from spark_upsert.model.portions import BATCH_BYTES, HAND_OFF_ROWS, portions
from spark_upsert.payloads.files.formats import (
    ArrowReader,
    FileRange,
    FormatReader,
    ParquetReader,
    WantedColumns,
)
from spark_upsert.payloads.files.texts import CsvReader, JsonReader
from spark_upsert.streams.reads.packs import InputSplit, read_pack
from spark_upsert.table.run.shares import shared_by
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
    found = list(portions(rows_of(sizes)))
    assert ids(found) == list(range(len(sizes)))
    within(found)


def test_a_batch_without_rows_has_no_portion() -> None:
    assert list(portions(rows_of([]))) == []


# -- producers -----------------------------------------------------------------------------


def parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=2_500, use_dictionary=False)
    return sink.getvalue()


def parquet_of_words(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, use_dictionary=True)
    return sink.getvalue()


def arrow(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def lines(rows: pa.Table) -> bytes:
    return "\n".join(json.dumps(row) for row in rows.to_pylist()).encode()


def csv(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.csv.write_csv(rows, sink)
    return sink.getvalue()


CSV = CsvReader(header=True, separator=",", quote='"', escape=None, null_value="")

FORMATS: dict[str, tuple[Callable[[pa.Table], bytes], FormatReader]] = {
    "Parquet": (parquet, ParquetReader()),
    "Parquet with dictionaries": (parquet_of_words, ParquetReader()),
    "Arrow": (arrow, ArrowReader()),
    "JSON": (lines, JsonReader()),
    "CSV": (csv, CSV),
}


def read(
    reader: FormatReader, path: Path, columns: pa.Schema = COLUMNS
) -> Iterator[pa.RecordBatch]:
    wanted = WantedColumns(columns, is_chosen=False, is_merged=False)
    return reader.read(lambda: pa.OSFile(str(path), "rb"), FileRange(), wanted)


@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.sweep(10)
def test_a_file_is_read_in_portions(of: str, sizes: list[int], tmp_path: Path) -> None:
    if of == "CSV" and max(sizes) > BATCH_BYTES // 2:
        sizes = [min(size, BATCH_BYTES // 2) for size in sizes]  # A block of Arrow's holds a row.
    write, reader = FORMATS[of]
    path = tmp_path / "file"
    path.write_bytes(write(pa.Table.from_batches([rows_of(sizes)])))
    found = list(read(reader, path))
    assert ids(found) == list(range(len(sizes)))
    within(found)


@pytest.mark.slow
def test_a_text_that_stands_in_a_dictionary_once_is_counted_in_each_row(tmp_path: Path) -> None:
    same = pa.table({"id": range(2_100), "text": ["x" * 50_000] * 2_100}, schema=COLUMNS)
    path = tmp_path / "file"
    path.write_bytes(parquet_of_words(same))
    assert path.stat().st_size < MB
    del same
    before, most = pa.total_allocated_bytes(), 0
    count = 0
    for batch in read(ParquetReader(), path):
        count += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
        if count > 2_000:
            break
    assert most < 8 * MB


@pytest.mark.slow
def test_short_lines_of_many_columns_are_decoded_in_portions(tmp_path: Path) -> None:
    many = pa.schema([(f"c{number}", pa.int64()) for number in range(200)])
    path = tmp_path / "file"
    path.write_bytes(b"{}\n" * 20_000)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in read(JsonReader(), path, many):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 20_000
    assert most < 8 * MB


def test_a_line_that_is_bad_is_named_wherever_it_stands(tmp_path: Path) -> None:
    many = pa.schema([(f"c{number}", pa.int64()) for number in range(700)])
    # Of so many columns, 93 lines are decoded at once: the bad one is behind them.
    path = tmp_path / "file"
    path.write_bytes(b"\n{}\n" * 100 + b'{"c0": "no"}\n')
    with pytest.raises(Exception, match="line 201 is not as declared"):
        list(read(JsonReader(), path, many))


OF_TUPLES = StructType([StructField("id", LongType()), StructField("text", StringType())])


def test_tuples_become_batches_of_so_many_bytes(sizes: list[int]) -> None:
    rows = [(index, "x" * size) for index, size in enumerate(sizes)]
    found = list(tuple_portions(iter(rows), OF_TUPLES))
    assert [row for held in found for row in held] == rows
    for held in found:
        assert len(held) <= HAND_OFF_ROWS
        assert len(held) == 1 or sum(8 + len(text) for _, text in held) <= BATCH_BYTES


def test_narrow_tuples_become_large_batches() -> None:
    rows = iter([(index, None) for index in range(20_000)])
    assert max(len(held) for held in tuple_portions(rows, OF_TUPLES)) == HAND_OFF_ROWS


def test_few_wide_tuples_are_taken_at_once() -> None:
    taken = 0

    def rows() -> Iterator[tuple[int, str]]:
        nonlocal taken
        for taken in range(1, 10_000):
            yield taken, "x" * 100_000

    given = 0
    for held in islice(tuple_portions(rows(), OF_TUPLES), 30):
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
    assert [len(held) for held in tuple_portions(iter([row] * 4), kinds)] == expected


def test_a_table_in_a_merge_is_read_in_smaller_pieces(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), COLUMNS, keys=["id"])
    table.append(pa.Table.from_batches([rows_of([100_000] * 400)]))
    alone = [batch.nbytes for batch in table.at().read()]
    with shared_by(32):
        shared = [batch.nbytes for batch in table.at().read()]
    assert sum(shared) == pytest.approx(sum(alone), rel=0.01)
    assert max(alone) > 30 * MB
    assert max(shared) < 5 * MB


# -- what a task holds ---------------------------------------------------------------------


class Files:
    """Reads the same file as each of the inputs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> Files:
        return self

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        return read(ParquetReader(), self._path)

    def split_bytes(self, split: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("inputs", "row_bytes"), [(8, 20_000), (16, 100_000)], ids=["8 of 20 kB", "16 of 100 kB"]
)
@pytest.mark.slow
def test_wide_rows_that_are_read_and_not_taken_are_below_64_mb(
    inputs: int, row_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    rows = pa.Table.from_batches([rows_of([row_bytes] * (100 * MB // row_bytes))])
    pq.write_table(rows, path, use_dictionary=False, data_page_size=1 << 16, write_batch_size=4)
    del rows
    before = pa.total_allocated_bytes()
    pack = tuple(InputSplit(f"input-{number}", None) for number in range(inputs))
    with watched() as waits:
        merged = read_pack(Files(path), pack, ())
        taken = next(iter(merged))
        waits.until(inputs)  # All readers: the sink stands.
        held = pa.total_allocated_bytes() - before
        merged.close()  # type: ignore[attr-defined]
    assert taken.nbytes <= BATCH_BYTES
    assert held < 64 * MB, f"{held:_} bytes are held"


def test_an_exact_order_puts_wide_rows_together_in_portions() -> None:
    inputs = [iter(list(portions(rows_of([50_000] * 400)))) for _ in range(4)]
    picks = (found for found, _ in iter_picks(RoundRobin(), [400] * 4))
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for batch in arrange(inputs, picks):
        assert batch.nbytes <= BATCH_BYTES
        most = max(most, pa.total_allocated_bytes() - before)
        count += batch.num_rows
    assert count == 1_600
    assert most < 16 * MB
