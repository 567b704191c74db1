"""One Spark for all tests that need one, set up as `conf/` recommends, and a fixture per server.

A machine that lacks something fails these tests with the sentence that says what to do: a suite
that skips them would be green while testing nothing. A server lives as long as the file of its
tests, so that they can be chosen by file or by name, and nothing runs that they do not need.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import check_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from integration.servers.kafka import Broker
    from integration.servers.postgres import Postgres
    from integration.servers.spark import Cluster
    from tests.support.s3 import S3

ROOT = Path(__file__).resolve().parent.parent

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of a Java that ends before it has earned back what it would cost to make it fast.

The second compiler and a collector in parallel take the time of other tests; and that the ten
thousand classes of Spark's jars are well-formed is not proven anew in each process.
"""


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
        "JDK_JAVA_OPTIONS": SHORT_LIVED,
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


@pytest.fixture(scope="module")
def broker(
    spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Broker"]:
    """A Kafka broker of one node."""
    from integration.servers.kafka import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka") / "broker", spark_environ) as broker:
        yield broker


@pytest.fixture(scope="module")
def postgres() -> Iterator["Postgres"]:
    """A PostgreSQL server with logical decoding."""
    from integration.servers.postgres import running_postgres

    with running_postgres() as postgres:
        yield postgres


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator["S3"]:
    """An S3-compatible store that decides races by itself."""
    from integration.servers.s3 import running_gateway

    with running_gateway(tmp_path_factory.mktemp("s3")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def cluster(
    spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Cluster"]:
    """A Spark standalone cluster of a master and two workers."""
    from integration.servers.spark import running_cluster

    with running_cluster(tmp_path_factory.mktemp("spark") / "cluster", spark_environ) as cluster:
        yield cluster
