"""What the job promises: late rows lose, deletes delete, and no file counts twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job import changes, follow, orders, session
from pyspark.sql import SparkSession

Row = dict[str, Any]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = session()
    yield spark
    spark.stop()


def order(order_id: int, country: str, amount: int, *, at: int) -> Row:
    return {"order_id": order_id, "country": country, "amount": amount, "at": at, "gone": False}


def land(folder: Path, number: int, *rows: Row) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_files_become_a_table_and_exact_changes(spark: SparkSession, tmp_path: Path) -> None:
    landing, lake = tmp_path / "landing", str(tmp_path / "lake")

    def load() -> dict[int, int]:
        follow(spark, str(landing), lake, once=True).awaitTermination()
        return {row.order_id: row.amount for row in orders(spark, lake).collect()}

    land(landing, 1, order(1, "NL", 10, at=1), order(2, "DE", 20, at=1))
    assert load() == {1: 10, 2: 20}
    gone = {"order_id": 2, "at": 2, "gone": True}
    land(landing, 2, order(1, "NL", 50, at=3), order(1, "NL", 30, at=2), gone)
    assert load() == {1: 50}, "the newest row wins, and a deleted order is gone"
    before = changes(spark, lake).collect()
    assert load() == {1: 50}, "no file counts twice"
    after = changes(spark, lake).collect()
    assert len(after) == len(before)
    assert sum(row.amount * row._diff for row in after) == 50
    assert (tmp_path / "lake" / "orders" / "_delta" / "_delta_log").is_dir()
