"""Which versions a read means: by number, by time, by word, with and without the bound itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataLossError, OptionError, VersionNotFoundError
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from spark_upsert.table.versions import (
    first_wanted,
    manifest_at,
    readable_from,
    require_ordered,
    upper_wanted,
)
from spark_upsert.views.plan_builder import Plan
from tests.hints.reads import batch
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, make_table, schema_of
from tests.support.view_tables import let_time_pass


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
    assert first_wanted(log, time_ms=log.head().timestamp_ms + 1) == 4


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


NOT_THERE: dict[str, Callable[[Table], object]] = {
    "versionAsOf": lambda table: manifest_at(table.log, version=4),
    "Table.at": lambda table: table.at(4),
    "Table.snapshot": lambda table: table.snapshot(4),
    "Table.get": lambda table: table.get(1, version=4),
    "Table.pieces": lambda table: table.pieces(version=4),
    "Table.quarantine": lambda table: list(table.quarantine(4)),
    "Table.changes": lambda table: table.changes(5),
    "the end of Table.changes": lambda table: table.changes(0, 5),
    "Table.history": lambda table: table.history(4, 5),
    "the start of Table.history": lambda table: table.history(5),
    "the end of Table.history": lambda table: table.history(0, 5),
    "Table.restore": lambda table: table.restore(4),
    "Table.hold": lambda table: table.hold("reader", 4),
    "Table.watch": lambda table: table.watch(5),
    "startingVersion": lambda table: first_wanted(table.log, version=5),
    "endingVersion": lambda table: upper_wanted(table.log, version=4),
    "timestampAsOf": lambda table: manifest_at(table.log, time_ms=2**50),
    "a time before the table": lambda table: manifest_at(table.log, time_ms=0),
    "startingTimestamp": lambda table: first_wanted(table.log, time_ms=2**50),
    "endingTimestamp": lambda table: upper_wanted(table.log, time_ms=2**50),
}
"""Reads of a version, or a time, that a table of versions 0 to 3 does not have."""


@pytest.mark.parametrize("read", NOT_THERE)
def test_a_version_that_does_not_exist_has_one_code_everywhere(table: Table, read: str) -> None:
    with pytest.raises(VersionNotFoundError) as refused:
        NOT_THERE[read](table)
    assert refused.value.code == "VERSION_NOT_FOUND"
    assert refused.value.hint.startswith("give a ")


def test_an_expired_version_has_the_same_code(table: Table) -> None:
    table.expire(retain_versions=1, safety_ms=0)
    reads: dict[str, Callable[[], object]] = {
        "number": lambda: table.at(1),
        "time": lambda: table.log.at_timestamp(time_of(table.log, 2) - 1),
        "history": lambda: table.history(1),
    }
    for name, read in reads.items():
        with pytest.raises(VersionNotFoundError, match="is expired: the table can be read from"):
            read()
        assert name


def test_a_bound_that_does_not_exist_is_named_in_the_callers_words(log: Log) -> None:
    with pytest.raises(VersionNotFoundError, match=r"--from 5 does not exist: .* is 3"):
        first_wanted(log, version=5, name="--from")
    with pytest.raises(VersionNotFoundError, match="endingVersion 4 does not exist"):
        upper_wanted(log, version=4)
    require_ordered(3, 3)
    with pytest.raises(OptionError, match="begin at version 4 and end before version 3"):
        require_ordered(4, 3)


@pytest.mark.parametrize("of_view", [False, True], ids=["a table", "a view"])
@pytest.mark.parametrize(
    ("bounds", "is_allowed"),
    [
        ({"startingVersion": "2", "endingVersion": "1"}, False),
        ({"startingVersion": "2", "endingVersion": "2"}, True),
        ({"startingVersion": "3", "endingVersion": "2"}, False),
        ({"startingVersion": "2", "startingBoundInclusive": "false", "endingVersion": "2"}, True),
        ({"startingVersion": "2", "endingBoundInclusive": "false", "endingVersion": "2"}, True),
        ({"startingVersion": "latest", "endingVersion": "1"}, False),
        ({"startingVersion": "latest"}, True),
        ({"startingVersion": "4"}, True),
        ({"startingTimestamp": "TIME 2", "endingTimestamp": "TIME 1"}, False),
        ({"startingTimestamp": "TIME 2", "endingTimestamp": "TIME 2"}, True),
        ({"startingTimestamp": "TIME 3", "endingVersion": "1"}, False),
        ({"startingVersion": "3", "endingTimestamp": "TIME 1"}, False),
    ],
    ids=str,
)
def test_changes_that_end_before_they_begin_are_refused(
    tmp_path: Path, bounds: dict[str, str], is_allowed: bool, of_view: bool
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    for key in range(3):
        let_time_pass(table)
        table.upsert(pa.table({"id": [key]}))
    times = {f"TIME {v}": str(table.log.commit(v).timestamp_ms) for v in range(4)}
    given = {name: times.get(text, text) for name, text in bounds.items()}
    path = table.store.url
    source = {"plan": Plan.of_table(path).to_json()} if of_view else {"path": path}
    if not of_view and not is_allowed:
        with pytest.raises(OptionError, match="before"):
            batch({**source, "readHistory": "true", **given})
    with nullcontext() if is_allowed else pytest.raises(OptionError, match="before"):
        batch({**source, "readChangeFeed": "true", **given})


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
