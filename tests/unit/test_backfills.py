"""What `docs/backfills.md` says of rows and deletes below the low-water mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.string(), "at": pa.int64()})
ROWS = pa.schema([*COLUMNS, pa.field("gone", pa.bool_())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table that has forgotten a delete of order 10."""
    properties = {"tombstoneRetention": "0 s"}
    table = Table.create(
        str(tmp_path), COLUMNS, keys=["k"], sequence_by=["at"], properties=properties
    )
    put(table, 1, 9)
    delete(table, 1, 10)
    table.compact(full=True)
    put(table, 2, 20)
    table.compact(full=True)
    return table


def _append(table: Table, row: dict[str, Any], late_rows: str) -> dict[str, int]:
    commit = table.upsert(
        pa.Table.from_pylist([row], ROWS), deletes="gone", late_rows=LateRows(late_rows)
    )
    assert commit is not None
    return {name: n for name, n in commit.counters.items() if n}


def put(table: Table, key: int, at: int, late_rows: str = "fail") -> dict[str, int]:
    return _append(table, {"k": key, "v": "a", "at": at, "gone": False}, late_rows)


def delete(table: Table, key: int, at: int, late_rows: str = "fail") -> dict[str, int]:
    return _append(table, {"k": key, "at": at, "gone": True}, late_rows)


def keys(table: Table) -> list[int]:
    return sorted(table.snapshot()["k"].to_pylist())


def test_a_late_row_is_under_the_policy(table: Table) -> None:
    with pytest.raises(DataError, match="late"):
        put(table, 5, 3)
    assert put(table, 5, 3, "reject") == {"rows": 1, "rejected": 1}
    assert put(table, 5, 3, "apply") == {"rows": 1, "inserts": 1, "late": 1}
    assert keys(table) == [2, 5]


@pytest.mark.parametrize("policy", ["fail", "reject"])
def test_a_late_delete_is_left_out_unless_its_row_is_there(table: Table, policy: str) -> None:
    assert delete(table, 5, 4, policy) == {"rows": 1, "rejected": 1}
    assert put(table, 5, 3, "apply") == {"rows": 1, "inserts": 1, "late": 1}
    assert delete(table, 5, 4, policy) == {"rows": 1, "deletes": 1}
    assert keys(table) == [2]


def test_a_late_delete_that_is_applied_is_remembered(table: Table) -> None:
    assert delete(table, 5, 4, "apply") == {"rows": 1, "absent": 1, "late": 1}
    assert put(table, 5, 3, "apply") == {"rows": 1, "stale": 1}
    assert keys(table) == [2]
