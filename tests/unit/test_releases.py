"""Which Spark the source takes, and that the page of releases says of each what was tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_upsertflow.source import SPARK_MIN, DefaultSource, require_spark
from tools.check_machine import PYSPARK_MIN
from tools.matrix import BEGIN, CELLS, END, PAGE


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "3.5.9"])
def test_a_release_without_limits_is_refused_by_a_sentence(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(ImportError, match=rf"needs PySpark 4\.2 or newer, found {version}"):
        DefaultSource({})


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.0.dev0", "5.0.0"])
def test_a_release_with_limits_is_taken(version: str) -> None:
    require_spark(version)


def test_one_least_release_is_said_everywhere() -> None:
    assert SPARK_MIN == PYSPARK_MIN
    pinned = re.search(r'"pyspark\[sql\]>=([\d.]+)', Path("pyproject.toml").read_text())
    assert pinned is not None
    assert tuple(map(int, pinned[1].split("."))) == SPARK_MIN


def test_the_page_says_of_each_cell_whether_it_was_tried() -> None:
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [cell.name for cell in CELLS]
    assert all("| tried: " in row or "| not tried: " in row for row in rows)
