"""Projects of `upsertflow init` that start a Spark: their own tests, and their jobs as users run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_upsert.cli.projects import write_project
from spark_upsert.table.table import Table
from tests.support.projects import made

pytestmark = pytest.mark.spark


@pytest.fixture
def environ(spark_environ: dict[str, str]) -> dict[str, str]:
    """An environment in which a project has its own settings."""
    return {name: value for name, value in spark_environ.items() if name != "SPARK_CONF_DIR"}


def amounts(table: Path) -> dict[int, int]:
    return {row["order_id"]: row["amount"] for row in Table.open(str(table)).snapshot().to_pylist()}


def test_files_pass_their_tests_and_run_twice(tmp_path: Path, environ: dict[str, str]) -> None:
    project = tmp_path / "a project"
    write_project("files", project)
    assert "1 passed" in made(project, "test", environ=environ)
    for _ in range(2):
        made(project, "run", environ=environ)
        assert amounts(project / "lake" / "orders") == {1: 500, 3: 30}
        assert Table.open(str(project / "lake" / "orders")).log.head().version == 0
