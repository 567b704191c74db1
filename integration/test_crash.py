"""Real kills of a real query: nothing is lost, nothing is there twice, nobody has to repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chaos import Chaos, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = 3
"""`make chaos` takes hundreds."""


@pytest.mark.parametrize(
    "inputs", [0, 3], ids=["a chain of two queries", "a query of three inputs"]
)
def test_queries_that_are_killed_at_any_moment_lose_and_double_nothing(
    inputs: int, spark_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = {**spark_environ, **environment()}
    chaos = Chaos(tmp_path, seed=1, environ=environ, inputs=inputs)
    while chaos.kills < KILLS:
        chaos.round()
    chaos.finish()
    chaos.check()
