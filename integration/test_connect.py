"""Spark Connect: the client has no Java and no SparkContext, and the source needs neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import chain
from integration.chaos import Chaos
from integration.environ import from_checkout
from integration.promises import rows_of
from spark_upsert.table.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_table_and_its_copy_are_right_through_a_connect_server(
    plain_environ: dict[str, str], tmp_path: Path
) -> None:
    run = Chaos(tmp_path, seed=3, environ=from_checkout(plain_environ), connect=True)
    run.batches += chain.add_commands(tmp_path, 3, batches=3)
    run.finish()
    assert (tmp_path / "started").read_text().startswith("pyspark.sql.connect")
    # A session without a SparkContext compacts, too.
    assert (tmp_path / "merges").read_text() == "1"
    assert Table.open(str(tmp_path / "copy")).log.head().run_count == 1
    run.check()
    # A flow runs, too: its functions go to the server's workers.
    assert rows_of(tmp_path / "flowed") == rows_of(tmp_path / "copy")
