"""`conf/` is accepted by a real Spark and means what it says."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.environ import from_checkout

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


LINES_MAX = 40

FAILING = {
    "a stream": """
rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
rows = rows.selectExpr("CAST(NULL AS BIGINT) AS id", "CAST(value AS STRING) AS v")
writer = rows.writeStream.format("upsertflow").option("keys", "id").option("path", folder + "/t")
writer.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
""",
    "a write": """
rows = spark.createDataFrame([(1, "a"), (None, "b")], "id BIGINT, v STRING")
rows.write.format("upsertflow").option("keys", "id").mode("append").save(folder + "/t")
""",
}

PROGRAM = """
import sys
from pyspark.sql import SparkSession
folder = sys.argv[1]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("program", FAILING.values(), ids=FAILING)
def test_a_bad_row_shows_its_error_in_a_few_lines(
    plain_environ: dict[str, str], tmp_path: Path, program: str
) -> None:
    """Spark's own frames are left out; the error of upsertflow is among the first lines."""
    (tmp_path / "program.py").write_text(PROGRAM + program)
    environ = from_checkout(plain_environ)
    command = [os.path.join(environ["SPARK_HOME"], "bin", "spark-submit"), "program.py", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert done.returncode != 0
    assert len(lines) <= LINES_MAX, done.stderr
    first = next(at for at, line in enumerate(lines) if "[DATA] the key 'id' is null" in line)
    assert first < 10, done.stderr
    assert "Hint: drop such rows before the write" in done.stderr
    assert "\tat org.apache.spark" not in done.stderr
