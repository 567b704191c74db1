"""Which rows are too old, what an expiry deletes, and what is refused."""

from __future__ import annotations

import json
import logging
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema, Ties
from spark_upsert.errors import OptionError, SchemaError, TableFullError
from spark_upsert.table import row_ttl
from spark_upsert.table.log.properties import ROW_TTL, ROW_TTL_BY
from spark_upsert.table.row_ttl import RowTtl, last_cutoff_ms
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now

DAY_S = 86_400
TIME = pa.timestamp("us", "UTC")
TTL = {ROW_TTL: "10 days", ROW_TTL_BY: "at"}


def table_of(
    now: Now, type_: pa.DataType = TIME, properties: dict[str, str] | None = None, **how: Any
) -> Table:
    table = Table(ClockedStore(now), clock=now)
    columns = pa.schema({"k": pa.int64(), "at": type_})
    table.ensure(
        TableSchema.of(columns, keys=["k"], **how), TTL if properties is None else properties
    )
    return table


def days_ago(now: Now, days: float) -> datetime:
    return datetime.fromtimestamp(now(), UTC) - timedelta(days=days)


def expired(table: Table) -> int:
    """Expire the rows, and return how many were deleted."""
    done = table.expire_rows()
    assert done is not None
    return done.deletes


def keys(table: Table) -> list[int]:
    return sorted(table.snapshot().to_pydict()["k"])


def append(table: Table, rows: dict[int, Any]) -> None:
    schema = table.schema.columns
    table.upsert(pa.table({"k": list(rows), "at": list(rows.values())}, schema=schema))


COLUMNS = pa.schema({"k": pa.int64(), "at": TIME})


@pytest.mark.parametrize(
    "type_",
    [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
    + [pa.timestamp("us", "Europe/Amsterdam")],
    ids=str,
)
def test_row_expires_when_its_time_is_the_ttl_ago(type_: pa.DataType) -> None:
    now = Now()
    table = table_of(now, type_)
    at = [days_ago(now, 10), days_ago(now, 10) + timedelta(seconds=1), None]
    naive = [None if each is None or type_.tz else each.replace(tzinfo=None) for each in at]
    append(table, dict(enumerate(at if type_.tz else naive)))
    assert (expired(table), keys(table)) == (1, [1, 2])
    now.advance(1)
    assert (expired(table), keys(table)) == (1, [2])


def test_date_counts_from_its_first_moment() -> None:
    now = Now(1_700_000_000 // DAY_S * DAY_S)
    table = table_of(now, pa.date32())
    today = datetime.fromtimestamp(now(), UTC).date()
    append(table, {1: today - timedelta(days=10), 2: today - timedelta(days=9), 3: date.max})
    assert (expired(table), keys(table)) == (1, [2, 3])


def test_each_expired_row_is_a_delete_of_the_changelog_and_no_tie(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = Now()
    for order in ([], [pa.field("at", TIME)]):
        table = table_of(now, order=order)
        with caplog.at_level(logging.WARNING):
            append(table, {1: days_ago(now, 10), 2: days_ago(now, -5)})
            assert expired(table) == 1
        version = table.log.head().version
        [gone] = table.changes(version, version + 1).to_pylist()
        assert (gone["k"], gone["_change_type"], gone["_diff"]) == (1, "delete", -1)
        counters = table.log.commit(version).counters
        assert (counters["deletes"], counters.get("tied", 0)) == (1, 0)
    assert caplog.messages == []


def test_expiry_of_versions_expires_rows_and_finds_nothing_the_next_time() -> None:
    now = Now()
    table = table_of(now)
    append(table, {1: days_ago(now, 11), 2: days_ago(now, 0)})
    assert table.expire(retain_versions=100).rows_deleted == 1
    head = table.log.head()
    assert (keys(table), last_cutoff_ms(head) > 0) == ([2], True)
    assert table.expire(retain_versions=100).rows_deleted == 0
    assert table.log.head().version == head.version, "no empty epoch"


def test_command_expires_rows(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"], properties=TTL)
    append(table, {1: datetime(2020, 1, 1, tzinfo=UTC)})
    done = CliRunner().invoke(upsertflow, ["expire", table.store.url, "--retain", "7d", "--json"])
    assert json.loads(done.stdout)["rows_deleted"] == 1
    assert keys(table) == []


def test_many_rows_expire_in_several_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ttl, "KEYS_MAX", 1)
    now = Now()
    table = table_of(now)
    for key in range(5):
        append(table, {key: days_ago(now, 11)})
    assert expired(table) == 5
    assert keys(table) == []


def test_without_the_property_rows_stay() -> None:
    now = Now()
    table = table_of(now, properties={})
    append(table, {1: days_ago(now, 1000)})
    assert table.expire_rows() is None
    table.alter(table.schema, {**TTL, ROW_TTL: "none"})
    append(table, {2: days_ago(now, 1000)})
    assert table.expire_rows() is None
    assert keys(table) == [1, 2]


def test_full_table_keeps_its_rows() -> None:
    now = Now()
    table = table_of(now, properties={**TTL, "maxBacklogEpochs": "1", "onFull": "reject"})
    table.hold("slow", table.log.head().version)
    append(table, {1: days_ago(now, 11)})  # There is no room for another epoch.
    with pytest.raises(TableFullError):
        table.expire_rows()
    assert keys(table) == [1]
    table.hold("slow", table.log.head().version)
    assert (expired(table), keys(table)) == (1, [])


def test_rows_expire_though_the_memory_of_writers_was_given_up() -> None:
    now = Now()
    table = table_of(now)
    for _ in range(5):
        append(table, {1: days_ago(now, 0)})
        now.advance(60 * DAY_S)
        done = table.expire(retain_versions=0, safety_ms=0, writers_ms=DAY_S * 1000)
        assert (done.rows_deleted, keys(table)) == (1, [])


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (TTL | {ROW_TTL_BY: "nope"}, "nope"),
        (TTL | {ROW_TTL_BY: "k"}, "expected a timestamp or a date"),
        (TTL | {ROW_TTL: "soon"}, "soon"),
        (TTL | {ROW_TTL: "0 days"}, "0 days"),
        ({ROW_TTL: "1 day"}, ROW_TTL_BY),
    ],
)
def test_properties_that_make_no_ttl_are_refused(
    properties: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises((OptionError, SchemaError), match=message):
        Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"], properties=properties)
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    with pytest.raises((OptionError, SchemaError), match=message):
        table.alter(table.schema, properties)


def test_table_whose_deletes_do_not_win_has_no_ttl() -> None:
    first = TableSchema.of(COLUMNS, keys=["k"], order=[COLUMNS.field("at")], ties=Ties.FIRST)
    with pytest.raises(OptionError, match="ties=first"):
        RowTtl.of(first, TTL)
    sums = MergeEngine(Engine.AGGREGATION, {"n": Rule.SUM, "at": Rule.MAX})
    columns = COLUMNS.append(pa.field("n", pa.int64()))
    with pytest.raises(OptionError, match="can be deleted"):
        RowTtl.of(TableSchema.of(columns, keys=["k"], engine=sums), TTL)


BY_COMMIT = TTL | {ROW_TTL_BY: "_commit_timestamp"}


def test_by_commit_late_row_that_lost_refreshes_nothing() -> None:
    now = Now()
    order = [pa.field("seq", pa.int64())]
    table = table_of(now, properties=BY_COMMIT, order=order)

    def put(key: int, seq: int) -> None:
        table.upsert(pa.table({"k": [key], "at": pa.nulls(1, TIME), "seq": [seq]}))

    put(1, 5)
    now.advance(9 * DAY_S)
    put(1, 3)
    now.advance(2 * DAY_S)
    put(2, 1)
    assert (expired(table), keys(table)) == (1, [2])


def test_by_commit_rows_from_before_the_first_readable_version_stay_for_a_ttl() -> None:
    """The table was given its TTL when its past was gone already."""
    now = Now()
    table = table_of(now, properties={})
    append(table, {1: None})
    now.advance(30 * DAY_S)
    append(table, {2: None})
    table.expire(retain_versions=0, safety_ms=0)
    since_ms = table.log.at(table.log.head().since).timestamp_ms
    table.alter(table.schema, BY_COMMIT)
    append(table, {3: None})
    assert (expired(table), keys(table)) == (0, [1, 2, 3])
    now.seconds = since_ms / 1000 + 10 * DAY_S
    assert expired(table) > 0
    assert 1 not in keys(table)
