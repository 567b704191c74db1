"""A disk that is full, and files of a mirror that others removed: the table goes on regardless."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.delta import publish, upkeep
from spark_upsert.delta.follow import MIRRORS, default_mirror
from spark_upsert.delta.prepared_files import MirrorPreparation
from spark_upsert.delta.publish import check_mirror
from spark_upsert.store import LocalStore, local
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical, require_copy
from tests.support.stores import forget_runs_and_logs

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})


class _FullFile:
    """A file of which half of the first write finds room, and nothing behind it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._is_interrupted = False

    def write(self, data: Any) -> int:
        if self._is_interrupted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._is_interrupted = True
        return int(self._file.write(data[: max(1, len(data) // 2)]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def a_full_disk(folder: Path, ending: str) -> Iterator[list[Path]]:
    """Let the files of a folder with some ending find no room; yields the files that were tried."""
    tried: list[Path] = []
    write_temporary = local.LocalStore._write_temporary

    class FullSink(local.LocalSink):
        def __init__(self, target: Path, *, sync_parent: bool = True) -> None:
            super().__init__(target, sync_parent=sync_parent)
            final = self.final or target
            if final.is_relative_to(folder) and final.name.endswith(ending):
                tried.append(target)
                self._file: Any = _FullFile(self._file)

        final: Path | None = None

    def noted(self: LocalStore, target: Path, data: bytes) -> Path:
        FullSink.final = target
        try:
            return write_temporary(self, target, data)
        finally:
            FullSink.final = None

    with (
        patch.object(local, "LocalSink", FullSink),
        patch.object(local.LocalStore, "_write_temporary", noted),
    ):
        yield tried


class OnDisk:
    """A table in a folder that is published behind each commit."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.path = folder / "t"
        self.place = self.path / "_delta"
        published = {"publish": "delta", **properties}
        self.table = Table.create(str(self.path), COLUMNS, keys=["id"], properties=published)

    def append(self, *ids: int, x: str = "a") -> None:
        rows = pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=COLUMNS)
        assert self.table.upsert(rows) is not None

    def look(self) -> DeltaTable:
        return DeltaTable(LocalStore(self.place))

    def findings(self) -> list[str]:
        findings = check_mirror(default_mirror(self.table))
        return [f"{each.place}: {each.found}" for each in findings]

    def files(self) -> set[str]:
        return {str(f.relative_to(self.place)) for f in self.place.rglob("*") if f.is_file()}

    def require_copy(self) -> DeltaTable:
        return require_copy(self.table, LocalStore(self.place))


@pytest.mark.parametrize(
    ("below", "ending"),
    [
        ("", ".parquet"),
        ("", ".bin"),
        ("_change_data", ".parquet"),
        ("_delta_log", ".json"),
        ("", ""),
    ],
    ids=["a twin", "vectors", "a feed", "the commit", "anything"],
)
def test_a_full_disk_leaves_the_mirror_behind_and_the_table_as_it_is(
    tmp_path: Path,
    below: str,
    ending: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "INLINE_BYTES_MAX", 0)
    case = OnDisk(tmp_path, publishChangeFeed="true")
    case.append(1, 2, 3)
    shown, failures = canonical(case.table.snapshot()), MIRRORS.failures
    with a_full_disk(case.place / below, ending) as tried:
        for number in range(2):
            case.append(2, 10 + number, x=f"b{number}")
    assert tried
    assert MIRRORS.failures == failures + 2
    assert "No space left" in caplog.text
    assert case.table.snapshot().num_rows == 5
    mirror = case.look()
    assert mirror.version == 0
    assert canonical(mirror.rows()) == shown
    assert not case.findings()
    assert not [file for file in tried if file.exists()], "torn files"
    case.append(3, x="c")
    assert case.require_copy().version == 1


def test_a_checkpoint_that_finds_no_room_is_made_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "CHECKPOINT_EVERY", 3)
    case, failures = OnDisk(tmp_path), MIRRORS.failures
    with a_full_disk(case.place / "_delta_log", ".checkpoint.parquet") as tried:
        for number in range(4):
            case.append(1, number, x="b")
    assert tried
    assert "No space left" in caplog.text
    assert MIRRORS.failures == failures, "no step failed"
    assert case.require_copy().version == 3
    assert not [name for name in case.files() if "checkpoint" in name]
    case.append(9)
    assert [name for name in case.files() if name.endswith(".checkpoint.parquet")]
    forget_runs_and_logs()
    assert case.require_copy().version == 4


def test_a_full_disk_is_told_to_the_caller_of_a_publication(tmp_path: Path) -> None:
    case = OnDisk(tmp_path)
    case.append(1, 2)
    case.table.alter(case.table.schema, {"publish": "none"})
    case.append(2, 3)
    with a_full_disk(case.place, ".parquet"), pytest.raises(OSError, match="No space left"):
        case.table.publish()
    assert case.look().rows().num_rows == 2
    assert case.table.publish().shown == case.table.log.head().version
    case.require_copy()


@pytest.mark.parametrize("is_rebuilt", [True, False], ids=["a rebuild", "a compaction"])
def test_a_live_twin_that_others_removed_is_named_and_made_again(
    tmp_path: Path, is_rebuilt: bool
) -> None:
    case = OnDisk(tmp_path)
    case.append(1, 2, 3)
    case.append(3, 4, x="b")
    gone = min(case.look().adds)
    (case.place / gone).unlink()
    # A step by change reads no old twin: it is still named behind the next commits.
    for number in range(2):
        [finding] = case.findings()
        assert gone in finding
        assert "no such file" in finding
        case.append(5 + number)
    if is_rebuilt:
        case.table.publish(rebuild=True)
    else:
        case.table.compact(full=True)
    assert gone not in case.require_copy().adds


def test_a_vacuum_of_delta_rs_is_refused_without_the_guard_too(tmp_path: Path) -> None:
    """It does not write times into commits, which the mirror's protocol asks for."""
    deltalake = pytest.importorskip("deltalake")
    case = OnDisk(tmp_path, publishGuard="false")
    for number in range(3):
        case.append(1, number, x="b")
    case.table.compact(full=True)
    before = case.files()
    table = deltalake.DeltaTable(str(case.place))
    with pytest.raises(Exception, match="InCommitTimestamp"):
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert case.files() == before
    case.append(2, 9, x="c")
    case.require_copy()


def test_a_mirror_whose_past_others_removed_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a vacuum without a retention: all twins and vectors that no live file names."""
    monkeypatch.setattr(publish, "INLINE_BYTES_MAX", 0)
    case = OnDisk(tmp_path, publishChangeFeed="true")
    for number in range(4):
        case.append(1, number, x=f"b{number}")
    case.table.compact(full=True)
    live = case.look().adds
    gone = [name for name in case.files() if "/" not in name and name not in live]
    assert gone
    for name in gone:
        (case.place / name).unlink()
    forget_runs_and_logs()
    assert case.require_copy().feed() is None
    case.append(2, 9, x="c")
    feed = case.require_copy().feed()
    assert feed is not None
    assert feed.num_rows == 3


def test_a_twin_that_others_removed_before_its_commit_is_named_by_check(tmp_path: Path) -> None:
    """As by a vacuum without a retention, between a task and the commit of its rows."""
    case = OnDisk(tmp_path)
    case.append(1, 2)
    write = MirrorPreparation.write

    def vacuumed(self: MirrorPreparation, file: RunFile, rows: pa.RecordBatch) -> None:
        before = case.files()
        write(self, file, rows)
        for name in case.files() - before:
            (case.place / name).unlink()

    with patch.object(MirrorPreparation, "write", vacuumed):
        case.append(3, 4)
    [finding] = case.findings()
    assert "no such file" in finding
    case.table.publish(rebuild=True)
    case.require_copy()
