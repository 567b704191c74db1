"""Declarative pipelines: the project of `upsertflow init` runs, and what AUTO CDC asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from integration.pages import code_of
from integration.promises import epochs_of
from spark_upsert.cli.commands import write_project
from spark_upsert.table.table import Table
from tests.support.projects import made

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Pipeline:
    """The project, as it is written into a folder."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        write_project("pipelines", folder)

    def rows(self, name: str) -> list[dict[str, object]]:
        """Return what the pipeline made of the table."""
        at = self.folder / "spark-warehouse" / name
        rows: list[dict[str, object]] = ds.dataset(at, format="parquet").to_table().to_pylist()
        return rows


@pytest.fixture
def pipeline(tmp_path: Path, spark_environ: dict[str, str]) -> Pipeline:
    own = ("SPARK_CONF_DIR", "SPARK_HOME")  # The project has settings, and pip a Spark.
    environ = {name: value for name, value in spark_environ.items() if name not in own}
    environ["SPARK_TESTING"] = (
        "1"  # Its server takes any port: another lane may have the usual one.
    )
    return Pipeline(tmp_path / "a-project", environ)


def test_the_project_writes_and_reads_a_table(pipeline: Pipeline) -> None:
    assert "1 passed" in made(pipeline.folder, "test", environ=pipeline.environ)
    for _ in range(2):  # The second one reads what the first one wrote, and writes nothing.
        said = made(pipeline.folder, "run", environ=pipeline.environ)
        assert "Run is COMPLETED" in said
    table = Table.open(str(pipeline.folder / "lake" / "orders"))
    rows = {row["order_id"]: row["amount"] for row in table.snapshot().to_pylist()}
    assert rows == {1: 11, 3: 30}
    assert len(epochs_of(pipeline.folder / "lake" / "orders")) == 1, (
        "the feed is one micro-batch, applied once"
    )
    assert (pipeline.folder / "lake" / "orders" / "_delta" / "_delta_log").is_dir()
    assert pipeline.rows("sales") == [{"country": "NL", "amount": 41}]
    changes = {(row["order_id"], row["_change_type"]) for row in pipeline.rows("order_changes")}
    assert changes == {(1, "insert"), (3, "insert")}


def test_auto_cdc_asks_for_a_target_with_merge(pipeline: Pipeline) -> None:
    (code,) = code_of("docs/compare.md", "python", runner="integration/test_pipelines.py")
    code = code.replace("/lake", f"{pipeline.folder}/lake")
    (pipeline.folder / "transformations" / "orders.py").write_text(code)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        made(pipeline.folder, "run", environ=pipeline.environ)
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in failed.value.output
