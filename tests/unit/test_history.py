"""What a history shows: where it begins and ends, its columns, its types, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import DataLossError, OptionError, SchemaError
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.clocked import ClockedStore, Now
from tests.support.queries import batch
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.string(), "seq": pa.int64()})
START_S = 1_700_000_000


def table_of(now: Now | None = None, *, ordered: bool = True, **properties: Any) -> Table:
    now = now or Now()
    table = Table(ClockedStore(now), clock=now)
    order = [COLUMNS.field("seq")] if ordered else []
    table.ensure(TableSchema.of(COLUMNS, keys=["id"], order=order, **properties))
    return table


def put(table: Table, *rows: tuple[int, str | None, int]) -> None:
    """Append rows; a value of None is a delete."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS.names)}
    gone = pa.array([row[1] is None for row in rows])
    table.upsert(pa.table(columns, schema=COLUMNS).append_column("gone", gone), deletes="gone")


def told(table: Table, *given: int, **how: Any) -> list[tuple[Any, ...]]:
    rows = table.history(*given, **{"columns": ["id", "v"], "by": ValidBy.VERSION, **how})
    return [tuple(row.values()) for row in rows.read_all().to_pylist()]


def test_a_row_that_returns_leaves_a_gap_and_a_late_row_opens_none() -> None:
    table = table_of()
    put(table, (1, "a", 1))
    put(table, (1, None, 7))
    put(table, (1, "x", 3))
    put(table, (1, "b", 8), (1, "a", 9))
    assert told(table) == [(1, "a", 1, 2, False), (1, "a", 4, None, True)]
    assert told(table, by=ValidBy.ORDER) == [(1, "a", 1, 7, False), (1, "a", 9, None, True)]


def test_a_delete_by_key_has_the_order_of_its_row() -> None:
    table = table_of()
    put(table, (1, "a", 4))
    table.delete(1)
    assert told(table, by=ValidBy.ORDER) == [(1, "a", 4, 4, False)]


def test_several_order_columns_are_one_value() -> None:
    order = pa.schema({"day": pa.int32(), "n": pa.int64()})
    columns = pa.schema([("id", pa.int64()), *order])
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(columns, keys=["id"], order=list(order)))
    for day, number in ((1, 2), (2, 1)):
        table.upsert(pa.table({"id": [1], "day": [day], "n": [number]}, schema=columns))
    rows = table.history(by=ValidBy.ORDER, columns=["n"]).read_all()
    assert rows.schema.field("valid_from").type == pa.struct(list(order))
    assert rows.column("valid_from").to_pylist() == [{"day": 1, "n": 2}, {"day": 2, "n": 1}]


def test_behind_an_expiry_it_begins_with_the_first_version_that_is_left() -> None:
    now = Now()
    table = table_of(now)
    put(table, (1, "a", 1))
    now.advance(3600)
    put(table, (1, "b", 2))
    now.advance(100 * 86_400)
    put(table, (2, "x", 1))
    table.expire(retain_ms=1)
    since = table.log.head().since
    assert since > 1
    assert (1, "b", since, None, True) in told(table)
    with pytest.raises(DataLossError):
        told(table, 1)


@pytest.mark.parametrize("scope", [Scope.ARRIVAL, Scope.EPOCH], ids=lambda scope: scope.value)
def test_an_order_that_reaches_no_further_is_no_axis(scope: Scope) -> None:
    table = table_of(ordered=scope is not Scope.ARRIVAL, scope=scope)
    with pytest.raises(OptionError, match="no order that reaches across epochs"):
        told(table, by=ValidBy.ORDER)


def test_a_tracked_column_is_one_that_is_read() -> None:
    table = table_of()
    with pytest.raises(OptionError, match="columns that are read"):
        told(table, tracked=["seq"])
    with pytest.raises(SchemaError, match="'w' is not among"):
        told(table, tracked=["w"])
    with pytest.raises(OptionError, match="'trackHistoryExceptColumnList'"):
        told(table, untracked=["seq"])
    with pytest.raises(OptionError, match="contradict each other"):
        told(table, tracked=["v"], untracked=["id"])


# -- by the options of a read -------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Any) -> str:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], sequence_by=["seq"])
    put(table, (1, "a", 1))
    put(table, (1, "a", 2))
    put(table, (1, None, 3))
    return table.store.url


def read(path: str, **options: str) -> list[tuple[Any, ...]]:
    rows = batch({"path": path, "readHistory": "true", "validBy": "version", **options})
    return [tuple(row.values()) for row in rows]


def test_columns_that_are_not_read_or_tracked_open_no_row(path: str) -> None:
    assert read(path) == [(1, "a", 1, 1, 2, False), (1, "a", 2, 2, 3, False)]
    assert read(path, columns="v,id") == [("a", 1, 1, 3, False)]
    tracked = read(path, trackHistoryColumnList="V")
    assert tracked == [(1, "a", 2, 1, 3, False)]
    assert read(path, trackHistoryExceptColumnList="SEQ") == tracked
    with pytest.raises(OptionError, match="'trackHistoryExceptColumnList'"):
        read(path, trackHistoryColumnList="v", trackHistoryExceptColumnList="seq")


def test_a_read_begins_and_ends_where_it_is_told(path: str) -> None:
    ended = read(path, columns="id", endingVersion="2")
    assert ended == [(1, 1, None, True)]
    assert read(path, columns="id", endingVersion="2", endingBoundInclusive="false") == ended
    second = Table.open(path).log.commit(2).timestamp_ms
    assert read(path, startingTimestamp=str(second)) == [(1, "a", 2, 2, 3, False)]
    first = read(path, startingTimestamp=str(second - 1))
    assert first == [(1, "a", 1, 1, 2, False), (1, "a", 2, 2, 3, False)]
    assert read(path, startingTimestamp="2000-01-01") == first


@pytest.mark.parametrize(
    "name", ["readHistory", "validBy", "trackHistoryColumnList", "trackHistoryExceptColumnList"]
)
def test_a_view_has_no_history_of_its_own(path: str, name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' has no meaning beside 'plan'"):
        batch({"plan": Plan.of_table(path).to_json(), name: "true"})


def test_several_tables_have_their_histories_together(path: str, tmp_path: Any) -> None:
    other = Table.create(str(tmp_path / "u"), COLUMNS, keys=["id"], sequence_by=["seq"])
    put(other, (9, "z", 1))
    inputs = {"inputs": "t,u", "input.t.path": path, "input.u.path": other.store.url}
    rows = batch({**inputs, "readHistory": "true", "columns": "id"})
    assert sorted((row["id"], row["is_current"]) for row in rows) == [(1, False), (9, True)]
