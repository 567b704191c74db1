"""Real kills of a real query: nothing is lost, nothing is there twice, nobody has to repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.chain import require_whole_batches
from integration.chaos import Chaos, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = 2
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


@pytest.mark.parametrize(
    "taken", [[3, 5, 2], [8, 2], [3, 7], [10]], ids=["each its own", "first", "last", "all"]
)
def test_an_epoch_may_hold_several_batches_as_a_kill_inside_the_file_source_makes_it(
    taken: list[int],
) -> None:
    require_whole_batches(taken, [3, 5, 2])


@pytest.mark.parametrize(
    "taken",
    [[3, 5], [5, 2], [3, 2], [3, 5, 5, 2], [3, 5, 2, 2], [5, 3, 2], [4, 6], []],
    ids=["last lost", "first lost", "one lost", "twice", "last twice", "reordered", "cut", "none"],
)
def test_a_batch_that_is_lost_doubled_reordered_or_cut_is_seen(taken: list[int]) -> None:
    with pytest.raises(AssertionError, match="lost or there twice"):
        require_whole_batches(taken, [3, 5, 2])
