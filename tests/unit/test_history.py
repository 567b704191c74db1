"""What a history shows: where it begins and ends, its columns, its types, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import DataLossError, OptionError, SchemaError
from spark_upsert.table.changelog.render import ValidBy
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.reads import batch
from tests.support.clocked import ClockedStore, Now
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


def test_an_update_ends_a_row_and_opens_one() -> None:
    table = table_of()
    put(table, (1, "a", 1))
    put(table, (1, "b", 2))
    assert told(table) == [(1, "a", 1, 2, False), (1, "b", 2, None, True)]


def test_a_row_that_returns_leaves_a_gap() -> None:
    table = table_of()
    put(table, (1, "a", 1))
    put(table, (1, None, 2))
    put(table, (2, "x", 1))
    put(table, (1, "a", 3))
    ones = [row for row in told(table) if row[0] == 1]
    assert ones == [(1, "a", 1, 2, False), (1, "a", 4, None, True)]


def test_the_last_of_several_updates_within_an_epoch_is_seen() -> None:
    table = table_of()
    put(table, (1, "a", 1), (1, "b", 2), (1, "c", 3))
    assert told(table, by=ValidBy.ORDER) == [(1, "c", 3, None, True)]


def test_a_late_row_opens_none() -> None:
    table = table_of()
    put(table, (1, "b", 5))
    put(table, (1, "a", 3))
    assert told(table) == [(1, "b", 1, None, True)]


def test_an_update_to_the_same_values_opens_none() -> None:
    table = table_of()
    put(table, (1, "a", 1))
    put(table, (1, "a", 2))
    assert told(table, by=ValidBy.ORDER) == [(1, "a", 1, None, True)]


def test_a_deletes_own_order_ends_its_row() -> None:
    table = table_of()
    put(table, (1, "a", 1))
    put(table, (1, None, 7))
    assert told(table, by=ValidBy.ORDER) == [(1, "a", 1, 7, False)]


def test_a_delete_by_key_has_the_order_of_its_row() -> None:
    table = table_of()
    put(table, (1, "a", 4))
    table.delete(1)
    assert told(table, by=ValidBy.ORDER) == [(1, "a", 4, 4, False)]


def test_several_order_columns_are_one_value() -> None:
    columns = pa.schema({"id": pa.int64(), "day": pa.int32(), "n": pa.int64()})
    table = Table(MemoryStore())
    schema = TableSchema.of(columns, keys=["id"], order=[columns.field(n) for n in ("day", "n")])
    table.ensure(schema)
    table.upsert(pa.table({"id": [1], "day": [1], "n": [2]}, schema=columns))
    table.upsert(pa.table({"id": [1], "day": [2], "n": [1]}, schema=columns))
    rows = table.history(by=ValidBy.ORDER, columns=["n"])
    assert rows.schema.field("valid_from").type == pa.struct(
        [("day", pa.int32()), ("n", pa.int64())]
    )
    assert [row["valid_from"] for row in rows.read_all().to_pylist()] == [
        {"day": 1, "n": 2},
        {"day": 2, "n": 1},
    ]


def test_a_history_begins_with_the_rows_of_its_first_version() -> None:
    table = table_of()
    put(table, (1, "a", 1), (2, "x", 1))
    put(table, (1, "b", 2))
    put(table, (1, "c", 3))
    assert sorted(told(table, 2, 3)) == [(1, "b", 2, None, True), (2, "x", 2, None, True)]
    assert sorted(told(table, 2)) == [
        (1, "b", 2, 3, False),
        (1, "c", 3, None, True),
        (2, "x", 2, None, True),
    ]


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


def test_nothing_that_is_compacted_changes_it() -> None:
    table = table_of()
    for seq in range(1, 8):
        put(table, (1, str(seq), seq), (seq, "x", seq))
        before = told(table)
        table.compact(full=True)
        versions = {row[2] for row in told(table)}
        assert told(table) == before
    assert len(versions) == 7


def test_null_is_a_value_like_others() -> None:
    table = table_of(ordered=False)
    for v in (None, None, "a", None):
        table.upsert(pa.table({"id": [1], "v": [v], "seq": [None]}, schema=COLUMNS))
    assert told(table) == [(1, None, 1, 3, False), (1, "a", 3, 4, False), (1, None, 4, None, True)]


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


class TestARead:
    """The same by the options of a read."""

    @pytest.fixture
    def path(self, tmp_path: Any) -> str:
        table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], sequence_by=["seq"])
        put(table, (1, "a", 1))
        put(table, (1, "a", 2))
        put(table, (1, None, 3))
        return table.store.url

    def read(self, path: str, **given: str) -> list[tuple[Any, ...]]:
        rows = batch({"path": path, "readHistory": "true", "validBy": "version", **given})
        return [tuple(row.values()) for row in rows]

    def test_all_columns_come_in_their_order(self, path: str) -> None:
        assert self.read(path) == [(1, "a", 1, 1, 2, False), (1, "a", 2, 2, 3, False)]

    def test_columns_that_are_not_read_open_no_row(self, path: str) -> None:
        assert self.read(path, columns="v,id") == [("a", 1, 1, 3, False)]
        tracked = self.read(path, trackHistoryColumnList="V")
        assert tracked == [(1, "a", 2, 1, 3, False)]
        assert self.read(path, trackHistoryExceptColumnList="SEQ") == tracked
        with pytest.raises(OptionError, match="'trackHistoryExceptColumnList'"):
            self.read(path, trackHistoryColumnList="v", trackHistoryExceptColumnList="seq")

    def test_it_ends_where_it_is_told(self, path: str) -> None:
        ended = self.read(path, columns="id", endingVersion="2")
        assert ended == [(1, 1, None, True)]
        assert (
            self.read(path, columns="id", endingVersion="2", endingBoundInclusive="false") == ended
        )

    def test_by_time_it_begins_with_what_held_then(self, path: str) -> None:
        second = Table.open(path).log.commit(2).timestamp_ms
        assert self.read(path, startingTimestamp=str(second)) == [(1, "a", 2, 2, 3, False)]
        first = self.read(path, startingTimestamp=str(second - 1))
        assert first == [(1, "a", 1, 1, 2, False), (1, "a", 2, 2, 3, False)]
        assert self.read(path, startingTimestamp="2000-01-01") == first

    @pytest.mark.parametrize(
        "name", ["readHistory", "validBy", "trackHistoryColumnList", "trackHistoryExceptColumnList"]
    )
    def test_a_view_has_none_of_its_own(self, path: str, name: str) -> None:
        with pytest.raises(OptionError, match=f"'{name}' has no meaning beside 'plan'"):
            batch({"plan": Plan.of_table(path).to_json(), name: "true"})

    def test_several_tables_have_their_histories_together(self, path: str, tmp_path: Any) -> None:
        other = Table.create(str(tmp_path / "u"), COLUMNS, keys=["id"], sequence_by=["seq"])
        put(other, (9, "z", 1))
        given = {"inputs": "t,u", "input.t.path": path, "input.u.path": other.store.url}
        rows = batch({**given, "readHistory": "true", "columns": "id"})
        assert sorted((row["id"], row["is_current"]) for row in rows) == [(1, False), (9, True)]
