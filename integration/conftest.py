"""One Spark for all tests that need one, set up as `conf/` recommends.

A machine without Java fails these tests with the sentence that says what to do: a suite that skips
them would be green while testing nothing.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import check_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

HAS_MAVEN = shutil.which("mvn") is not None
collect_ignore = [] if HAS_MAVEN else ["test_kafka.py"]


def pytest_report_header() -> list[str]:
    return [] if HAS_MAVEN else ["left out: integration/test_kafka.py, whose broker Maven fetches"]


@pytest.fixture(scope="session")
def spark_environ() -> dict[str, str]:
    """Environment in which any Spark of these tests is started."""
    import pyspark

    problem = check_machine.java_problem() or check_machine.pyspark_problem()
    if problem:
        pytest.fail(problem, pytrace=False)
    return {
        **os.environ,
        # Another Spark of this machine must not be started by accident.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(ROOT / "conf"),
        # Spark's choice would be `python3`: another interpreter, without pyarrow and without us.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Name lookups and loopback warnings of the machine are not our subject.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def spark(
    spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkSession"]:
    """A session on two local slots, shared by the run: its start takes longer than most tests."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    # Java and its Python workers inherit the environment of this process.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environ.items():
            patch.setenv(name, value)
        # A bare checkout works too: the processes that Spark starts look here as well.
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, import_roots())))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("upsertflow tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()


def import_roots() -> list[Path]:
    """The folders that an editable installation puts on the path."""
    return [ROOT, ROOT / "datasource", ROOT / "sink"]
