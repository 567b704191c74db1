"""Settings of the whole suite.

Hypothesis runs the same examples each time, so that a failure is the change's and not the
dice's. ``HYPOTHESIS_PROFILE=deep`` searches longer and at random; a failure prints the
example. ``short``, of `make check`, is the first half.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "deep", settings.get_profile("quick"), derandomize=False, max_examples=2_000
)
settings.register_profile("short", settings.get_profile("quick"), max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def drawn(count: int, of: int) -> set[int]:
    """Return some of the first numbers, at even distances, the first of all among them."""
    return {place * of // count for place in range(count)}


def mark_sweeps(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of a sweep as slow, but for as many as its mark says."""
    sweeps = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("sweep")) is not None:
            sweeps[item.nodeid.partition("[")[0], *mark.args].append(item)
    for (_, quick), cases in sweeps.items():
        kept = drawn(quick, len(cases))
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark sweeps before ``-m`` chooses."""
    mark_sweeps(items)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` look at its handle alone: tests that write tables waited for a slow disk.

    What a loss of power leaves is played (`tests.support.disk`), and the death of a process loses
    nothing that the kernel has. The programs that tests start wait for the disk, and so does
    `integration`.
    """
    with patch.object(os, "fsync", os.fstat):
        yield
