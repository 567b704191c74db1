"""The page lists exactly the differences from Spark that the random expressions leave out."""

from __future__ import annotations

from pathlib import Path

from tests.support.sql_differences import table_of_differences

PAGE = Path(__file__).parents[2] / "docs/tasks.md"


def test_the_page_has_the_list_of_differences() -> None:
    table = table_of_differences()
    assert table in PAGE.read_text(encoding="utf-8"), f"write this into docs/tasks.md:\n{table}"
