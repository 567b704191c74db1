"""A table whose commands leave values unchanged is a function of the set of its commands.

Random commands on few keys, with random options, in epochs and tasks, with replays, compactions,
expiry, restores and a second writer between any two steps (`tests.support.unchanged_histories`).
"""

from __future__ import annotations

import os

from tests.support.unchanged_histories import history_of, play_all

HISTORIES = int(os.environ.get("UNCHANGED_HISTORIES", "150"))


def test_a_table_agrees_with_its_model() -> None:
    play_all([(seed, history_of(seed)) for seed in range(HISTORIES)])
