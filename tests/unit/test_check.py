"""A check finds each damage of a table, and names its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import OnUnknown
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.state import check
from spark_upsert.table.state.check import Report
from spark_upsert.table.table import Table
from tests.support.lived import EVERY, Lived, body_of
from tests.support.model import Command
from tests.support.stores import FaultyStore, Steps
from tests.support.tables import append


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)


def test_a_sound_table_has_no_findings() -> None:
    lived = Lived(9)
    append(lived.table, [Command(3, None, 99)])
    report = lived.table.check()
    assert report.is_sound
    assert (report.since, report.newest, report.file_count) == (0, 10, 10)
    assert report.live_rows == 9


def test_a_check_finds_each_flipped_byte_of_a_run() -> None:
    lived = Lived(1)
    (path,) = lived.files("data")
    intact = lived.store.objects[path]
    for position in range(0, len(intact), 97):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        lived.store.objects[path] = bytes(damaged)
        report = lived.table.check()
        assert not report.is_sound, f"byte {position}"
        assert report.findings[0].place == path
    lived.store.objects[path] = intact
    assert lived.table.check().is_sound


def checked(lived: Lived, meanwhile: Callable[[int], None]) -> Report:
    """Check a table; another process does something behind each step, of which it is told."""
    steps = Steps(watch=lambda: meanwhile(len(steps.names)))
    return Table(FaultyStore(lived.store, steps), clock=lived.now).check()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_a_vacuum_removes_behind_a_check_is_no_damage(is_damaged: bool) -> None:
    def is_reached(step: int) -> bool:
        lived, seen = Lived(4), list[int]()
        old = lived.files("data")
        lived.table.compact(full=True)
        (kept,) = lived.files("data") - old
        if is_damaged:
            lived.store.objects[kept] = lived.store.objects[kept][:-1]

        def sweep(at: int) -> None:
            seen.append(at)
            if at == step:
                lived.sweep()
                assert lived.files("data") == {kept}

        report = checked(lived, sweep)
        files = {each.place for each in report.findings if each.place.startswith("data/")}
        assert files == ({kept} if is_damaged else set())
        assert report.is_sound is not is_damaged
        return step in seen

    assert any(not is_reached(step) for step in range(1, 1_000))


def test_a_check_ends_where_each_newest_version_is_expired() -> None:
    def overtake(_: int) -> None:
        if next(left, 0):
            lived.live()
            lived.table.compact(full=True)
            lived.sweep()

    lived, left = Lived(2), iter([1] * 30)
    assert checked(lived, overtake).is_sound
    assert next(left, 0) == 0


def test_a_check_finds_a_missing_file_and_goes_on() -> None:
    lived = Lived(3)
    paths = sorted(lived.files("data"))[::2]
    for path in paths:
        lived.store.delete(path)
    assert set(paths) <= {finding.place for finding in lived.table.check().findings}


@pytest.mark.parametrize("field", ["live_rows", "counters"])
def test_a_check_finds_numbers_that_do_not_add_up(field: str) -> None:
    lived = Lived(3)
    record = body_of(lived.store, 2)
    if field == "live_rows":
        record["live_rows"] += 1
    else:
        record["counters"]["rows"] += 1
    lived.store.put(commit_path(2), encode(record))
    assert "version 2" in [finding.place for finding in lived.reopened().check().findings]


def test_a_check_finds_a_snapshot_with_another_number_of_rows() -> None:
    lived = Lived(3)
    for version in (2, 3):
        record = body_of(lived.store, version)
        record["counters"]["inserts"] += version == 2
        record["counters"]["rows"] += version == 2
        record["live_rows"] += 1
        lived.store.put(commit_path(version), encode(record))
    assert [str(finding) for finding in lived.reopened().check().findings] == [
        "version 3: expected 5 rows, by its live_rows, found 4"
    ]


def test_it_counts_the_rows_with_an_unknown_value(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "n": pa.int64(), "x": pa.string()})
    table = Table.create(
        str(tmp_path / "t"), columns, keys=["id"], sequence_by=["n"], on_unknown=OnUnknown.NULL
    )
    table.upsert(pa.table({"id": [1, 2], "n": [1, 1]}), columns=[])
    assert table.log.head().unknown_rows == 2
    assert table.check().findings == ()
    with patch.object(check, "count_unknown", lambda _: 3):
        [finding] = table.check().findings
    assert finding.expected == "2 rows with an unknown value, by its unknown_rows"
    assert finding.found == "3"
