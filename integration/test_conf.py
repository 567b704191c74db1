"""`conf/` is accepted by a real Spark and means what it says."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DEFAULTS = Path(__file__).resolve().parent.parent / "conf" / "spark-defaults.conf"
SETTINGS = dict(
    line.split(maxsplit=1)
    for line in DEFAULTS.read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("key", SETTINGS)
def test_spark_knows_every_key(spark: "SparkSession", key: str) -> None:
    # Spark takes any key in silence, so that a typing error would look like a setting.
    config = spark._jvm.org.apache.spark.internal.config.ConfigEntry  # type: ignore[union-attr]
    # SQL keys are registered when their object is first used.
    spark.conf.get("spark.sql.shuffle.partitions")
    assert config.findEntry(key) is not None


def test_a_session_takes_the_settings(spark: "SparkSession") -> None:
    # The one the test session sets itself, and those the launcher may not repeat.
    expected = {k: v for k, v in SETTINGS.items() if k != "spark.sql.shuffle.partitions"}
    found = dict(spark.sparkContext.getConf().getAll())
    assert {key: found.get(key) for key in expected} == expected
