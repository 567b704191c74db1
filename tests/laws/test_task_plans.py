"""Any plan gives what plain Python gives, whatever the drivers and whichever goes next.

Limits stand at every place, barriers come at random, scans end before, under and behind them.
"""

from __future__ import annotations

import os

import pytest

from tests.support.task_worlds import played

SEEDS = int(os.environ.get("TASK_SEEDS", "150"))
"""Of each law; more of them are its long form."""


@pytest.mark.parametrize("drivers", [1, 2, 3, 4])
@pytest.mark.sweep(1)
def test_a_task_gives_what_plain_python_gives(drivers: int) -> None:
    for seed in range(SEEDS):
        for found, expected in played(seed, drivers):
            if drivers == 1:
                assert found == expected, seed
            else:
                assert sorted(map(repr, found)) == sorted(map(repr, expected)), seed


def test_with_one_driver_the_order_does_not_depend_on_how_long_a_look_up_takes() -> None:
    """What was delivered can be skipped at every row."""
    for seed in range(SEEDS // 4):
        once, again = ([found for found, _ in played(seed, 1, plays)] for plays in (1, 2))
        assert once == again, seed
