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
from spark_upsert.table.log.snapshot import (
    manifest_at,
    readable_from,
    require_ordered,
    resolve_ending_version,
    resolve_starting_version,
)
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.model import Command
from tests.support.queries import batch
from tests.support.stores import MemoryStore
from tests.support.tables import append, make_table, schema_of
from tests.support.view_tables import let_time_pass


@pytest.fixture
def table() -> Table:
    """A table of version 0 and three epochs."""
    table = make_table(MemoryStore(), schema_of(Scope.ARRIVAL))
    for key in range(3):
        append(table, [Command(key, key)])
    return table


def time_of(log: Log, version: int) -> int:
    return log.commit(version).timestamp_ms


def test_snapshot_is_named_by_a_version_by_a_time_or_not_at_all(table: Table) -> None:
    log = table.log
    assert manifest_at(log, version=2).version == 2
    assert manifest_at(log, time_ms=time_of(log, 1)).version == 1
    assert manifest_at(log, time_ms=time_of(log, 2) - 1).version == 1
    assert manifest_at(log).version == 3


def test_changes_begin_and_end_at_versions_and_times(table: Table) -> None:
    log = table.log
    time_ms = time_of(log, 2)
    behind: dict[str, Any] = {"is_inclusive": False}
    starts: list[tuple[dict[str, Any], int | None]] = [
        ({}, None),
        ({"version": 2}, 2),
        ({"version": 2, **behind}, 3),
        ({"version": 4}, 4),
        ({"version": 4, **behind}, 5),
        ({"version": "latest"}, 4),
        ({"version": "earliest"}, 0),
        ({"time_ms": time_ms}, 2),
        ({"time_ms": time_ms, **behind}, 3),
        ({"time_ms": time_ms + 1}, 3),
        ({"time_ms": 0}, 0),
        ({"time_ms": log.head().timestamp_ms + 1}, 4),
    ]
    for bound, first in starts:
        assert resolve_starting_version(log, **bound) == first, bound
    ends: list[tuple[dict[str, Any], int]] = [
        ({}, 4),
        ({"version": 2}, 3),
        ({"version": 2, **behind}, 2),
        ({"version": 3}, 4),
        ({"time_ms": time_ms}, 3),
        ({"time_ms": time_ms, **behind}, 2),
        ({"time_ms": 0}, 0),
    ]
    for bound, upper in ends:
        assert resolve_ending_version(log, **bound) == upper, bound


NOT_THERE: dict[str, Callable[[Table], object]] = {
    "versionAsOf": lambda table: manifest_at(table.log, version=4),
    "Table.at": lambda table: table.at(4),
    "Table.snapshot": lambda table: table.snapshot(4),
    "Table.get": lambda table: table.get(1, version=4),
    "Table.pieces": lambda table: table.pieces(version=4),
    "Table.quarantine": lambda table: list(table.quarantine(4)),
    "Table.changes": lambda table: table.changes(5),
    "Table.changes before all": lambda table: table.changes(-1),
    "the end of Table.changes": lambda table: table.changes(0, 5),
    "Table.history": lambda table: table.history(4, 5),
    "the start of Table.history": lambda table: table.history(5),
    "the end of Table.history": lambda table: table.history(0, 5),
    "Table.restore": lambda table: table.restore(4),
    "Table.hold": lambda table: table.hold("reader", 4),
    "Table.keep_held": lambda table: table.keep_held("reader", 4),
    "Table.watch": lambda table: table.watch(5),
    "startingVersion": lambda table: resolve_starting_version(table.log, version=5),
    "endingVersion": lambda table: resolve_ending_version(table.log, version=4),
    "timestampAsOf": lambda table: manifest_at(table.log, time_ms=2**50),
    "a time before the table": lambda table: manifest_at(table.log, time_ms=0),
    "startingTimestamp": lambda table: resolve_starting_version(table.log, time_ms=2**50),
    "endingTimestamp": lambda table: resolve_ending_version(table.log, time_ms=2**50),
}
"""Reads of a version, or a time, that a table of versions 0 to 3 does not have."""


@pytest.mark.parametrize("read", NOT_THERE)
def test_version_that_does_not_exist_has_one_code_everywhere(table: Table, read: str) -> None:
    with pytest.raises(VersionNotFoundError) as error:
        NOT_THERE[read](table)
    assert error.value.code == "VERSION_NOT_FOUND"
    assert error.value.hint.startswith("give a ")


def test_expired_version_and_its_gap_are_named(table: Table) -> None:
    table.expire(retain_versions=1, safety_ms=0)
    reads: list[Callable[[], object]] = [
        lambda: table.at(1),
        lambda: table.log.at_timestamp(time_of(table.log, 2) - 1),
        lambda: table.history(1),
    ]
    for read in reads:
        with pytest.raises(VersionNotFoundError, match="is expired: the table can be read from"):
            read()
    table.log.require_changes(3)
    for lost in (lambda: table.log.require_changes(1), lambda: table.hold("reader", 0)):
        with pytest.raises(DataLossError) as error:
            lost()
        gap = {"gap_from": 1, "gap_to": 2, "reason": "expired"}
        assert gap.items() <= error.value.fields.items()


def test_bound_that_does_not_exist_is_named_in_the_words_of_the_caller(table: Table) -> None:
    with pytest.raises(VersionNotFoundError, match=r"--from 5 does not exist: .* is 3"):
        resolve_starting_version(table.log, version=5, name="--from")
    with pytest.raises(VersionNotFoundError, match="endingVersion 4 does not exist"):
        resolve_ending_version(table.log, version=4)
    require_ordered(3, 3)
    with pytest.raises(OptionError, match="begin at version 4 and end before version 3"):
        require_ordered(4, 3)
    with pytest.raises(OptionError, match="begin at version 2 and end before version 1"):
        table.changes(2, 1)
    assert len(table.changes(4)) == len(table.changes(2, 2)) == 0


BOUNDS = {
    "from 2, to 1": False,
    "from 2, to 2": True,
    "from 3, to 2": False,
    "behind 2, to 2": True,
    "from 2, before 2": True,
    "from latest, to 1": False,
    "from latest": True,
    "from 4": True,
    "from TIME 2, to TIME 1": False,
    "from TIME 2, to TIME 2": True,
    "from TIME 3, to 1": False,
    "from 3, to TIME 1": False,
}


@pytest.mark.parametrize("of_view", [False, True], ids=["a table", "a view"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_changes_that_end_before_they_begin_are_refused(
    tmp_path: Path, bounds: str, of_view: bool
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    for key in range(3):
        let_time_pass(table)
        table.upsert(pa.table({"id": [key]}))
    options = {}
    for bound in bounds.split(", "):
        word, _, place = bound.partition(" ")
        side = "starting" if word in ("from", "behind") else "ending"
        if place.startswith("TIME"):
            options[f"{side}Timestamp"] = str(time_of(table.log, int(place[-1])))
        else:
            options[f"{side}Version"] = place
        options[f"{side}BoundInclusive"] = f"{word in ('from', 'to')}".lower()
    path = table.store.url
    source = {"plan": Plan.of_table(path).to_json()} if of_view else {"path": path}
    feeds = ["readChangeFeed"] if of_view or BOUNDS[bounds] else ["readChangeFeed", "readHistory"]
    for feed in feeds:
        with nullcontext() if BOUNDS[bounds] else pytest.raises(OptionError, match="before"):
            batch({**source, feed: "true", **options})


def test_expired_changes_are_left_out_with_a_warning_or_left_to_the_plan(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.expire(retain_versions=1, safety_ms=0)
    head = table.log.head()
    assert head.first_changes == 3
    with caplog.at_level(logging.WARNING):
        assert readable_from(head, 1, path="/t", fail_on_data_loss=True) == 1
        assert readable_from(head, 3, path="/t", fail_on_data_loss=False) == 3
        assert readable_from(head, 1, path="s3://me:secret@lake", fail_on_data_loss=False) == 3
    [record] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "changes are expired and left out" in record.getMessage()
    assert "gap_from=1 gap_to=2 reason=expired" in record.getMessage()
    assert "secret" not in record.getMessage()
