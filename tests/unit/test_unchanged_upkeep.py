"""Expiry of rows by age, and histories, of tables whose rows leave values unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.properties import ROW_TTL, ROW_TTL_BY
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.stores import MemoryStore
from tests.support.unchanged_cases import parse_steps
from tests.support.unchanged_tables import UnchangedTable

COLUMNS = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC"), "v": pa.string()})


def test_a_row_ages_from_the_time_that_an_update_left_unchanged() -> None:
    now = Now()
    table = Table(ClockedStore(now), clock=now)
    table.ensure(TableSchema.of(COLUMNS, keys=["k"]), {ROW_TTL: "10 days", ROW_TTL_BY: "at"})

    def days_ago(days: int) -> datetime:
        return datetime.fromtimestamp(now(), UTC) - timedelta(days=days)

    rows = [{"k": k, "at": days_ago(20), "v": "a"} for k in (1, 2, 3)]
    table.upsert(pa.Table.from_pylist(rows, COLUMNS))
    table.upsert(pa.table({"k": [1, 2], "v": ["b", "b"]}), columns=["v"])
    newer: dict[str, Any] = {"k": [2], "at": pa.array([days_ago(1)], COLUMNS.field("at").type)}
    table.upsert(pa.table(newer), columns=["at"])
    done = table.expire_rows()
    assert done is not None
    assert done.deletes == 2
    assert table.snapshot(columns=["k", "v"]).to_pylist() == [{"k": 2, "v": "b"}]
    table.compact(full=True)
    assert table.snapshot(columns=["k", "v"]).to_pylist() == [{"k": 2, "v": "b"}]


def test_a_history_has_the_rows_as_they_were() -> None:
    """With a late value, which fills in the row from its version on; and as a table of its own."""
    table = UnchangedTable()
    for step in parse_steps("P5(n=0,x=a) | P10(n=1,x=·) | P7(n=·,x=b) | merge | D12"):
        table.take(step)
    columns = ["k", "n", "x"]
    history = table.table.history(columns=columns, by=ValidBy.VERSION).read_all()
    found = [tuple(row[name] for name in columns) for row in history.to_pylist()]
    assert sorted(found, key=repr) == [(1, 0, "a"), (1, 1, "a"), (1, 1, "b")]
    kept = Table(MemoryStore())
    keep_history(table.table, kept, by=ValidBy.VERSION)
    rows = kept.snapshot(columns=columns).to_pylist()
    assert sorted((tuple(row.values()) for row in rows), key=repr) == sorted(found, key=repr)
