"""The group table: what it records of whole batches, of the past, and who may write it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataLossError, OptionError, OtherTableError, VersionNotFoundError
from spark_upsert.routed import group
from spark_upsert.routed.group import COLUMNS, Batch, GroupTable, Member, TableGroup, owner_of
from spark_upsert.table.log.manifest import TableVersion, Transaction
from tests.support.stores import MemoryStore

Q1, Q2, CHECKPOINT = "query:one", "query:two", "checkpoint:/c"


def batch(writer: str, number: int | None, rows: int = 1) -> Batch:
    """Return a batch of the template ``{topic}``."""
    return Batch(template="{topic}", writer=writer, number=number, rows=rows, committed_ms=5)


def member(folder: str, writer: str, number: int | None, version: int) -> Member:
    """Return what a batch says of a table."""
    return Member(
        folder=folder,
        name=folder,
        values=(folder,),
        place=TableVersion(table_id=f"id-{folder}", version=version, token=f"t{version}"),
        writer=writer,
        batch=number,
        rows=1,
        debt=version,
        debt_since_ms=1_000 if version else None,
        committed_ms=5,
    )


def transaction(writer: str, number: int) -> Transaction:
    """Return the transaction of a batch of a query."""
    return Transaction(writer=writer, number=number, is_consecutive=True)


def record(table: GroupTable, writer: str, number: int, *members: Member, **asked: bool) -> bool:
    """Record a batch; return whether it was not recorded before."""
    commit = table.append(batch(writer, number), members, transaction(writer, number), **asked)
    return commit is not None


def test_a_root_without_a_group_table_has_an_empty_group() -> None:
    table = GroupTable(MemoryStore())
    assert table.at() == TableGroup()
    assert not table.has(transaction(Q1, 0))
    table.require_owner(Q1)
    with pytest.raises(OptionError, match="no batch that has a number is whole yet"):
        table.of_batch(0)


def test_a_group_of_an_older_version_is_gone_on_with() -> None:
    table = GroupTable(MemoryStore())
    older = pa.schema([field for field in COLUMNS if field.name not in ("priority", "turn")])
    with (
        patch.object(group, "COLUMNS", older),
        patch.object(group, "SCHEMA", TableSchema.of(older, keys=["folder"])),
    ):
        assert record(table, Q1, 0, member("a", Q1, 0, 1))
    before = table.at()
    assert (before.batch, before.members["a"].priority) == (batch(Q1, 0), None)
    assert record(table, Q1, 1, replace(member("b", Q1, 1, 1), priority=7))
    priorities = {folder: each.priority for folder, each in table.at().members.items()}
    assert priorities == {"a": None, "b": 7}
    assert table.of_batch(0) == before


def test_a_group_holds_the_last_batch_of_each_table_and_each_batch_once() -> None:
    table = GroupTable(MemoryStore())
    a0, b0, a1 = member("a", Q1, 0, 0), member("b", Q1, 0, 0), member("a", Q1, 1, 3)
    assert record(table, Q1, 0, a0, b0)
    assert record(table, Q1, 1, a1)
    assert not record(table, Q1, 1, member("a", Q1, 1, 9))
    assert record(table, Q1, 2), "an empty batch is one, too"
    assert table.at().batch == batch(Q1, 2)
    assert table.at().members == {"a": a1, "b": b0}
    assert table.of_batch(0).members == {"a": a0, "b": b0}
    assert table.of_batch(1).members == table.at().members


def test_batches_that_are_missing_are_an_error() -> None:
    table = GroupTable(MemoryStore())
    record(table, Q1, 0)
    with pytest.raises(OtherTableError, match="must hold all batches before it"):
        record(table, Q1, 2)
    assert table.at().batch == batch(Q1, 0)


def test_a_batch_that_is_forgotten_a_batch_to_come_and_one_left_out_are_told_apart() -> None:
    table = GroupTable(MemoryStore())
    for number in (0, 1, 2, 7):
        table.append(batch(Q1, number), [], Transaction(writer=Q1, number=number))
    table.table.compact(full=True)
    with pytest.raises(VersionNotFoundError, match="up to 7"):
        table.of_batch(8)
    with pytest.raises(VersionNotFoundError, match="the next batch is 7"):
        table.of_batch(5)
    table.table.expire(retain_versions=2, safety_ms=0)
    assert table.of_batch(7).batch == batch(Q1, 7)
    with pytest.raises(DataLossError, match="batch 0"):
        table.of_batch(0)


WRITERS: dict[str, tuple[tuple[str, ...], str, bool, str | None]] = {
    "nobody has written": ((), Q1, False, None),
    "the same query": ((Q1,), Q1, False, None),
    "another query": ((Q1,), Q2, False, "give it up"),
    "another query without an id": ((Q1,), CHECKPOINT, False, "give it up"),
    "another query that takes over": ((Q1,), Q2, True, None),
    "the query that lost": ((Q1, Q2), Q1, False, "taken over"),
    "the query that lost asks again": ((Q1, Q2), Q1, True, "taken over"),
    "a batch write beside a query": ((Q1,), "", True, "own path"),
    "a named batch write beside a query": ((Q1,), "app:a", True, "own path"),
    "batch writes alone": (("app:a",), "app:b", False, None),
    "a query after batch writes": (("app:a",), Q1, False, None),
}


@pytest.mark.parametrize(
    ("before", "writer", "take_over", "refused"), WRITERS.values(), ids=WRITERS
)
def test_who_may_write_below_a_root(
    before: tuple[str, ...], writer: str, take_over: bool, refused: str | None
) -> None:
    table = GroupTable(MemoryStore())
    for each in before:
        record(table, each, 0, take_over=True)
    expected = pytest.raises(OtherTableError, match=refused) if refused else nullcontext()
    with expected:
        table.require_owner(writer, take_over=take_over)


def test_who_loses_the_race_for_a_root_is_refused_by_the_commit_itself() -> None:
    root = MemoryStore()
    early, late = GroupTable(root), GroupTable(root)
    early.require_owner(Q1)
    late.require_owner(Q2)
    record(early, Q1, 0, member("a", Q1, 0, 0))
    held = set(root.objects)
    with pytest.raises(OtherTableError, match="query:one"):
        record(late, Q2, 0, member("a", Q2, 0, 1))
    assert set(root.objects) == held, "what was staged is removed"
    assert owner_of(late.table.log.head()) == Q1


def test_a_query_that_lost_the_root_may_repeat_what_it_had_recorded() -> None:
    table = GroupTable(MemoryStore())
    record(table, Q1, 0)
    record(table, Q2, 0, take_over=True)
    assert table.has(transaction(Q1, 0))
    assert not record(table, Q1, 0)
    with pytest.raises(OtherTableError):
        record(table, Q1, 1)
