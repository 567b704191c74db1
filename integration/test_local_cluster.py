"""Executors in processes of their own: nothing works only because the driver has it in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import chain
from integration.chaos import Chaos, environment

pytestmark = pytest.mark.spark


def test_a_table_and_its_copy_are_right_on_a_cluster(
    spark_environ: dict[str, str], tmp_path: Path
) -> None:
    run = Chaos(
        tmp_path,
        seed=2,
        environ={**spark_environ, **environment()},
        master="local-cluster[2,1,1024]",
    )
    run.batches += chain.add_commands(tmp_path, 2, batches=3)
    run.finish()
    run.check()
