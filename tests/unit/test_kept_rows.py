"""A table that keeps the rows of a view takes what one query writes, and nothing else."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import DataError, OtherTableError, PlanError
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import create_rows_table
from spark_upsert.views.plan_builder import Plan

ROWS = pa.schema({"id": pa.int64(), "v": pa.string()})
WRITTEN = pa.schema(
    {**{f.name: f.type for f in ROWS}, "_commit_version": pa.int64(), "_diff": pa.int8()}
)
WRITES = {
    "envelope": "changelog",
    "keys": "id",
    "sequenceBy": "_commit_version",
    "sequenceScope": "table",
}


def made(path: Path, plan: str = "a plan", clock: Clock = time.time, **more: str) -> Table:
    table = Table(open_store(str(path)), clock=clock)
    options = WriteOptions.parse({**WRITES, "path": str(path), **more})
    create_rows_table(table, plan, options, pa.schema([*ROWS, *CHANGELOG_FIELDS]))
    return table


def write(table: Table, query: str | None, number: int, *rows: tuple[int, str, int]) -> bool:
    """Write new values of rows with the versions of their steps, as a batch of a query."""
    records = [
        {"id": id_, "v": v, "_commit_version": version, "_diff": 1} for id_, v, version in rows
    ]
    data = pa.Table.from_pylist(records, WRITTEN)
    transaction = None
    if query is not None:
        writer = Transaction.writer_of_query(query)
        transaction = Transaction(writer=writer, number=number, is_consecutive=True)
    return table.upsert(data, transaction=transaction) is not None


def shown(table: Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.snapshot().to_pylist()}


def test_batches_of_one_query_come_in_any_order_and_again(tmp_path: Path) -> None:
    table = made(tmp_path / "kept")
    assert write(table, "one", 0, (1, "new", 7), (2, "x", 7))
    assert not write(table, "one", 0, (1, "new", 7), (2, "x", 7))
    assert write(table, "one", 1, (1, "old", 3))
    assert shown(table) == {1: "new", 2: "x"}


def test_another_query_is_refused_also_if_both_begin_at_once(tmp_path: Path) -> None:
    table, other = made(tmp_path / "kept"), made(tmp_path / "kept")
    assert write(table, "one", 0, (1, "a", 7))
    with pytest.raises(OtherTableError, match="keeps the rows of a view by 'query:one', and 'quer"):
        write(other, "two", 0, (1, "b", 9))
    assert shown(table) == {1: "a"}
    assert write(table, "one", 1, (1, "c", 8))


def test_a_query_that_was_forgotten_is_not_taken_for_none(tmp_path: Path) -> None:
    now = itertools.count(1_000)
    table = made(tmp_path / "kept", clock=lambda: next(now))
    assert write(table, "one", 0, (1, "a", 7))
    table.expire(retain_versions=1, safety_ms=0, writers_ms=0)
    assert not table.log.head().transactions
    with pytest.raises(OtherTableError, match="by 'a query that was forgotten"):
        write(table, "two", 0, (1, "b", 9))


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_nobody_else_writes(tmp_path: Path, overwrite: bool) -> None:
    table = made(tmp_path / "kept")
    rows = pa.table([[1], ["a"], [1], [1]], schema=WRITTEN)
    with pytest.raises(DataError, match="the query of that view writes and no other writer"):
        table.upsert(rows, overwrite=overwrite)
    assert table.log.head().version == 0


def test_it_is_not_set_back_under_its_query(tmp_path: Path) -> None:
    table = made(tmp_path / "kept")
    assert write(table, "one", 0, (1, "a", 7))
    assert write(table, "one", 1, (2, "b", 8))
    with pytest.raises(DataError, match="keeps the rows of a view or a history, and cannot be"):
        table.restore(1)
    assert table.restore(2) is None, "it is there"
    assert shown(table) == {1: "a", 2: "b"}


def test_a_path_keeps_one_view(tmp_path: Path) -> None:
    made(tmp_path / "kept")
    made(tmp_path / "kept")
    with pytest.raises(PlanError, match="keeps another view: expected another plan, found a plan"):
        made(tmp_path / "kept", "another plan")


def test_a_kept_table_of_rows_and_a_table_of_its_view_are_not_mixed(tmp_path: Path) -> None:
    """It may be behind its tables, as a table that keeps groups may be."""
    base = Table.create(str(tmp_path / "base"), ROWS, keys=["id"])
    plan = Plan.of_table(base.store.url)
    kept = Plan.of_table(made(tmp_path / "kept", plan.to_json()).store.url).select("id", w="v")
    with pytest.raises(PlanError, match="base comes in twice, maybe at two versions"):
        plan.join(kept, "id")
    assert plan.join(kept, "id", mixed_bases=True).schema.names == ["id", "v", "w"]
