"""Settings of the whole suite.

Hypothesis runs the same examples each time, so that a failure is the change's and not the
dice's. ``HYPOTHESIS_PROFILE=deep`` searches longer and at random; a failure prints the
example. ``short``, of `make check`, is the first half.
"""

from __future__ import annotations

import os

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
