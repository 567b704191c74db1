"""Hints of materialized views and of materialized histories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_upsertflow.views import _require_own_checkpoint
from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import ContentionError, DataError
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan import agg
from spark_upsert.store.open import open_store
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.manifest import KeptPosition, Transaction
from spark_upsert.table.state.fold import require_possible
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import UnchangedRowsGuard
from spark_upsert.table.write.outcomes import Move, refused
from spark_upsert.views import row_errors
from spark_upsert.views.materialized import create_rows_table
from spark_upsert.views.plan_builder import Plan
from tests.hints.followed_hint import FollowedHint
from tests.support.queries import lake
from tests.support.view_keepers import Keeper
from tests.support.written import write

KEPT = {
    "envelope": "changelog",
    "keys": "id",
    "sequenceBy": "_commit_version",
    "sequenceScope": "table",
}
CHANGES = pa.schema(
    {"id": pa.int64(), "v": pa.string(), **{f.name: f.type for f in CHANGELOG_FIELDS}}
)
ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "x": pa.int64()})


def made(
    hint: FollowedHint, name: str, schema: pa.Schema, *rows: tuple[Any, ...], **how: Any
) -> Plan:
    """Return all rows of a new table, of which the first column is the key."""
    table = Table.create(str(hint.folder / name), schema, keys=[schema.names[0]], **how)
    write_rows(table, *rows)
    return Plan.of_table(str(hint.folder / name))


def write_rows(table: Table, *rows: tuple[Any, ...]) -> None:
    given = [dict(zip(table.schema.columns.names, row, strict=True)) for row in rows]
    table.upsert(pa.Table.from_pylist(given, schema=table.schema.columns))


def table_of(hint: FollowedHint, name: str) -> Table:
    return Table.open(str(hint.folder / name))


def keeper(folder: Path, plan: str = "a plan") -> Table:
    table = Table(open_store(str(folder)))
    options = WriteOptions.parse({**KEPT, "path": str(folder)})
    create_rows_table(table, plan, options, CHANGES)
    return table


def take(table: Table, query: str | None, number: int) -> bool:
    """Append a row as a batch of a query, or of none."""
    diff = pa.array([1], pa.int8())
    rows = pa.table({"id": [number], "v": ["a"], "_commit_version": [number], "_diff": diff})
    writer = (
        None
        if query is None
        else Transaction(writer=Transaction.writer_of_query(query), number=number)
    )
    return table.upsert(rows, transaction=writer) is not None


def test_a_write_by_hand(hint: FollowedHint) -> None:
    table = keeper(hint.folder / "kept")
    with hint:
        take(table, None, 0)
    hint("or into another table")
    write(hint.folder)
    hint("write to the tables of the view")


def test_the_query_of_another_view(hint: FollowedHint) -> None:
    table = keeper(hint.folder / "kept")
    take(table, "one", 0)
    with hint:
        take(table, "two", 0)
    hint("go on with the checkpoint of that query")
    assert take(table, "one", 1)
    hint("keep the view in a new path")
    assert take(keeper(hint.folder / "new"), "two", 0)


def counted(hint: FollowedHint) -> Plan:
    """Return a materialized count of orders by customer."""
    view = made(hint, "orders", ORDERS, (1, 7, 1), (2, 8, 1)).group_by("customer")
    groups = view.agg(n=agg.count())
    groups.refresh(str(hint.folder / "kept"))
    return groups


def test_a_row_that_was_never_added(hint: FollowedHint) -> None:
    view = counted(hint)
    kept = table_of(hint, "kept")
    [entries] = [batch for batch in kept.scan() if batch.num_rows]
    retracted = {
        name: pc.negate(column) if name == kept.schema.engine.multiplicity else column
        for name, column in zip(entries.schema.names, entries.columns, strict=True)
    }
    with hint:
        require_possible(kept.schema, retracted, "kept")
    hint("Make the table anew from its view ('keep' into another path)")
    view.refresh(str(hint.folder / "other"))
    assert Plan.of_table(str(hint.folder / "other")).to_arrow().num_rows == 2


Mistake = Callable[[Table, pa.Table], object]


@pytest.mark.parametrize(
    ("mistake", "advice"),
    [
        (lambda kept, rows: kept.upsert(rows.slice(0, 0)), "the query of the view"),
        (lambda kept, rows: KeptPosition.read("a place"), "the query of the view"),
        (
            lambda kept, rows: _raise(refused(Move(lower="x", upper="y"), "z", kept.store.url)),
            "a new checkpoint",
        ),
    ],
    ids=["rows without a position", "a position in another form", "a position of another view"],
)
def test_a_position_that_the_view_does_not_have(
    mistake: Mistake, advice: str, hint: FollowedHint
) -> None:
    view = counted(hint)
    kept = table_of(hint, "kept")
    with hint:
        mistake(kept, pa.Table.from_batches(kept.scan()))
    hint(advice)
    write_rows(table_of(hint, "orders"), (3, 7, 1))
    assert view.refresh(kept.store.url)


def test_an_overwritten_view(hint: FollowedHint) -> None:
    view = counted(hint)
    kept = table_of(hint, "kept")
    with hint:
        kept.upsert(pa.Table.from_batches(kept.scan()), overwrite=True)
    hint("keep the view in another path")
    assert view.refresh(str(hint.folder / "other"))


def _raise(error: Exception) -> None:
    raise error


def test_a_row_that_cannot_be_computed(hint: FollowedHint) -> None:
    rows = made(hint, "orders", ORDERS, (1, 7, 5), (2, 7, 0))
    kept = str(hint.folder / "kept")
    view = rows.select("id", "customer", each="100 DIV x").group_by("customer")
    sums = view.agg(s=agg.sum("each"))
    with hint:
        sums.refresh(kept)
    hint("let formulas be NULL where they have no value, by on_error=null")
    sums.refresh(kept, on_error="null")
    hint("compute none there, by CASE WHEN in the plan")
    rows.select("id", each="CASE WHEN x <> 0 THEN 100 DIV x END").to_arrow()
    hint("repair the row")
    write_rows(table_of(hint, "orders"), (2, 7, 50))
    sums.refresh(kept)
    assert Plan.of_table(kept).to_arrow().column("s").to_pylist() == [22]


def test_a_row_of_a_view_of_a_view(hint: FollowedHint) -> None:
    """A row of a table that keeps a view."""
    rows = made(hint, "orders", ORDERS, (1, 7, 0))
    sums = rows.group_by("customer").agg(s=agg.sum("x"))
    sums.refresh(str(hint.folder / "sums"))
    each = Plan.of_table(str(hint.folder / "sums")).select("customer", each="100 DIV s")
    with hint:
        each.to_arrow()
    hint(f"repair the rows that '{hint.folder}/sums' is kept of, bring it up to date, and start")
    write_rows(table_of(hint, "orders"), (1, 7, 50))
    assert sums.refresh(str(hint.folder / "sums"))
    assert each.to_arrow().column("each").to_pylist() == [2]


def test_rows_that_were_repaired_since(hint: FollowedHint) -> None:
    orders = made(hint, "orders", ORDERS, (1, 7, 1))
    view = orders.select("customer", each="100 DIV x").group_by("customer").agg(s=agg.sum("each"))
    kept = Keeper(view.node, hint.folder / "kept", hint.folder / "checkpoint", {})
    while kept.run():
        pass
    write_rows(table_of(hint, "orders"), (1, 7, 0), (2, 7, 0))
    with patch.object(row_errors, "RECORDED_ROWS_MAX", 1):
        with pytest.raises(DataError, match="row id="):
            kept.run()
        write_rows(table_of(hint, "orders"), (1, 7, 1), (2, 7, 1))
        with hint:
            kept.run()
        hint("let formulas be NULL where they have no value")
        kept.start(hint.options)
        while kept.run():
            pass
    hint("rows that were repaired since come out repaired")
    shown = Plan.of_table(str(hint.folder / "kept")).to_arrow()
    assert shown.column("s").to_pylist() == [200]


def _source(hint: FollowedHint, name: str = "table") -> tuple[Table, Table]:
    """Return a table with a row, and where its history is to be kept."""
    return Table.open(lake(hint.folder, name)[name]), Table(open_store(str(hint.folder / "kept")))


def test_a_history_with_other_options(hint: FollowedHint) -> None:
    table, kept = _source(hint)
    keep_history(table, kept)
    with hint:
        keep_history(table, kept, by=ValidBy.VERSION)
    hint("give the same columns and options as at first")
    assert keep_history(table, kept) is None
    hint("keep this history in a new path")
    new = Table(open_store(str(hint.folder / "by_version")))
    assert keep_history(table, new, by=ValidBy.VERSION) is not None
    other, _ = _source(hint, "anew")
    with hint:
        keep_history(other, kept)
    hint("a source that was made anew has a new history")
    assert keep_history(other, Table(open_store(str(hint.folder / "of_anew")))) is not None


@pytest.mark.parametrize(
    ("is_changed", "advice"),
    [
        (False, "put the table back if it was set back from a copy"),
        (True, "put the table back if it was set back from a copy by mistake"),
    ],
    ids=["set back", "with another past"],
)
def test_a_source_from_a_copy(hint: FollowedHint, is_changed: bool, advice: str) -> None:
    table, kept = _source(hint)
    copy = hint.folder / "copy"
    shutil.copytree(hint.folder / "table", copy)
    table.upsert(pa.table({"id": [9]}), merge_schema=True)
    keep_history(table, kept)
    set_back = Table.open(str(copy))
    if is_changed:
        set_back.upsert(pa.table({"id": [8]}), merge_schema=True)
    with hint:
        keep_history(set_back, kept)
    hint(advice)
    assert keep_history(table, kept) is None
    hint("keep its history in a new path")
    assert keep_history(set_back, Table(open_store(str(hint.folder / "of_copy")))) is not None


def test_a_history_that_another_process_keeps(hint: FollowedHint) -> None:
    table, kept = _source(hint)
    with hint, patch.object(UnchangedRowsGuard, "__call__", _never):
        keep_history(table, kept)
    hint("let one process keep the history")
    assert keep_history(table, kept) is not None


def _never(guard: UnchangedRowsGuard, head: object) -> ContentionError:
    guard.has_changed = True
    return ContentionError("other rows came between.")


def test_the_checkpoint_of_another_query(hint: FollowedHint) -> None:
    writer = Transaction.writer_of_query("one")
    table = Table.create(str(hint.folder / "kept"), ORDERS, keys=["id"])
    table.upsert(ORDERS.empty_table(), transaction=Transaction(writer=writer, number=0))
    for query in ("one", "two"):
        (hint.folder / query).mkdir()
        (hint.folder / query / "metadata").write_text(json.dumps({"id": query}))
    with hint:
        _require_own_checkpoint(table, str(hint.folder / "two"), {})
    hint("go on with the checkpoint of that query")
    _require_own_checkpoint(table, str(hint.folder / "one"), {})
    hint("keep the view in a new path")
    new = Table.create(str(hint.folder / "new"), ORDERS, keys=["id"])
    _require_own_checkpoint(new, str(hint.folder / "two"), {})
