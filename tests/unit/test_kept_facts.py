"""`upsertflow info` of a table that keeps a view: the plan in words, and how far behind it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from pyspark_upsertflow import agg, view
from spark_upsert import Table
from spark_upsert.cli.main import upsertflow

ORDERS = pa.schema({"id": pa.int64(), "country": pa.string(), "amount": pa.int64()})


def info(path: Path, *flags: str) -> str:
    done = CliRunner().invoke(upsertflow, ["info", str(path), *flags])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "orders"), ORDERS, keys=["id"])
    made.upsert(pa.table({"id": [1], "country": ["NL"], "amount": [30]}))
    big = view(str(tmp_path / "orders")).filter("amount > 10")
    big.group_by("country").agg(n=agg.count()).refresh(str(tmp_path / "kept"))
    return made


def test_a_kept_table_says_what_it_keeps_and_how_far_it_is(orders: Table, tmp_path: Path) -> None:
    assert f"{tmp_path}/orders: at version 1, newest version 1\n" in packed(info(tmp_path / "kept"))
    orders.upsert(pa.table({"id": [2], "country": ["DE"], "amount": [50]}))
    told = packed(info(tmp_path / "kept"))
    assert "keeps group by country: n = count(*)\n filter amount > 10\n scan" in told
    assert f"{tmp_path}/orders: at version 1, newest version 2, 1 behind\n" in told
    assert "viewPlan" not in told
    facts = json.loads(info(tmp_path / "kept", "--json"))
    assert facts["tables"] == {f"{tmp_path}/orders": {"at": 1, "newest": 2}}
    assert facts["view"][0] == "group by country: n = count(*)"
    assert "viewPlan" in facts["properties"]


def test_a_table_of_the_view_that_is_not_there_is_told(orders: Table, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "orders")
    assert "/orders: at version 1, not found from here\n" in packed(info(tmp_path / "kept"))


def test_another_table_says_nothing_of_a_view(orders: Table, tmp_path: Path) -> None:
    assert "keeps" not in info(tmp_path / "orders")
    assert "view" not in json.loads(info(tmp_path / "orders", "--json"))


def packed(text: str) -> str:
    """Return a text with one blank in place of several, and none at the ends of lines."""
    return (
        "\n".join(" ".join(line.split()) for line in text.splitlines()).replace("\n", "\n ") + "\n"
    )
