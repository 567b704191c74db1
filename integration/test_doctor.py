"""What `upsertflow doctor` says of an environment is what Spark does in it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from integration.tables import make_table
from spark_upsert.cli.doctor import examine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
settings = {"spark.ui.enabled": "false", "spark.pyspark.python": sys.executable}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
try:
    print(spark.read.format("upsertflow").load(sys.argv[1]).count())
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" if "[DATA_SOURCE_NOT_FOUND]" in str(error) else error)
"""

RIGHT, BARE = "right", "bare"

ENVIRONMENTS = {
    "nothing is set, and python3 is another one": ({}, False),
    "the workers' setting is right": ({"PYSPARK_PYTHON": RIGHT}, True),
    "the driver's setting is wrong": (
        {"PYSPARK_PYTHON": RIGHT, "PYSPARK_DRIVER_PYTHON": BARE},
        False,
    ),
    "only the driver's setting is right": (
        {"PYSPARK_PYTHON": BARE, "PYSPARK_DRIVER_PYTHON": RIGHT},
        True,
    ),
}


@pytest.mark.parametrize(("settings", "is_found"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_doctor_knows_whether_spark_finds_the_source(
    spark_environ: dict[str, str], tmp_path: Path, settings: dict[str, str], is_found: bool
) -> None:
    make_table(tmp_path / "table", {1: "a", 2: "b"})
    venv.create(tmp_path / "bare", with_pip=False)
    programs = {RIGHT: sys.executable, BARE: str(tmp_path / "bare" / "bin" / "python3")}
    environ = {
        **{k: v for k, v in spark_environ.items() if not k.startswith(("PYSPARK", "PYTHON"))},
        "PATH": f"{tmp_path / 'bare' / 'bin'}:{spark_environ['PATH']}",
        **{name: programs[program] for name, program in settings.items()},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "table")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == ("2" if is_found else "DATA_SOURCE_NOT_FOUND")
    wrong = {check.name for check in examine(environ, None, {}) if check.problem}
    assert ("upsertflow" not in wrong) == is_found
    assert (not wrong) == is_found
