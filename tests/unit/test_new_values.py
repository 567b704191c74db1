"""New values alone: what a table gained; a delete is told, or left out if that is meant."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication, new_values
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.tables import schema_of


@pytest.fixture
def table() -> Table:
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    table.ensure(TableSchema.of(columns, keys=["id"]))
    return table


def append(table: Table, rows: dict[int, int | None], *, overwrite: bool = False) -> None:
    values = pa.array(rows.values(), pa.int64())
    batch = pa.table({"id": list(rows), "v": values, "deleted": values.is_null()})
    table.upsert(batch, deletes="deleted", overwrite=overwrite)


def read(
    table: Table,
    lower: int,
    *,
    mode: Deduplication = Deduplication.DROP_CARRYOVERS,
    columns: tuple[str, ...] = ("id", "v"),
    **options: str,
) -> list[tuple[int, ...]]:
    how = ChangeOptions(columns=columns, deduplication=mode)
    changes = table.iter_changes(lower, table.log.head().upper, how)
    wanted = ReadOptions.parse({"path": "/", **options})
    rows = pa.Table.from_batches(new_values(changes, wanted, keys=["id"]))
    return sorted(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))


def test_inserts_and_updates_are_new_values(table: Table) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {1: 5, 2: 2, 3: 3})
    assert read(table, 1) == [(1, 1), (1, 5), (2, 2), (3, 3)]
    assert read(table, 2) == [(1, 5), (3, 3)]
    assert read(table, 2, mode=Deduplication.NONE) == [(1, 5), (2, 2), (3, 3)]
    assert read(table, 1, mode=Deduplication.NET_CHANGES) == [(1, 5), (2, 2), (3, 3)]
    append(table, {1: 5, 2: 4, 3: 3, 4: 4}, overwrite=True)
    assert read(table, 3) == [(2, 4), (4, 4)], "an overwrite that leaves no row out"


@pytest.mark.parametrize("overwrite", [False, True], ids=["a delete", "an overwrite"])
def test_deleted_row_is_refused_with_its_key_or_left_out_if_that_is_meant(
    table: Table, overwrite: bool
) -> None:
    append(table, {1: 1, 2: 2})
    append(table, {2: 4, 3: 3} if overwrite else {1: None, 2: 4, 3: 3}, overwrite=overwrite)
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(id=1\)") as error:
        read(table, 2)
    assert "read_change_feed=true" in error.value.hint
    assert "ignore_deletes=true" in error.value.hint
    with pytest.raises(OptionError, match=r"version 2 deletes a row, and"):
        read(table, 2, columns=("v",))
    append(table, {2: None})
    assert read(table, 2, ignoreDeletes="true") == [(2, 4), (3, 3)]
    append(table, {1: 5, 2: 5})
    assert read(table, 2, mode=Deduplication.NET_CHANGES) == [(1, 5), (2, 5), (3, 3)]


def test_row_that_a_quarantined_one_takes_away_is_deleted() -> None:
    table = Table(MemoryStore())
    schema = schema_of(Scope.EPOCH)
    table.ensure(replace(schema, on_error=ErrorPolicy.QUARANTINE))
    for seq in (1, None):
        keys = [1, 2] if seq else [1]
        orders = pa.array([seq] * len(keys), pa.int64())
        table.upsert(pa.table({"k": keys, "v": keys, "seq": orders}))
    counters = table.log.commit(2).counters
    assert (counters["quarantined"], counters["displaced"]) == (1, 1)
    how = ChangeOptions(columns=("k", "v"), deduplication=Deduplication.DROP_CARRYOVERS)
    with pytest.raises(OptionError, match=r"version 2 deletes a row \(k=1\)"):
        list(
            new_values(table.iter_changes(2, 3, how), ReadOptions.parse({"path": "/"}), keys=["k"])
        )
