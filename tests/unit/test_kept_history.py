"""A kept history beside what happens to its table: new columns, expiries, compactions, restores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataError, DataLossError, OptionError, OtherTableError
from spark_upsert.store.local import LocalStore
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.leases import before_leases

COLUMNS = pa.schema({"id": pa.int32(), "v": pa.string(), "seq": pa.int64()})
SHOWN = ("id", "v", "valid_from", "valid_to", "is_current")


def table_in(now: Now) -> Table:
    return Table(ClockedStore(now), clock=now)


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def table(now: Now) -> Table:
    made = table_in(now)
    made.ensure(TableSchema.of(COLUMNS, keys=["id"], order=[COLUMNS.field("seq")]))
    return made


@pytest.fixture
def kept(now: Now) -> Table:
    return table_in(now)


def put(table: Table, v: str, seq: int, **more: Any) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": [v], "seq": [seq], **more})
    table.upsert(rows, merge_schema=True)


def held(kept: Table, *names: str) -> list[tuple[Any, ...]]:
    rows = kept.snapshot(columns=names or SHOWN).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def step(table: Table, kept: Table, **how: Any) -> bool:
    return keep_history(table, kept, **{"by": ValidBy.VERSION, **how}) is not None


def test_columns_that_the_table_gains_are_kept_unless_others_were_chosen(
    table: Table, kept: Table, now: Now
) -> None:
    chosen = table_in(now)
    put(table, "a", 1)
    step(table, kept)
    step(table, chosen, columns=["v"])
    put(table, "b", 2, n=[7])
    step(table, kept)
    step(table, chosen, columns=["v"])
    assert held(kept, "v", "n") == [("a", None), ("b", 7)]
    assert chosen.schema.columns.names == ["id", "v", *SHOWN[2:], "from_version"]
    assert chosen.schema.keys == ("id", "from_version")


def test_nothing_expires_that_a_keeper_has_to_read_until_it_was_away_for_too_long(
    table: Table, kept: Table, now: Now
) -> None:
    put(table, "a", 1)
    step(table, kept)
    put(table, "b", 2)
    put(table, "c", 3)
    now.advance(86_400)
    table.expire(retain_versions=1, safety_ms=0)
    step(table, kept)
    assert [row[1:4] for row in held(kept)] == [("a", 1, 2), ("b", 2, 3), ("c", 3, None)]
    put(table, "d", 4)
    put(table, "e", 5)
    now.advance(30 * 86_400)
    table.expire(retain_versions=1, safety_ms=0)
    assert table.log.head().since > 3
    with pytest.raises(DataLossError):
        step(table, kept)


def test_a_first_step_begins_anew_where_an_expiry_comes_before_its_lease(
    table: Table, kept: Table, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(number: int) -> None:
        put(table, f"v{number}", 2 + number)
        table.compact(full=True)
        now.advance(1)
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    put(table, "a", 1)
    with monkeypatch.context() as patched:
        before_leases(patched, expire, times=2)
        assert step(table, kept)
    put(table, "b", 9)
    assert step(table, kept)
    assert held(kept, "v", "is_current") == [("b", True), ("v1", False)]


def test_versions_without_rows_may_expire_meanwhile(table: Table, kept: Table, now: Now) -> None:
    for seq, v in enumerate("abc"):
        put(table, v, seq)
    step(table, kept)
    table.compact(full=True)
    for _ in range(2):
        now.advance(30 * 86_400)
        table.expire(retain_versions=1, safety_ms=0)
    assert table.log.head().first_changes > 4
    put(table, "d", 9)
    assert step(table, kept)
    assert held(kept)[-1][1:] == ("d", table.log.head().version, None, True)


@pytest.mark.parametrize("written_on", [1, 2, 3], ids="{} epochs since".format)
def test_a_table_that_was_set_back_from_a_copy_is_told_so(tmp_path: Path, written_on: int) -> None:
    path, kept = tmp_path / "table", Table(LocalStore(str(tmp_path / "kept")))
    table = Table.create(str(path), COLUMNS, keys=["id"], sequence_by=["seq"])
    put(table, "a", 1)
    shutil.copytree(path, tmp_path / "copy")
    put(table, "b", 2)
    assert step(table, kept)
    assert not step(table, kept), "the same past is gone on with"
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    table = Table.open(str(path))
    for seq in range(written_on):
        put(table, "c", 3 + seq)
    before = kept.snapshot()
    with pytest.raises(OtherTableError, match=r"has reached version \d.* a copy of it with"):
        step(table, kept)
    assert kept.snapshot() == before


def test_a_restored_table_ends_its_rows_like_any_change(table: Table, kept: Table) -> None:
    put(table, "a", 1)
    put(table, "b", 2)
    assert step(table, kept)
    table.compact(full=True)
    assert not step(table, kept), "nothing has changed"
    table.restore(1)
    step(table, kept)
    assert [row[1:4] for row in held(kept)] == [("a", 1, 2), ("a", 4, None), ("b", 2, 4)]


def test_by_order_an_overwrite_is_refused_and_nothing_is_kept(table: Table, kept: Table) -> None:
    put(table, "a", 1)
    step(table, kept, by=ValidBy.ORDER)
    rows = pa.table({"id": pa.array([2], pa.int32()), "v": ["x"], "seq": [1]})
    table.upsert(rows, overwrite=True)
    with pytest.raises(OptionError, match="has no order"):
        step(table, kept, by=ValidBy.ORDER)
    assert held(kept) == [(1, "a", 1, None, True)]


def test_a_kept_history_is_written_by_its_keeper_alone(table: Table, kept: Table) -> None:
    put(table, "a", 1)
    step(table, kept)
    put(table, "b", 2)
    step(table, kept)
    with pytest.raises(DataError, match="keeps the history of another one"):
        kept.delete(filter="TRUE")
    with pytest.raises(DataError, match="cannot be restored"):
        kept.restore(1)
