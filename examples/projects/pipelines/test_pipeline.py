"""What the pipeline promises: late rows lose, deletes delete, and a second run repeats nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from upsertflow import Table

HERE = Path(__file__).resolve().parent
NOT_OURS = shutil.ignore_patterns(".venv", "__pycache__", "lake", "spark-warehouse")


def test_the_feed_becomes_a_table_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(HERE, copy, ignore=NOT_OURS)
    for path in (copy / "spark-pipeline.yml", copy / "transformations" / "orders.py"):
        path.write_text(path.read_text().replace(f"{HERE}/lake", f"{copy}/lake"))
    make = ["make", "--old-file=.venv/installed", "run", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(make, cwd=copy, check=True)
    orders = Table.open(str(copy / "lake" / "orders"))
    rows = {row["order_id"]: row["amount"] for row in orders.snapshot().to_pylist()}
    assert rows == {1: 11, 3: 30}, "the newest seq wins, and order 2 is gone"
    changes = orders.changes(1).to_pylist()
    assert sum(row["amount"] * row["_diff"] for row in changes) == 41
