"""What the job promises: late rows lose, deletes delete, and no file counts twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from job import load, open_table, sales

from upsertflow import Table

Row = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of two files: orders, then an update, a late row and a delete."""
    land(tmp_path, 1, order(1, "NL", 10, at=1), order(2, "DE", 20, at=1))
    land(tmp_path, 2, order(1, "NL", 50, at=3), order(1, "NL", 30, at=2), gone(2, at=2))
    table = open_table(tmp_path / "lake")
    assert load(tmp_path, table) == 2
    return table


def order(order_id: int, country: str, amount: int, *, at: int) -> Row:
    return {"order_id": order_id, "country": country, "amount": amount, "at": at, "gone": False}


def gone(order_id: int, *, at: int) -> Row:
    return {"order_id": order_id, "country": None, "amount": None, "at": at, "gone": True}


def land(folder: Path, number: int, *rows: Row) -> None:
    (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_newest_row_of_an_order_wins_and_a_deleted_one_is_gone(table: Table) -> None:
    assert sales(table).to_dicts() == [{"country": "NL", "amount": 50}]


def test_a_file_counts_once(table: Table, tmp_path: Path) -> None:
    assert load(tmp_path, open_table(tmp_path / "lake")) == 0
    land(tmp_path, 3, order(3, "FR", 7, at=1))
    assert load(tmp_path, table) == 1
    assert table.log.head().version == 3


def test_changes_add_up_to_the_table(table: Table) -> None:
    changes = pl.from_arrow(table.changes(1))
    assert isinstance(changes, pl.DataFrame)
    total = changes.select((pl.col("amount") * pl.col("_diff")).sum()).item()
    assert total == sales(table)["amount"].sum()


def test_the_delta_table_follows(table: Table, tmp_path: Path) -> None:
    place = table.publish().place
    land(tmp_path, 3, order(1, "NL", 60, at=4))
    load(tmp_path, table)
    table.publish()
    assert pl.scan_delta(place).select("order_id", "amount").collect().rows() == [(1, 60)]
