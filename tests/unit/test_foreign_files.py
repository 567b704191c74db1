"""A vacuum removes what our writers have made, by name, and nothing that a link leads to."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import CorruptionError
from spark_upsert.store.records import encode
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.run.file import RUNS, is_run_path
from spark_upsert.table.table import Table
from tests.support.stores import forget_runs_and_logs

DAY_S = 86_400
COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})


def rows(version: int) -> pa.Table:
    return pa.table({"k": [0, version], "v": [version, version]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table whose files are a week old."""
    table = Table.create(str(tmp_path / "table"), COLUMNS, keys=["k"])
    for version in range(1, 4):
        table.upsert(rows(version))
    age(folder_of(table))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.store.url)


def age(root: Path, *, days: float = 7) -> None:
    """Make all files below a folder older."""
    for path in root.rglob("*"):
        old_s = path.lstat().st_mtime - days * DAY_S
        os.utime(path, (old_s, old_s), follow_symlinks=False)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def vacuum_twice(table: Table) -> None:
    """Remove what can go: on a table at rest an orphan goes with the second vacuum."""
    table.vacuum()
    age(folder_of(table), days=2)
    table.vacuum()


FOREIGN = [
    "notes.txt",
    "report.arrow",
    "0123456789abcdef.arrow",
    "01234567-89ab-cdef-0123-456789abcdef.arrow",
    "0123456789abcdef0123456789abcdef.arrow.bak",
    "0123456789ABCDEF0123456789ABCDEF.arrow",
    ".tmp-of-mine",
]


def test_foreign_files_stay_and_are_reported_and_an_orphan_beside_them_goes(table: Table) -> None:
    table.upsert(rows(4), overwrite=True)
    table.upsert(rows(5))
    table.compact(full=True)
    paths = {part.file.path for version in range(7) for part in table.log.commit(version).slices()}
    assert len(paths) >= 6
    assert all(is_run_path(path) for path in paths)
    data = folder_of(table) / "data"
    for name in FOREIGN:
        (data / name).write_text("precious")
    orphan = data / f"{uuid.uuid4().hex}.arrow"
    orphan.write_text("left behind")
    age(data)
    vacuum_twice(table)
    assert not orphan.exists()
    assert {(data / name).read_text() for name in FOREIGN} == {"precious"}
    assert table.vacuum().foreign == tuple(sorted(f"data/{name}" for name in FOREIGN))
    done = CliRunner().invoke(upsertflow, ["vacuum", str(folder_of(table)), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["foreign"] == len(FOREIGN)
    assert "data/.tmp-of-mine" in json.loads(done.output)["foreign_examples"]


def test_a_linked_data_folder_is_not_emptied(table: Table, tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    data = folder_of(table) / "data"
    data.rename(documents)
    # Even names like ours may be of another table there.
    (documents / f"{uuid.uuid4().hex}.arrow").write_text("of another table")
    (documents / "thesis.odt").write_text("three years of work")
    data.symlink_to(documents)
    age(documents)
    before = files(documents)
    vacuum_twice(table)
    assert files(documents) == before
    assert "data/thesis.odt" in table.vacuum().foreign
    RUNS._runs.clear()
    assert table.snapshot().num_rows == 4


@pytest.mark.parametrize("is_there", [True, False], ids=["a file", "nothing"])
def test_a_linked_file_stays_and_so_does_what_it_leads_to(
    is_there: bool, table: Table, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere.arrow"
    if is_there:
        target.write_text("precious")
    link = folder_of(table) / "data" / f"{uuid.uuid4().hex}.arrow"
    link.symlink_to(target)
    age(folder_of(table) / "data")
    vacuum_twice(table)
    assert link.is_symlink()
    assert target.exists() is is_there
    assert table.vacuum().foreign == (f"data/{link.name}",)


def test_a_linked_log_is_not_cut(table: Table, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("spark_upsert.table.log.storage.CHECKPOINT_EVERY", 2)
    for version in range(4, 9):
        table.upsert(rows(version))
    elsewhere = tmp_path / "elsewhere"
    (folder_of(table) / "_log").rename(elsewhere)
    (folder_of(table) / "_log").symlink_to(elsewhere)
    age(elsewhere)
    before = files(elsewhere)
    table.expire(retain_versions=1, safety_ms=0)
    vacuum_twice(table)
    assert before <= files(elsewhere)


@pytest.mark.parametrize("name", ["data/.tmp-", "_log/.tmp-", "_consumers/.tmp-"])
def test_what_a_killed_writer_kept_under_a_temporary_name_goes(name: str, table: Table) -> None:
    torn = folder_of(table) / f"{name}{uuid.uuid4().hex}"
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"torn")
    assert table.vacuum().leftovers == ()
    assert torn.exists(), "a writer may be about to name it"
    probe = folder_of(table) / "data" / f"{uuid.uuid4().hex}.now"
    probe.write_bytes(b"")
    age(torn.parent)
    age(probe.parent)
    planned = table.vacuum(dry_run=True)
    assert torn.exists()
    done = table.vacuum()
    assert {folder_of(table) / info.path for info in planned.leftovers} == {torn, probe}
    assert (done.leftovers, done.bytes) == (planned.leftovers, 4)
    assert not torn.exists()
    assert not probe.exists()


def test_a_file_from_the_future_makes_nothing_older(table: Table) -> None:
    data = folder_of(table) / "data"
    waiting = data / f"{uuid.uuid4().hex}.arrow"
    waiting.write_text("staged")
    age(data, days=0.1)
    strange = data / "from_the_future"
    strange.write_text("")
    late_s = strange.stat().st_mtime + 30 * DAY_S
    os.utime(strange, (late_s, late_s))
    table.vacuum()
    table.vacuum()
    assert waiting.exists()


@pytest.mark.parametrize("path", ["../x.arrow", "data/../../x", "/etc/passwd", "data/.x", ""])
def test_a_path_in_the_log_that_leaves_the_table_is_corruption(path: str, table: Table) -> None:
    commit = folder_of(table) / commit_path(3)
    record = json.loads(commit.read_bytes())
    record.pop("crc")
    record["added"][0]["path"] = path
    commit.write_bytes(encode(record))
    forget_runs_and_logs()
    with pytest.raises(CorruptionError, match="path"):
        Table.open(str(folder_of(table))).snapshot()
