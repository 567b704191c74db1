"""Clocks that are wrong: refused where they would do harm for good, and repaired."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.schema import Scope
from spark_upsert.errors import ClockError
from spark_upsert.store import LocalStore
from spark_upsert.store.records import encode
from spark_upsert.table.log.codec import (
    commit_path,
    commit_to_json,
    manifest_from_json,
    manifest_to_json,
)
from spark_upsert.table.log.storage import storage_ms
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import append, schema_of

YEARS_S = 80 * 365 * DAY_S
DAY_MS = int(1000 * DAY_S)


class Place:
    """A table, the storage's clock, and one of a writer that may be wrong."""

    def __init__(self) -> None:
        self.storage_now = Now()
        self.store = ClockedStore(self.storage_now)
        self.table = Table(self.store, clock=self.storage_now)
        self.table.ensure(schema_of(Scope.EPOCH))

    def by_clock(self, ahead_s: float) -> Table:
        """Return the table as a machine sees it whose clock is ahead."""
        return Table(self.store, clock=lambda: self.storage_now() + ahead_s)

    def live(self, epochs: int) -> None:
        """Commit epochs, one an hour, by a clock that is right."""
        for _ in range(epochs):
            self.storage_now.advance(HOUR_S)
            append(self.table, [Command(1, 1, 1)])

    def spoil(self) -> int:
        """Commit as a machine did that was not held against the storage's clock."""
        self.live(3)
        version = self.table.log.head().version
        path = commit_path(version)
        record = json.loads(self.store.objects[path])
        del record["crc"]
        record["timestamp_ms"] += int(1000 * YEARS_S)
        self.store.objects[path] = encode(record)
        self.table = Table(self.store, clock=self.storage_now)
        return version


@pytest.fixture
def place() -> Place:
    return Place()


# -- commits -------------------------------------------------------------------------------


def test_a_commit_from_far_in_the_future_is_refused(place: Place) -> None:
    place.live(1)
    records = {path for path in place.store.objects if path.startswith("_log")}
    with pytest.raises(ClockError, match=r"(?s)this machine's clock says 21.*NTP"):
        append(place.by_clock(YEARS_S), [Command(2, 2, 2)])
    assert {path for path in place.store.objects if path.startswith("_log")} == records
    store = ClockedStore(place.storage_now)
    with pytest.raises(ClockError):
        Table(store, clock=lambda: place.storage_now() + YEARS_S).ensure(schema_of(Scope.EPOCH))
    assert not store.objects, "nor is a table made"


@pytest.mark.parametrize(
    "ahead_s", [-YEARS_S, -1.0, 0.0, HOUR_S], ids=["years behind", "behind", "right", "an hour"]
)
def test_a_commit_by_a_clock_that_does_no_harm_counts(place: Place, ahead_s: float) -> None:
    place.live(1)
    place.storage_now.advance(DAY_S)
    assert append(place.by_clock(ahead_s), [Command(2, 2, 2)]) is not None


def test_the_storage_is_asked_only_after_a_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is written to pays nothing."""
    place.live(2)
    probes: list[str] = []
    put = place.store.put

    def noted(path: str, data: bytes) -> None:
        probes.append(path)
        put(path, data)

    monkeypatch.setattr(place.store, "put", noted)
    append(place.table, [Command(2, 2, 2)])
    assert probes == []
    place.storage_now.advance(HOUR_S + 1)
    append(place.table, [Command(3, 3, 3)])
    assert [path.rpartition(".")[2] for path in probes] == ["now"]
    assert not [path for path in place.store.objects if path.endswith(".now")]


def test_the_storage_tells_its_time_from_a_probe(tmp_path: Path) -> None:
    place = Place()
    assert storage_ms(place.store) == int(1000 * place.storage_now())
    folder = LocalStore(tmp_path / "table")
    assert storage_ms(folder) is not None
    assert list((tmp_path / "table" / "data").iterdir()) == []


# -- expiry --------------------------------------------------------------------------------


def test_an_expiry_by_a_clock_that_is_far_ahead_is_refused_and_heeds_leases(place: Place) -> None:
    place.live(20)
    place.table.hold("reports", 3)
    with pytest.raises(ClockError):
        place.by_clock(YEARS_S).expire(retain_versions=1)
    assert place.table.log.head().since == 0
    assert place.table.expire(retain_versions=1).since == 3


def test_an_expiry_says_that_a_time_in_the_log_is_yet_to_come(place: Place) -> None:
    """It stopped for good, and did not say so."""
    version = place.spoil()
    place.live(48)
    with pytest.raises(ClockError, match=r"(?s)committed at 21.*repair-clock") as caught:
        place.table.expire(retain_ms=DAY_MS)
    assert str(version + 48) in str(caught.value)


# -- repair --------------------------------------------------------------------------------


def test_a_repair_lets_the_table_expire_again_and_goes_with_its_versions(place: Place) -> None:
    begin_ms = int(1000 * place.storage_now())
    version = place.spoil()
    place.live(2)
    commit = place.table.repair_clock()
    assert commit is not None
    assert (commit.wrong_from, commit.version) == (version, version + 3) == (3, 6)
    assert commit.timestamp_ms == int(1000 * place.storage_now())
    assert place.table.repair_clock() is None
    head = place.table.log.head()
    assert head.repairs
    assert manifest_from_json(manifest_to_json(head)) == head
    place.live(48)
    hours_ms = [begin_ms + hours * int(1000 * HOUR_S) for hours in range(7)]
    versions = [place.table.log.version_at(time_ms) for time_ms in hours_ms]
    assert versions == [0, 1, 2, 2, 2, commit.version, commit.version + 1]
    assert place.table.expire(retain_ms=DAY_MS).since > commit.version
    assert place.table.log.head().repairs == ()
    assert place.table.check().is_sound


def test_the_command_repairs_a_table(tmp_path: Path) -> None:
    table = Table(LocalStore(tmp_path / "table"))
    table.ensure(schema_of(Scope.EPOCH))
    append(table, [Command(1, 1, 1)])
    commit = table.log.commit(1)
    late = replace(commit, timestamp_ms=commit.timestamp_ms + int(1000 * YEARS_S))
    (tmp_path / "table" / commit_path(1)).write_bytes(encode(commit_to_json(late)))
    forget_runs_and_logs()  # The command is another process.
    for expected in (
        {"version": 2, "repaired_from": 1, "repaired_to": 1},
        {"version": None, "repaired_from": None, "repaired_to": None},
    ):
        arguments = ["repair-clock", str(tmp_path / "table"), "--json"]
        answer = CliRunner().invoke(upsertflow, arguments)
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.output) == expected
