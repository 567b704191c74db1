"""Which versions a read means: by number, by time, by word, with and without the bound itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_upsert.errors import DataLossError
from spark_upsert.model.schema import Scope
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from spark_upsert.table.versions import first_wanted, manifest_at, readable_from, upper_wanted
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, make_table, schema_of


@pytest.fixture
def table() -> Table:
    """A table of version 0 and three epochs."""
    made = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    for key in range(3):
        append(made, [Command(key, key)])
    return made


@pytest.fixture
def log(table: Table) -> Log:
    return table.log


def time_of(log: Log, version: int) -> int:
    return log.commit(version).timestamp_ms


def test_a_snapshot_is_named_by_a_version_by_a_time_or_not_at_all(log: Log) -> None:
    assert manifest_at(log, version=2).version == 2
    assert manifest_at(log, time_ms=time_of(log, 1)).version == 1
    assert manifest_at(log, time_ms=time_of(log, 2) - 1).version == 1
    assert manifest_at(log).version == 3


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({}, None),
        ({"version": 2}, 2),
        ({"version": 2, "is_inclusive": False}, 3),
        ({"version": 4}, 4),
        ({"version": 4, "is_inclusive": False}, 5),
        ({"version": "latest"}, 4),
        ({"version": "earliest"}, 0),
    ],
    ids=str,
)
def test_changes_begin_at(log: Log, bound: dict[str, Any], expected: int | None) -> None:
    assert first_wanted(log, **bound) == expected


def test_changes_begin_at_a_time(log: Log) -> None:
    time_ms = time_of(log, 2)
    assert first_wanted(log, time_ms=time_ms) == 2
    assert first_wanted(log, time_ms=time_ms, is_inclusive=False) == 3
    assert first_wanted(log, time_ms=time_ms + 1) == 3
    assert first_wanted(log, time_ms=0) == 0
    assert first_wanted(log, time_ms=2**50) == 4


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({}, 4),
        ({"version": 2}, 3),
        ({"version": 2, "is_inclusive": False}, 2),
        ({"version": 3}, 4),
    ],
    ids=str,
)
def test_changes_end_before(log: Log, bound: dict[str, Any], expected: int) -> None:
    assert upper_wanted(log, **bound) == expected


def test_changes_end_before_a_time(log: Log) -> None:
    time_ms = time_of(log, 2)
    assert upper_wanted(log, time_ms=time_ms) == 3
    assert upper_wanted(log, time_ms=time_ms, is_inclusive=False) == 2
    assert upper_wanted(log, time_ms=0) == 0


def test_a_bound_beyond_the_table_is_an_error_in_the_callers_words(log: Log) -> None:
    with pytest.raises(DataLossError, match="startingVersion 5 is beyond the next version, 4"):
        first_wanted(log, version=5)
    with pytest.raises(DataLossError, match="--from 5 is beyond"):
        first_wanted(log, version=5, name="--from")
    with pytest.raises(DataLossError, match="endingVersion 4 is beyond the newest version, 3"):
        upper_wanted(log, version=4)


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was warned of, whatever else libraries of the same process let through."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_expired_is_left_out_with_a_warning_or_left_to_the_plan(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.expire(retain_versions=1, safety_ms=0)
    log = table.log
    assert log.head().first_changes == 3
    with caplog.at_level(logging.WARNING):
        assert readable_from(log.head(), 1, path="/t", fail_on_data_loss=True) == 1
        assert readable_from(log.head(), 3, path="/t", fail_on_data_loss=False) == 3
    assert warnings(caplog) == []
    with caplog.at_level(logging.WARNING):
        assert (
            readable_from(log.head(), 1, path="s3://me:secret@lake", fail_on_data_loss=False) == 3
        )
    [record] = warnings(caplog)
    assert "changes are expired and left out" in record.getMessage()
    assert "gap_from=1 gap_to=2 reason=expired" in record.getMessage()
    assert "secret" not in record.getMessage()


def test_the_error_of_a_gap_says_from_where_to_where_and_why(table: Table) -> None:
    table.expire(retain_versions=1, safety_ms=0)
    with pytest.raises(DataLossError) as refused:
        table.log.require_changes(1)
    gap = {name: refused.value.fields[name] for name in ("gap_from", "gap_to", "reason")}
    assert gap == {"gap_from": 1, "gap_to": 2, "reason": "expired"}
    table.log.require_changes(3)
    with pytest.raises(DataLossError) as refused:
        table.hold("reader", 0)
    assert (refused.value.fields["gap_from"], refused.value.fields["gap_to"]) == (1, 2)
