"""Which Spark the source takes, what differs between releases, and what the page of them says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.source import DefaultSource
from pyspark_upsertflow.stream_reader import SelfBoundedStreamReader
from spark_upsert.table.table import Table
from spark_upsert_sink import types
from spark_upsert_sink.types import SPARK_MIN, columns_of, require_spark, with_list_offsets
from tools.check_machine import PYSPARK_MIN
from tools.matrix import BEGIN, CELLS, END, PAGE

WANTED = StructType([StructField("k", LongType())])


@pytest.fixture
def epochs(tmp_path: Path) -> Path:
    """A table of four epochs with a row each."""
    table = Table.create(str(tmp_path / "table"), pa.schema({"k": pa.int64()}), keys=["k"])
    for key in range(4):
        table.upsert(pa.table({"k": [key]}))
    return tmp_path / "table"


def follower(table: Path, **options: str) -> SelfBoundedStreamReader:
    given = {"path": str(table), "startingVersion": "1", "maxEpochsPerTrigger": "1", **options}
    return SelfBoundedStreamReader(given, WANTED)


def keys(reader: SelfBoundedStreamReader, start: Any, end: Any) -> list[int]:
    partitions = reader.partitions(start, end)
    return [
        key
        for partition in partitions
        for batch in reader.read(partition)
        for key in batch.column("k").to_pylist()
    ]


def test_a_release_that_is_too_old_is_refused_and_others_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version in ("4.0.0", "4.0.5", "3.5.9"):
        monkeypatch.setattr("pyspark.__version__", version)
        with pytest.raises(ImportError, match=rf"needs PySpark 4\.1 or newer, found {version}"):
            DefaultSource({})
    for version in ("4.1.1", "4.2.0", "4.3.0", "4.10.0.dev0", "5.0.0"):
        require_spark(version)


def test_the_release_decides_which_reader_a_stream_has(
    epochs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DefaultSource({"path": str(epochs)})
    assert isinstance(source.streamReader(WANTED), LimitedStreamReader)
    monkeypatch.setattr(types, "HAS_LIMITS", False)
    assert isinstance(source.streamReader(WANTED), SelfBoundedStreamReader)


def test_a_reader_goes_on_where_its_last_batch_ended_and_behind_a_restart(epochs: Path) -> None:
    reader = follower(epochs)
    start, batches = reader.initialOffset(), []
    for _ in range(2):
        end = reader.latestOffset()
        batches.append(keys(reader, start, end))
        start = end
    reader = follower(epochs)
    assert reader.partitions(start, start) == []  # As Spark asks it behind a restart.
    for _ in range(2):
        end = reader.latestOffset()
        batches.append(keys(reader, start, end))
        start = end
    assert batches == [[0], [1], [2], [3]]
    assert reader.latestOffset() == start


def test_lists_of_which_there_are_none_get_their_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "HAS_LIMITS", False)
    type_ = pa.list_(pa.int32())
    inner = pa.Array.from_buffers(type_, 0, [None, None], children=[pa.array([], pa.int32())])
    offsets = pa.py_buffer(bytes(8))
    outer = pa.Array.from_buffers(pa.list_(type_), 1, [None, offsets], children=[inner])
    (batch,) = with_list_offsets(iter([pa.RecordBatch.from_arrays([outer], ["v"])]))
    assert batch.column("v").values.buffers()[1] is not None
    assert batch.to_pylist() == [{"v": []}]


def test_columns_of_arrow_are_taken_with_whatever_name_of_their_zone() -> None:
    instants = StructType([StructField("t", TimestampType())])
    for zone in ("UTC", "Etc/UTC", "+00:00"):
        assert columns_of(pa.schema([("t", pa.timestamp("us", tz=zone))])) == instants
    assert columns_of(instants) is instants


def test_one_least_release_is_said_everywhere() -> None:
    assert SPARK_MIN == PYSPARK_MIN
    pinned = re.search(r'"pyspark\[sql\]>=([\d.]+)', Path("pyproject.toml").read_text())
    assert pinned is not None
    assert tuple(map(int, pinned[1].split("."))) == SPARK_MIN


def test_the_page_says_of_each_cell_whether_it_was_tried() -> None:
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [cell.name for cell in CELLS]
    assert all("| tried: " in row or "| not tried: " in row for row in rows)
