"""New values alone: what a table gained; a delete is told, or left out if that is meant."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.table.changelog.render import ChangeOptions, Deduplication, new_values
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

NOTHING: Mapping[str, str] = {}
LEFT_OUT = {"ignoreDeletes": "true"}


@pytest.fixture
def table() -> Table:
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    table.ensure(TableSchema.of(columns, keys=["id"]))
    return table


def append(table: Table, rows: dict[int, int | None], *, overwrite: bool = False) -> None:
    batch = pa.table(
        {
            "id": list(rows),
            "v": pa.array(rows.values(), pa.int64()),
            "deleted": [value is None for value in rows.values()],
        }
    )
    table.upsert(batch, deletes="deleted", overwrite=overwrite)


def read(
    table: Table,
    lower: int,
    *,
    wanted: Mapping[str, str] = NOTHING,
    mode: Deduplication = Deduplication.DROP_CARRYOVERS,
    columns: tuple[str, ...] = ("id", "v"),
) -> list[tuple[int, ...]]:
    options = ChangeOptions(columns=columns, deduplication=mode)
    shown = ReadOptions.parse({"path": "/", **wanted})
    changes = table.iter_changes(lower, table.log.head().upper, options)
    found = pa.Table.from_batches(new_values(changes, shown, keys=["id"]))
    return sorted(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def test_inserts_and_updates_are_new_values(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: 5, 2: 2, 3: 3})
    assert read(table, 1) == [(1, 1), (1, 5), (2, 2), (3, 3)]
    assert read(table, 2) == [(1, 5), (3, 3)]
    assert read(table, 2, mode=Deduplication.NONE) == [(1, 5), (2, 2), (3, 3)]
    assert read(table, 1, mode=Deduplication.NET_CHANGES) == [(1, 5), (2, 2), (3, 3)]


def test_a_delete_is_told_with_its_key_and_both_remedies(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: None, 3: 3})
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(id=1\)") as caught:
        read(table, 2)
    assert "read_change_feed=true" in caught.value.hint
    assert "ignore_deletes=true" in caught.value.hint
    with pytest.raises(OptionError, match=r"version 2 deletes a row, and"):
        read(table, 2, columns=("v",))


def test_deletes_are_left_out_if_that_is_meant(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: None, 3: 3})
    append(table, {2: None})
    assert read(table, 2, wanted=LEFT_OUT) == [(3, 3)]


def test_a_row_that_an_overwrite_leaves_out_is_deleted(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {2: 4, 3: 3}, overwrite=True)
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(id=1\)"):
        read(table, 2)
    assert read(table, 2, wanted=LEFT_OUT) == [(2, 4), (3, 3)]


def test_an_overwrite_that_leaves_nothing_out_deletes_nothing(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: 1, 2: 4, 3: 3}, overwrite=True)
    assert read(table, 2) == [(2, 4), (3, 3)]


def test_a_delete_that_the_same_read_takes_back_is_none_among_net_changes(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: None})
    append(table, {1: 5})
    assert read(table, 2, mode=Deduplication.NET_CHANGES) == [(1, 5)]
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(id=1\)"):
        read(table, 2)


def test_a_row_that_a_quarantined_one_takes_away_is_deleted() -> None:
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64(), "seq": pa.int64()})
    order = [pa.field("seq", pa.int64())]
    schema = TableSchema.of(
        columns, keys=["id"], order=order, scope=Scope.EPOCH, on_error=ErrorPolicy.QUARANTINE
    )
    table.ensure(schema)
    table.upsert(pa.table({"id": [1, 2], "seq": [1, 1]}))
    table.upsert(pa.table({"id": [1], "seq": pa.nulls(1, pa.int64())}))
    counters = table.log.commit(2).counters
    assert (counters["quarantined"], counters["displaced"]) == (1, 1)
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(id=1\)"):
        read(table, 2, columns=("id", "seq"))
