"""The notebooks of `examples/notebooks`, cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.pages import ROOT

pytestmark = pytest.mark.slow

FOLDER = ROOT / "examples" / "notebooks"


def cells_of(path: Path) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    notebook = json.loads(path.read_text("utf-8"))
    return ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]


def run(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for number, code in enumerate(cells_of(FOLDER / name)):
        exec(compile(code, f"{name}, cell {number}", "exec"), names)
    return names


def test_the_notebook_without_java() -> None:
    assert run("changes_with_polars.ipynb")["sums"].rows() == [("Ada", 180)]


@pytest.mark.spark
def test_the_notebook_with_spark(spark: SparkSession) -> None:
    assert run("stream_with_spark.ipynb")["spark"] is spark


def test_each_notebook_is_run_and_holds_no_output() -> None:
    notebooks = {path.name: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.ipynb")}
    assert notebooks.keys() == {"changes_with_polars.ipynb", "stream_with_spark.ipynb"}
    for each in notebooks.values():
        assert not any(cell.get("outputs") for cell in each["cells"])
