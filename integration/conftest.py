"""One Spark for all tests that need one, set up as `conf/` recommends, and a fixture per server.

A machine that lacks something fails these tests with the sentence that says what to do: a suite
that skips them would be green while testing nothing. A server lives as long as the file of its
tests, so that they can be chosen by file or by name, and nothing runs that they do not need.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tools import check_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from integration.servers.kafka import Broker
    from integration.servers.postgres import Postgres
    from integration.servers.spark import Cluster
    from tests.support.s3 import S3

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=5"
    " -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of a Java that ends before it has earned back what it would cost to make it fast.

The second compiler and a collector in parallel take the time of other tests; most of what the first
one compiles by its own measure is never called again; the memory of classes is not looked through
on its way to what Spark needs; and that the ten thousand classes of Spark's jars are well-formed is
not proven anew in each process.
"""


@pytest.fixture(scope="session")
def plain_environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a Spark whose Python processes are its own, as a test wants that kills them."""
    problem = check_machine.java_problem() or check_machine.pyspark_problem()
    if problem:
        pytest.fail(problem, pytrace=False)
    from integration.environ import environment, link_home

    return {
        **environment(),
        "SPARK_HOME": str(link_home(tmp_path_factory.mktemp("spark") / "home")),
        "JDK_JAVA_OPTIONS": SHORT_LIVED,
    }


@pytest.fixture(scope="session")
def spark_environ(
    plain_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Environment of any other Spark of these tests; its Python processes are forked."""
    from integration.forkserver import running_forkserver

    folder = tmp_path_factory.mktemp("python") / "forked"
    with running_forkserver(folder, plain_environ) as python:
        yield {**plain_environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


@pytest.fixture(scope="session")
def spark(
    spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkSession"]:
    """A session on two local slots, shared by the run: its start takes longer than most tests."""
    from pyspark.sql import SparkSession

    from integration.environ import from_checkout

    folder = tmp_path_factory.mktemp("spark")
    # Java and its Python workers inherit the environment of this process.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in from_checkout(spark_environ).items():
            patch.setenv(name, value)
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


@pytest.fixture(scope="module")
def broker(
    plain_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Broker"]:
    """A Kafka broker of one node."""
    from integration.servers.kafka import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka") / "broker", plain_environ) as broker:
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
    plain_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Cluster"]:
    """A Spark standalone cluster of a master and two workers."""
    from integration.servers.spark import running_cluster

    with running_cluster(tmp_path_factory.mktemp("spark") / "cluster", plain_environ) as cluster:
        yield cluster
