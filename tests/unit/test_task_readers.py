"""What scans read: files, the rows of a version, and changes, each as splits of a task."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import CorruptionError, DataError
from spark_upsert.table.changelog.changes import cut_into_ranges
from spark_upsert.table.changelog.read import ChangeOptions
from spark_upsert.table.table import Table
from spark_upsert.task import ChangeScan, FileScan, TableScan, Task
from spark_upsert.task.sources import StretchSplit, VersionSplit, changes_reader, version_reader
from tests.support.tasks import rows_of

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.string()})
ROWS = pa.table({"id": [1, 2, 3], "v": ["a", None, "c"]}, schema=COLUMNS)


def read(task: Task, name: str, splits: list[Any]) -> list[tuple[Any, ...]]:
    with task:
        for split in splits:
            task.add_split(name, split)
        task.request_barrier()
        return rows_of(task.iter_batches())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    table.upsert(ROWS)
    table.upsert(pa.table({"id": [2], "v": ["b"]}))
    return table


def test_files_are_read_by_their_endings_and_only_the_columns_of_the_scan(tmp_path: Path) -> None:
    more = ROWS.append_column("w", pa.array([1.0, 2.0, 3.0]))
    pq.write_table(more, tmp_path / "one.parquet")
    with pa.ipc.new_file(str(tmp_path / "two.arrow"), more.schema) as writer:
        writer.write_table(more)
    task = Task(FileScan(id="files", schema=COLUMNS))
    found = read(task, "files", [str(tmp_path / name) for name in ("one.parquet", "two.arrow")])
    assert found == 2 * [(1, "a"), (2, None), (3, "c")]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"node 'files': '.*one\.csv' has an ending that is not known"
    ):
        read(Task(FileScan(id="files", schema=COLUMNS)), "files", [str(tmp_path / "one.csv")])


def test_a_file_whose_offsets_point_outside_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.arrow"
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["abc", "def"])], schema=COLUMNS)
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_batch(rows)
    written, outside = struct.pack("<3i", 0, 3, 6), struct.pack("<3i", 0, 3, 1 << 30)
    assert path.read_bytes().count(written) == 1
    path.write_bytes(path.read_bytes().replace(written, outside))
    with pytest.raises(DataError, match=r"node 'files': '.*one\.arrow' is .* damaged: "):
        read(Task(FileScan(id="files", schema=COLUMNS)), "files", [str(path)])


@pytest.mark.parametrize("name", ["one.parquet", "two.arrow"])
def test_what_is_no_regular_file_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(CorruptionError, match="found a link to a device"):
        read(Task(FileScan(id="files", schema=COLUMNS)), "files", [str(tmp_path / name)])


def test_the_rows_of_versions(table: Table) -> None:
    plan = TableScan(id="rows", schema=COLUMNS)
    task = Task(plan, readers={"rows": version_reader(table.store)})
    halves = [VersionSplit(table.log.at(1), half) for half in ALL_HASHES.cut(2)]
    found = read(task, "rows", [*halves, VersionSplit(table.log.head())])
    assert sorted(found[:3]) == [(1, "a"), (2, None), (3, "c")]
    assert sorted(found[3:]) == [(1, "a"), (2, "b"), (3, "c")]


def test_the_changes_of_a_stretch(table: Table) -> None:
    head = table.log.head()
    [stretch] = cut_into_ranges(table.log, 2, head.upper, head.schema)
    plan = ChangeScan(id="changes", schema=pa.schema([*COLUMNS, *CHANGELOG_FIELDS]))
    reader = changes_reader(table.store, ChangeOptions(columns=("id", "v")))
    found = read(Task(plan, readers={"changes": reader}), "changes", [StretchSplit(stretch)])
    assert [row[:4] for row in found] == [
        (2, None, "update_preimage", 2),
        (2, "b", "update_postimage", 2),
    ]
