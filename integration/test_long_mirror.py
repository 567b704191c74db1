"""A mirror that is followed for days keeps its log small, and a new reader of it is quick."""

from __future__ import annotations

import pytest

from integration.long_mirror import READS_MAX, follow, objects_max
from spark_upsert.delta import upkeep

pytestmark = pytest.mark.slow

COMMITS = 360
"""`python -m integration.long_mirror` takes ten thousand."""

STEP_S = 300.0
"""Thirty hours in all: four times the retention."""


def test_the_log_of_a_mirror_stays_small_whatever_the_number_of_commits() -> None:
    looks = list(follow(COMMITS, step_s=STEP_S, looks=4))
    assert [look.commits for look in looks] == [90, 180, 270, 360]
    for look in looks:
        assert look.log_objects <= objects_max(STEP_S), look
        assert look.reads <= READS_MAX, look
    # From the first day on it is as small as it ever was.
    assert looks[-1].log_bytes <= 1.2 * looks[-2].log_bytes, looks


def test_a_log_that_is_never_cleaned_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "REMOVALS_MAX", 0)
    looks = list(follow(COMMITS // 2, step_s=STEP_S, looks=1))
    assert looks[-1].log_objects > objects_max(STEP_S)
