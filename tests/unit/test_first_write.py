"""The first epoch makes the table, by one put: a write that fails leaves none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_upsertflow.readers import read_schema
from spark_upsert.errors import ContentionError, OtherTableError
from spark_upsert.options.write import WriteOptions
from spark_upsert.store import LocalStore
from spark_upsert.table.log.manifest import Kind, Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert_sink.writers import SinkPlan, plan_sink

ROWS = pa.table({"k": [1, 2, 2], "v": ["a", "b", "c"]})
LATER = pa.table({"k": [2, 3], "v": ["d", "e"]})


def plan(path: Path, **options: str) -> SinkPlan:
    texts = {"path": str(path), "keys": "k", **options}
    return plan_sink(WriteOptions.parse(texts), ROWS.schema, overwrite=False)


def staged(
    planned: SinkPlan, rows: pa.Table = ROWS, *, query: str | None = None, batch: int = 0
) -> WriteSet:
    """Stage rows upon a plan, as the batch of a query."""
    base = Snapshot(planned.table().store, planned.write.base)
    part = stage(base, (planned.write.envelope.commands(each) for each in rows.to_batches()))
    transactions = [Transaction(writer=query, number=batch, is_consecutive=True)] if query else []
    return WriteSet(base=base, staged=(part,), transactions=tuple(transactions))


def written(path: Path) -> Table:
    """Return a table that a first and a second write made."""
    for rows in (ROWS, LATER):
        planned = plan(path)
        assert planned.table().commit(staged(planned, rows)) is not None
    return Table.open(str(path))


def rows_at(table: Table, version: int | None = None) -> dict[int, str]:
    rows = table.snapshot(version).to_pylist()
    return {row["k"]: row["v"] for row in rows}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


# -- what a failure leaves ---------------------------------------------------------------


def test_what_a_killed_first_write_leaves_is_no_table(path: Path) -> None:
    staged(plan(path, keys="v", onError="inline"))
    assert Table(LocalStore(path)).log.try_head() is None
    wrong = plan(path, keys="v")
    wrong.table().discard(staged(wrong).staged)
    table = written(path)
    assert rows_at(table) == {1: "a", 2: "d", 3: "e"}
    assert (table.schema.keys, table.schema.on_error.value) == (("k",), "fail")
    assert table.check().is_sound


# -- version 0 is an epoch ---------------------------------------------------------------


def test_the_first_epoch_is_version_0(path: Path) -> None:
    table = written(path)
    first, second = table.log.commits(0, 2)
    assert (first.kind, first.is_epoch, first.live_rows) == (Kind.CREATE, True, 2)
    assert (second.kind, table.log.head().version) == (Kind.APPEND, 1)
    assert rows_at(table, 0) == {1: "a", 2: "c"}
    changes = [(0, "a", 1), (0, "c", 1), (1, "c", -1), (1, "d", 1), (1, "e", 1)]
    for bounds, expected in (((0, 1), changes[:2]), ((1, 2), changes[2:]), ((), changes)):
        rows = table.changes(*bounds).to_pylist()
        assert sorted((r["_commit_version"], r["v"], r["_diff"]) for r in rows) == expected
    table.expire(retain_versions=0, safety_ms=0)
    assert (table.log.head().since, table.log.head().first_changes) == (1, 2)
    assert table.check().is_sound


def test_a_first_write_of_no_rows_makes_the_table(path: Path) -> None:
    planned = plan(path)
    planned.table().commit(WriteSet(base=staged(planned).base, staged=()))
    assert rows_at(Table.open(str(path))) == {}
    assert read_schema({"path": str(path)}).names == ["k", "v"]


# -- who makes it ------------------------------------------------------------------------


def test_of_two_first_writes_one_is_told_to_run_again(path: Path) -> None:
    one, other = plan(path), plan(path)
    epochs = staged(one), staged(other, LATER)
    assert one.table().commit(epochs[0]) is not None
    with pytest.raises(ContentionError, match="made the table"):
        other.table().commit(epochs[1])
    assert rows_at(Table.open(str(path))) == {1: "a", 2: "c"}
    again = plan(path)
    assert again.table().commit(staged(again, LATER)) is not None
    assert rows_at(Table.open(str(path))) == {1: "a", 2: "d", 3: "e"}


def test_the_first_batch_of_a_query_is_applied_once(path: Path) -> None:
    """Two incarnations of a query stage its first batch; one of them is committed."""
    one, other = plan(path), plan(path)
    epochs = staged(one, query="q"), staged(other, query="q")
    assert one.table().commit(epochs[0]) is not None
    assert other.table().commit(epochs[1]) is None
    assert len(list((path / "data").glob("*.arrow"))) == 1
    again = plan(path)
    assert again.table().commit(staged(again, query="q")) is None


# -- batches that are missing --------------------------------------------------------------


def test_a_query_goes_on_with_its_next_batch(path: Path) -> None:
    for batch, rows in enumerate((ROWS, LATER)):
        planned = plan(path)
        planned.table().commit(staged(planned, rows, query="q", batch=batch))
    assert rows_at(Table.open(str(path))) == {1: "a", 2: "d", 3: "e"}


def test_a_query_that_began_elsewhere_does_not_make_a_table(path: Path) -> None:
    """Its table was removed, for example: today's batch alone would be taken for all."""
    planned = plan(path)
    with pytest.raises(OtherTableError, match=r"'q' writes its batch 7.*found none") as caught:
        planned.table().commit(staged(planned, query="q", batch=7))
    assert "allow_missing_batches=true" in str(caught.value)
    assert Table(LocalStore(path)).log.try_head() is None


def test_a_query_does_not_go_on_in_another_or_an_older_table(path: Path) -> None:
    for query, batch in (("other", 0), ("q", 0)):
        planned = plan(path)
        planned.table().commit(staged(planned, query=query, batch=batch))
    planned = plan(path)
    with pytest.raises(OtherTableError, match="those up to 0"):
        planned.table().commit(staged(planned, query="q", batch=2))
    with pytest.raises(OtherTableError, match="none of them"):
        planned.table().commit(staged(planned, query="third", batch=1))
    assert Table.open(str(path)).log.head().version == 1


def test_a_query_goes_on_where_that_is_allowed(path: Path) -> None:
    planned = plan(path)
    epoch = staged(planned, query="q", batch=7)
    (transaction,) = epoch.transactions
    allowed = replace(epoch, transactions=(replace(transaction, is_consecutive=False),))
    assert planned.table().commit(allowed) is not None
