"""Every way to get the package to Spark works, from the artifacts that users get.

The environments made here hold what this one holds, except this project: what Spark finds in them
came by the way under test, and nothing is downloaded.
"""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.environ import environment as spark_environment
from tools.package import GROUP, Package, package

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent

# A start of Java and a few small jobs. Ten times what it takes on two cores.
SUBMIT_SECONDS_MAX = 300

# Spark asks the central repository before the ones it is given. Here only those it is given count.
IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="none"/>
  <resolvers><chain name="none"/></resolvers>
</ivysettings>
"""

# Nothing is registered: Spark has to find the source by itself.
DISCOVER = """
import json, sys
from pyspark.sql import SparkSession

table, report = sys.argv[1:]
settings = {"spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
rows = spark.createDataFrame([(1, "a", 1), (2, "b", 1)], "id long, name string, seq long")
options = {"path": table, "keys": "id", "sequenceBy": "seq"}
rows.write.format("upsertflow").options(**options).mode("append").save()
found = spark.read.format("upsertflow").option("path", table).load()

import pyspark_upsertflow

facts = {
    "origin": pyspark_upsertflow.__file__,
    "rows": sorted(map(list, found.select("id", "name").collect())),
}
json.dump(facts, open(report, "w"))
spark.stop()
"""

# A jar of Python files is no place where Spark looks by itself.
STREAM = """
import json, sys
import pyspark_upsertflow
from pyspark.sql import SparkSession

folder, report = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pyspark_upsertflow.register(spark)
table = f"{folder}/table"
schema = "id long, name string, seq long"


def upsert(*rows):
    spark.createDataFrame(rows, schema).write.mode("append").parquet(f"{folder}/in")
    commands = spark.readStream.schema(schema).parquet(f"{folder}/in")
    run(
        commands.writeStream.format("upsertflow")
        .option("path", table)
        .option("keys", "id")
        .option("sequenceBy", "seq")
        .option("checkpointLocation", f"{folder}/in-checkpoint")
    )


def follow():
    reader = spark.readStream.format("upsertflow").option("path", table)
    changes = reader.option("readChangeFeed", "true").load()
    run(
        changes.writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/out-checkpoint")
    )


def run(query):
    query.trigger(availableNow=True).start().awaitTermination()


def rows(frame, *columns):
    return sorted(map(list, frame.select(*columns).collect()))


upsert((1, "a", 1), (2, "b", 1))
follow()
upsert((1, "A", 2), (2, "late", 0), (3, "c", 2))
follow()
change = spark.createDataFrame([(3, "C", 3)], schema)
options = {"path": table, "keys": "id", "sequenceBy": "seq"}
change.write.format("upsertflow").options(**options).mode("append").save()

changelog = spark.read.parquet(f"{folder}/out")
latest = spark.read.format("upsertflow").option("path", table).load()
facts = {
    "origin": pyspark_upsertflow.__file__,
    "columns": changelog.columns,
    "changes": rows(changelog, "_commit_version", "id", "_diff", "name", "_change_type"),
    "latest": rows(latest, "id", "name"),
}
json.dump(facts, open(report, "w"))
spark.stop()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment that shares this one's packages, this project excepted."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    @classmethod
    def make(cls, folder: Path) -> "Environment":
        """Make it of links: in less than a second, and no installation can reach through them."""
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True)
        environment = cls(folder=folder)
        for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(path).iterdir():
                # Path files would lead back to the checkout.
                if "upsert" not in entry.name and entry.suffix != ".pth":
                    (environment.site / entry.name).symlink_to(entry)
        return environment

    def install(self, *what: str) -> None:
        """Install this project in one of its forms, without anything it depends on."""
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        command = [str(self.python), "-m", "pip", "install", *options, *what]
        subprocess.run(command, check=True, capture_output=True, text=True)


def run(command: list[str], *, environ: dict[str, str], environment: Environment) -> str:
    """Run a program far from the checkout, so that it can find nothing there; returns its words."""
    place = environment.folder
    python = str(environment.python)
    environ = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    # As users have it: with Spark's archive of modules, ahead of what is installed.
    environ |= {"SPARK_HOME": spark_environment()["SPARK_HOME"]}
    # Spark's own choice for a cluster on one machine is the folder it is installed in.
    environ |= {"SPARK_WORKER_DIR": str(place / "work")}
    done = subprocess.run(
        command,
        cwd=place,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=SUBMIT_SECONDS_MAX,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return package(tmp_path_factory.mktemp("dist"))


FORMS = ["wheel", "sdist", "editable"]


def installed(form: str, built: Package, folder: Path) -> Environment:
    """Make an environment that has this project in one of the forms."""
    environment = Environment.make(folder)
    match form:
        case "wheel":
            environment.install(str(built.wheel))
        case "sdist":
            environment.install(str(built.sdist))
        case "editable":
            environment.install("--editable", str(ROOT))
    return environment


@pytest.mark.parametrize("form", FORMS)
def test_what_pip_installed_is_where_spark_looks(
    form: str, built: Package, spark_environ: dict[str, str], tmp_path: Path
) -> None:
    """What the doctor says is what Spark does: `test_doctor`. It takes no Spark to ask it."""
    environment = installed(form, built, tmp_path / "environment")
    doctor = [environment.folder / "bin" / "upsertflow", "doctor"]
    run(list(map(str, doctor)), environ=spark_environ, environment=environment)
    where = [str(environment.python), "-c", "import pyspark_upsertflow as p; print(p.__file__)"]
    origin = run(where, environ=spark_environ, environment=environment).strip()
    home = ROOT / "datasource" if form == "editable" else environment.site
    assert origin == str(home / "pyspark_upsertflow" / "__init__.py")


def test_spark_discovers_what_pip_installed(
    built: Package, spark_environ: dict[str, str], tmp_path: Path
) -> None:
    environment = installed("wheel", built, tmp_path / "environment")
    program, report = tmp_path / "discover.py", tmp_path / "report.json"
    program.write_text(DISCOVER)
    command = [environment.python, program, tmp_path / "table", report]
    run(list(map(str, command)), environ=spark_environ, environment=environment)

    facts = json.loads(report.read_text())
    assert facts["origin"] == str(environment.site / "pyspark_upsertflow" / "__init__.py")
    assert facts["rows"] == [[1, "a"], [2, "b"]]


def submit(master: str, built: Package, environ: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run a job that gets the package from Maven; returns what it reports."""
    environment = Environment.make(folder / "environment")
    file, report = folder / "program.py", folder / "report.json"
    file.write_text(STREAM)
    settings = folder / "ivysettings.xml"
    settings.write_text(IVY_SETTINGS)
    conf = {
        "spark.jars.ivy": folder / "ivy",
        "spark.jars.ivySettings": settings,
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [
        os.path.join(environ["SPARK_HOME"], "bin", "spark-submit"),
        *("--master", master),
        *("--packages", built.coordinates),
        *("--repositories", built.maven.as_uri()),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        *(str(file), str(folder), str(report)),
    ]
    run(command, environ=environ, environment=environment)
    facts: dict[str, Any] = json.loads(report.read_text())
    assert f"{GROUP}_upsertflow-{built.version}.jar" in facts["origin"]
    return facts


def test_a_job_on_a_cluster_that_gets_the_package_from_maven_writes_and_follows_a_table(
    built: Package, spark_environ: dict[str, str], tmp_path: Path
) -> None:
    facts = submit("local-cluster[2,1,1024]", built, spark_environ, tmp_path)
    assert facts["columns"] == [
        *("id", "name", "seq"),
        *("_change_type", "_commit_version", "_commit_timestamp", "_diff"),
    ]
    first, second = sorted({version for version, *_ in facts["changes"]})
    assert facts["changes"] == [
        [first, 1, 1, "a", "insert"],
        [first, 2, 1, "b", "insert"],
        [second, 1, -1, "a", "update_preimage"],
        [second, 1, 1, "A", "update_postimage"],
        [second, 3, 1, "c", "insert"],
    ]
    assert facts["latest"] == [[1, "A"], [2, "b"], [3, "C"]]
