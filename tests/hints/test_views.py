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
from spark_upsert.table.changelog.render import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.view_position import KeptPosition
from spark_upsert.table.state.fold import require_possible
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import UnchangedRowsGuard
from spark_upsert.table.write.moves import Move, refused
from spark_upsert.views import row_errors
from spark_upsert.views.materialized import made_for_rows
from spark_upsert.views.plan_builder import Plan
from tests.hints.told import Told
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


def made(told: Told, name: str, schema: pa.Schema, *rows: tuple[Any, ...], **how: Any) -> Plan:
    """Return all rows of a new table, of which the first column is the key."""
    table = Table.create(str(told.folder / name), schema, keys=[schema.names[0]], **how)
    write_rows(table, *rows)
    return Plan.of_table(str(told.folder / name))


def write_rows(table: Table, *rows: tuple[Any, ...]) -> None:
    given = [dict(zip(table.schema.columns.names, row, strict=True)) for row in rows]
    table.upsert(pa.Table.from_pylist(given, schema=table.schema.columns))


def table_of(told: Told, name: str) -> Table:
    return Table.open(str(told.folder / name))


def keeper(folder: Path, plan: str = "a plan") -> Table:
    table = Table(open_store(str(folder)))
    options = WriteOptions.parse({**KEPT, "path": str(folder)})
    made_for_rows(table, plan, options, CHANGES)
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


def test_a_write_by_hand(told: Told) -> None:
    table = keeper(told.folder / "kept")
    with told:
        take(table, None, 0)
    told("or into another table")
    write(told.folder)
    told("write to the tables of the view")


def test_the_query_of_another_view(told: Told) -> None:
    table = keeper(told.folder / "kept")
    take(table, "one", 0)
    with told:
        take(table, "two", 0)
    told("go on with the checkpoint of that query")
    assert take(table, "one", 1)
    told("keep the view in a new path")
    assert take(keeper(told.folder / "new"), "two", 0)


def counted(told: Told) -> Plan:
    """Return a materialized count of orders by customer."""
    view = made(told, "orders", ORDERS, (1, 7, 1), (2, 8, 1)).group_by("customer")
    groups = view.agg(n=agg.count())
    groups.refresh(str(told.folder / "kept"))
    return groups


def test_a_row_that_was_never_added(told: Told) -> None:
    view = counted(told)
    kept = table_of(told, "kept")
    [entries] = [batch for batch in kept.scan() if batch.num_rows]
    retracted = {
        name: pc.negate(column) if name == kept.schema.engine.multiplicity else column
        for name, column in zip(entries.schema.names, entries.columns, strict=True)
    }
    with told:
        require_possible(kept.schema, retracted, "kept")
    told("Make the table anew from its view ('keep' into another path)")
    view.refresh(str(told.folder / "other"))
    assert Plan.of_table(str(told.folder / "other")).to_arrow().num_rows == 2


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
def test_a_position_that_the_view_does_not_have(mistake: Mistake, advice: str, told: Told) -> None:
    view = counted(told)
    kept = table_of(told, "kept")
    with told:
        mistake(kept, pa.Table.from_batches(kept.scan()))
    told(advice)
    write_rows(table_of(told, "orders"), (3, 7, 1))
    assert view.refresh(kept.store.url)


def test_an_overwritten_view(told: Told) -> None:
    view = counted(told)
    kept = table_of(told, "kept")
    with told:
        kept.upsert(pa.Table.from_batches(kept.scan()), overwrite=True)
    told("keep the view in another path")
    assert view.refresh(str(told.folder / "other"))


def _raise(error: Exception) -> None:
    raise error


def test_a_row_that_cannot_be_computed(told: Told) -> None:
    rows = made(told, "orders", ORDERS, (1, 7, 5), (2, 7, 0))
    kept = str(told.folder / "kept")
    view = rows.select("id", "customer", each="100 DIV x").group_by("customer")
    sums = view.agg(s=agg.sum("each"))
    with told:
        sums.refresh(kept)
    told("let formulas be NULL where they have no value, by on_error=null")
    sums.refresh(kept, on_error="null")
    told("compute none there, by CASE WHEN in the plan")
    rows.select("id", each="CASE WHEN x <> 0 THEN 100 DIV x END").to_arrow()
    told("repair the row")
    write_rows(table_of(told, "orders"), (2, 7, 50))
    sums.refresh(kept)
    assert Plan.of_table(kept).to_arrow().column("s").to_pylist() == [22]


def test_a_row_of_a_view_of_a_view(told: Told) -> None:
    """A row of a table that keeps a view."""
    rows = made(told, "orders", ORDERS, (1, 7, 0))
    sums = rows.group_by("customer").agg(s=agg.sum("x"))
    sums.refresh(str(told.folder / "sums"))
    each = Plan.of_table(str(told.folder / "sums")).select("customer", each="100 DIV s")
    with told:
        each.to_arrow()
    told(f"repair the rows that '{told.folder}/sums' is kept of, bring it up to date, and start")
    write_rows(table_of(told, "orders"), (1, 7, 50))
    assert sums.refresh(str(told.folder / "sums"))
    assert each.to_arrow().column("each").to_pylist() == [2]


def test_rows_that_were_repaired_since(told: Told) -> None:
    orders = made(told, "orders", ORDERS, (1, 7, 1))
    view = orders.select("customer", each="100 DIV x").group_by("customer").agg(s=agg.sum("each"))
    kept = Keeper(view.node, told.folder / "kept", told.folder / "checkpoint", {})
    while kept.run():
        pass
    write_rows(table_of(told, "orders"), (1, 7, 0), (2, 7, 0))
    with patch.object(row_errors, "NOTED_MAX", 1):
        with pytest.raises(DataError, match="row id="):
            kept.run()
        write_rows(table_of(told, "orders"), (1, 7, 1), (2, 7, 1))
        with told:
            kept.run()
        told("let formulas be NULL where they have no value")
        kept.start(told.options)
        while kept.run():
            pass
    told("rows that were repaired since come out repaired")
    shown = Plan.of_table(str(told.folder / "kept")).to_arrow()
    assert shown.column("s").to_pylist() == [200]


def _source(told: Told, name: str = "table") -> tuple[Table, Table]:
    """Return a table with a row, and where its history is to be kept."""
    return Table.open(lake(told.folder, name)[name]), Table(open_store(str(told.folder / "kept")))


def test_a_history_with_other_options(told: Told) -> None:
    table, kept = _source(told)
    keep_history(table, kept)
    with told:
        keep_history(table, kept, by=ValidBy.VERSION)
    told("give the same columns and options as at first")
    assert keep_history(table, kept) is None
    told("keep this history in a new path")
    new = Table(open_store(str(told.folder / "by_version")))
    assert keep_history(table, new, by=ValidBy.VERSION) is not None
    other, _ = _source(told, "anew")
    with told:
        keep_history(other, kept)
    told("a source that was made anew has a new history")
    assert keep_history(other, Table(open_store(str(told.folder / "of_anew")))) is not None


def test_a_source_that_was_set_back(told: Told) -> None:
    table, kept = _source(told)
    copy = told.folder / "copy"
    shutil.copytree(told.folder / "table", copy)
    table.upsert(pa.table({"id": [9]}), merge_schema=True)
    keep_history(table, kept)
    set_back = Table.open(str(copy))
    with told:
        keep_history(set_back, kept)
    told("put the table back if it was set back from a copy")
    assert keep_history(table, kept) is None
    told("keep its history in a new path")
    assert keep_history(set_back, Table(open_store(str(told.folder / "of_copy")))) is not None


def test_a_source_with_another_past(told: Told) -> None:
    table, kept = _source(told)
    copy = told.folder / "copy"
    shutil.copytree(told.folder / "table", copy)
    table.upsert(pa.table({"id": [9]}), merge_schema=True)
    keep_history(table, kept)
    set_back = Table.open(str(copy))
    set_back.upsert(pa.table({"id": [8]}), merge_schema=True)
    with told:
        keep_history(set_back, kept)
    told("put the table back if it was set back from a copy by mistake")
    assert keep_history(table, kept) is None
    told("keep its history in a new path")
    assert keep_history(set_back, Table(open_store(str(told.folder / "of_copy")))) is not None


def test_a_history_that_another_process_keeps(told: Told) -> None:
    table, kept = _source(told)
    with told, patch.object(UnchangedRowsGuard, "__call__", _never):
        keep_history(table, kept)
    told("let one process keep the history")
    assert keep_history(table, kept) is not None


def _never(guard: UnchangedRowsGuard, head: object) -> ContentionError:
    guard.has_changed = True
    return ContentionError("other rows came between.")


def test_the_checkpoint_of_another_query(told: Told) -> None:
    writer = Transaction.writer_of_query("one")
    table = Table.create(str(told.folder / "kept"), ORDERS, keys=["id"])
    table.upsert(ORDERS.empty_table(), transaction=Transaction(writer=writer, number=0))
    for query in ("one", "two"):
        (told.folder / query).mkdir()
        (told.folder / query / "metadata").write_text(json.dumps({"id": query}))
    with told:
        _require_own_checkpoint(table, str(told.folder / "two"), {})
    told("go on with the checkpoint of that query")
    _require_own_checkpoint(table, str(told.folder / "one"), {})
    told("keep the view in a new path")
    new = Table.create(str(told.folder / "new"), ORDERS, keys=["id"])
    _require_own_checkpoint(new, str(told.folder / "two"), {})
