"""Hints of writes into many tables, and of the rows in their dead-letter table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed import plan as routed_plan
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.hints.followed_hint import FollowedHint
from tests.support.own_schemas import INLINE
from tests.support.routed_worlds import transaction
from tests.unit.test_parking import OPTIONS, ROWS, Rows, batch_of, rows_in, write
from tests.unit.test_routed_schemas import message, rows_of
from tests.unit.test_routed_schemas import write as write_records


def root_of(hint: FollowedHint) -> LocalStore:
    return LocalStore(str(hint.folder))


def nothing_waits(hint: FollowedHint) -> None:
    assert DeadLetterTable(root_of(hint)).counts() == {}


def test_a_schema_that_contradicts_the_table(hint: FollowedHint) -> None:
    root = root_of(hint)
    text = [message("a", 2, flag=("string", "yes"))]
    write_records(root, 0, [message("a", 1, flag=("boolean", True))], **INLINE)
    with hint:
        write_records(root, 1, text, **INLINE)
    hint("With on_error=quarantine payloads whose schema contradicts the table are kept apart")
    write_records(root, 1, text, **INLINE, onError=hint.options["onError"])
    assert rows_of(root, "a") == [{"id": 1, "flag": True}]


def test_rows_for_a_column_of_another_type(hint: FollowedHint) -> None:
    root = root_of(hint)
    write(root, 0, [("a", 1, 1)], [("a", 1, 2)], [("b", 1, 1)])
    columns = pa.schema({"id": pa.int64(), "v": pa.string()})
    Table.create(str(hint.folder / "a"), columns, keys=["id"])
    with hint:
        replay_dead_letters(root)
    assert "before writing" not in hint.text
    hint("give except_column_list=v")
    replay_dead_letters(root, options={"exceptColumnList": "v"})
    assert table_below(root, "a").snapshot().to_pylist() == [{"id": 1, "v": None}]
    nothing_waits(hint)
    hint("Rows to come need a column of another name at the source")
    table_below(root, "a").upsert(pa.table({"id": [2], "w": [5]}), merge_schema=True)
    assert table_below(root, "a").snapshot().sort_by("id").to_pylist()[1]["w"] == 5


def test_a_fault_of_this_release(hint: FollowedHint) -> None:
    root, plan = root_of(hint), plan_table_write

    def faulty(table: Table, *args: Any, **how: Any) -> Any:
        if table.store.url.endswith("/a"):
            raise IndexError("a fault of this version")
        return plan(table, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routed_plan, "plan_table_write", faulty)
        write(root, 0, [("a", 1, 1), ("b", 1, 1)])
        with hint:
            replay_dead_letters(root)
    hint("run 'upsertflow replay'")
    replay_dead_letters(root)
    nothing_waits(hint)


def test_a_row_without_a_table(hint: FollowedHint) -> None:
    rows: Rows = [(None, 1, 1)]
    with hint:
        write(root_of(hint), 0, rows, onTableError="fail")
    hint("give such rows a value")
    write(root_of(hint), 0, [("a", 1, 1)], onTableError="fail")
    hint("filter them out before the write")
    write(root_of(hint), 1, [], onTableError="fail")
    keeps_apart(hint, rows)


def keeps_apart(hint: FollowedHint, rows: Rows) -> None:
    """Give each of the options by which rows without a table are kept."""
    for number, name in enumerate(("onTableError", "onError"), start=2):
        hint("they are kept apart, and counted")
        write(root_of(hint), number, rows, **{"onTableError": "fail", name: hint.options[name]})
        assert DeadLetterTable(root_of(hint)).counts()[""] == number - 1


def test_an_expired_batch(hint: FollowedHint) -> None:
    root = root_of(hint)
    for number in range(3):
        write(root, number, [("a", 1, number)])
    group = GroupTable(root)
    group.table.expire(retain_versions=0, safety_ms=0)
    with hint:
        group.of_batch(0)
    hint("read batch 2 or a later one")
    assert group.of_batch(2).members["a"].batch == 2
    hint("by a longer group_retention=30 days")
    RoutedOptions.parse({**OPTIONS, "groupRetention": hint.options["groupRetention"]})


def test_another_path_below_the_root(hint: FollowedHint) -> None:
    root, other = root_of(hint), LocalStore(str(hint.folder / "other"))
    write(root, 0, [("a", 1, 1)])
    with hint:
        write(root, 1, [("a", 2, 2)], path="/lake/x{topic}")
    hint("go on with the path that ends in '{topic}'")
    write(root, 1, [("a", 2, 2)], path="/lake/{topic}")
    hint("give another root")
    write(other, 0, [("a", 2, 2)], path="/lake/x{topic}")


def parked(hint: FollowedHint) -> LocalStore:
    """Return a root with parked rows of the table ``a``."""
    root = root_of(hint)
    Table.create(str(hint.folder / "a"), pa.schema({"id": pa.int64()}), keys=["id"])
    write(root, 0, [("a", 1, 1)])
    return root


def test_rows_after_those_that_are_parked(hint: FollowedHint) -> None:
    root = parked(hint)
    rows: Rows = [("a", 2, 2)]
    with hint:
        write(root, 1, rows, onTableError="fail")
    hint("with on_table_error=park a stream parks what comes behind them")
    write(root, 1, rows, **hint.options)
    hint(f"apply them by 'upsertflow replay {root.url} a'")
    upsert(root.url, "a", "--set", "mergeSchema=true")
    write(root, 2, [("a", 3, 3)], onTableError="fail")
    assert rows_in(root, "a") == {1: 1, 2: 2, 3: 3}


def test_parked_rows_that_are_dropped(hint: FollowedHint) -> None:
    root = parked(hint)
    with hint:
        write(root, 1, [("a", 2, 2)], onTableError="fail")
    hint("or forget them with --drop")
    upsert(root.url, "a", "--drop")
    write(root, 1, [("a", 2, 2)], onTableError="fail", mergeSchema="true")


def upsert(*arguments: str) -> None:
    result = CliRunner().invoke(upsertflow, ["replay", *arguments])
    assert result.exit_code == 0, result.output


def test_a_table_made_with_other_rules(hint: FollowedHint) -> None:
    root = root_of(hint)
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    write(root, 0, [("a", 1, 1)], [("a", 1, 2)], [("b", 1, 1)])
    Table.create(str(hint.folder / "a"), columns, keys=["id", "v"])
    with hint:
        replay_dead_letters(root)
    hint("give the table the rules that it had")
    (hint.folder / "a").rename(hint.folder / ".other")
    Table.create(str(hint.folder / "a"), columns, keys=["id"])
    replay_dead_letters(root)
    assert rows_in(root, "a") == {1: 2}
    hint("or drop the rows ('upsertflow replay --drop')")
    write(root, 1, [("c", 1, 1)], [("c", 1, 2)], [("b", 1, 1)])
    upsert(root.url, "c", "--drop")
    nothing_waits(hint)


def test_a_table_that_another_writer_made(hint: FollowedHint) -> None:
    root, rows = root_of(hint), batch_of([("a", 1, 1)])
    options, batch = RoutedOptions.parse(OPTIONS), transaction(0)
    plan = plan_routed(options, ROWS, root=root)
    staged = stage_routed(plan, root, [rows], batch, 0)
    Table.create(str(hint.folder / "a"), ROWS.remove(0), keys=["id"])
    with hint:
        commit_routed(root, options, [staged], batch)
    hint("write it again")
    write(root, 0, [("a", 1, 1)], onTableError="fail")
    assert rows_in(root, "a") == {1: 1}
