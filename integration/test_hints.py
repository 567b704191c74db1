"""Hints that are followed on Spark (`tests.hints`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.hints.hint import ON_SPARK, FollowingOnSpark, Told, follow

pytestmark = pytest.mark.spark

CASES = [(site, test) for site, tests in sorted(ON_SPARK.items()) for test in tests]


@pytest.mark.parametrize(("site", "test"), CASES, ids=[site for site, _ in CASES])
def test_what_a_hint_tells_works(
    site: str, test: FollowingOnSpark, spark: SparkSession, tmp_path: Path
) -> None:
    def on_spark(told: Told) -> None:
        test(told, spark)

    follow(site, on_spark, tmp_path)
