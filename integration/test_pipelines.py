"""Declarative pipelines: the template of `examples/pipeline` runs, and what AUTO CDC asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from integration.pages import ROOT, code_of
from spark_upsert.table.table import Table

pytestmark = pytest.mark.spark

TEMPLATE = ROOT / "examples" / "pipeline"
RUN_SECONDS_MAX = 400

FEED = [
    {"order_id": 1, "country": "NL", "amount": 10, "seq": 1, "gone": False},
    {"order_id": 2, "country": "DE", "amount": 20, "seq": 2, "gone": False},
    {"order_id": 3, "country": "NL", "amount": 30, "seq": 3, "gone": False},
    {"order_id": 1, "country": "NL", "amount": 11, "seq": 4, "gone": False},
    {"order_id": 2, "country": None, "amount": None, "seq": 5, "gone": True},
    {"order_id": 3, "country": "NL", "amount": 0, "seq": 0, "gone": False},
]
"""An update, a delete, and a row that comes late."""


class Pipeline:
    """A copy of the template, with a lake of its own."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        shutil.copytree(TEMPLATE, folder / "pipeline")
        for path in (folder / "pipeline").rglob("*.*"):
            path.write_text(path.read_text().replace("/lake", f"{folder}/lake"))
        feed = folder / "lake" / "feed"
        feed.mkdir(parents=True)
        (feed / "1.json").write_text("".join(json.dumps(row) + "\n" for row in FEED))

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        program = Path(self.environ["SPARK_HOME"]) / "bin" / "spark-pipelines"
        return subprocess.run(
            ["bash", str(program), "run", "--spec", "spark-pipeline.yml"],
            cwd=self.folder / "pipeline",
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )

    def forget_tables(self) -> None:
        """Leave the table and the sink's progress: no catalog outlives a run here."""
        shutil.rmtree(self.folder / "pipeline" / "spark-warehouse", ignore_errors=True)
        for path in (self.folder / "lake" / "pipeline" / "_checkpoints").rglob("order_changes"):
            shutil.rmtree(path)

    def rows(self, name: str) -> list[dict[str, object]]:
        """Return what the pipeline made of the table."""
        at = self.folder / "pipeline" / "spark-warehouse" / name
        rows: list[dict[str, object]] = ds.dataset(at, format="parquet").to_table().to_pylist()
        return rows


@pytest.fixture
def pipeline(tmp_path: Path, spark_environ: dict[str, str]) -> Pipeline:
    roots = ":".join(str(root) for root in (ROOT, ROOT / "datasource", ROOT / "sink"))
    return Pipeline(tmp_path, {**spark_environ, "PYTHONPATH": roots})


def test_the_template_writes_and_reads_a_table(pipeline: Pipeline) -> None:
    for _ in range(2):  # The second one reads what the first one wrote, and writes nothing.
        pipeline.forget_tables()
        done = pipeline.run()
        assert done.returncode == 0, done.stdout[-4000:]
        assert "Run is COMPLETED" in done.stdout + done.stderr
    table = Table.open(str(pipeline.folder / "lake" / "orders"))
    rows = {row["order_id"]: row["amount"] for row in table.snapshot().to_pylist()}
    assert rows == {1: 11, 3: 30}
    assert table.log.head().version == 1, "the feed is one micro-batch, applied once"
    assert pipeline.rows("sales") == [{"country": "NL", "amount": 41}]
    changes = {(row["order_id"], row["_change_type"]) for row in pipeline.rows("order_changes")}
    assert changes == {(1, "insert"), (3, "insert")}


def test_auto_cdc_asks_for_a_target_with_merge(pipeline: Pipeline) -> None:
    (code,) = code_of("docs/pipelines.md", "python", runner="integration/test_pipelines.py")
    code = code.replace("/lake", f"{pipeline.folder}/lake")
    (pipeline.folder / "pipeline" / "transformations" / "orders.py").write_text(code)
    done = pipeline.run()
    assert done.returncode != 0
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in done.stdout
