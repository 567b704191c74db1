"""The systems: which runner, which interpreter, which jars, and how each is used.

Python environments come by pip and jars by Maven, both into a cache, with the versions below. A
system that cannot be had is not tried, and the page says why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUN_SECONDS_MAX = 1800
"""A system takes two to five minutes on two cores; what takes longer hangs."""


class SetupError(Exception):
    """A system cannot be had; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A system and how it is used: what its own documentation says for this job."""

    name: str
    title: str
    runner: str
    used: str
    """The settings, for a reader who knows the system."""
    source: str
    """The page of its documentation that is followed."""
    needs: tuple[str, ...] = ()
    """Requirements of an interpreter of its own; none is the one that runs this program."""
    jar: str = ""
    """A Maven coordinate; what it needs besides Spark comes with it."""
    groups: tuple[str, ...] = ()
    """Groups of the jars that are taken."""


_MERGE = "`MERGE` of the newest row of each key, which compares the order with the row's"
_DELTA_PAGE = "https://docs.delta.io/latest/delta-update.html"
_SPARK_3 = ("pyspark[sql]==3.5.*", "pandas<3", "pyarrow<21", "numpy<2", "setuptools<80")

PEERS = (
    Peer(
        name="upsertflow",
        title="upsertflow, Python",
        runner="upsertflow_engine:UpsertflowEngine",
        used="`Table.create(keys=, sequence_by=)`, `upsert(deletes=)`, `changes`",
        source="without-spark.md",
    ),
    Peer(
        name="upsertflow_spark",
        title="upsertflow, Spark",
        runner="upsertflow_spark:UpsertflowSpark",
        used="`keys`, `sequenceBy`, `applyAsDeletes`, `mergeSchema`; `readChangeFeed`",
        source="../README.md",
    ),
    Peer(
        name="delta_rs",
        title="Delta, delta-rs",
        runner="delta_rs:DeltaRs",
        used=f"{_MERGE}; `delta.enableChangeDataFeed`, `load_cdf`",
        source="https://delta-io.github.io/delta-rs/usage/merging-tables/",
        needs=("deltalake==1.6.*", "pyarrow"),
    ),
    Peer(
        name="delta_rs_flagged",
        title="Delta, deletes kept as rows",
        runner="delta_rs:DeltaRsFlagged",
        used="as before, but a delete updates a flag of its row, or inserts it; "
        "readers leave such rows out, of the table and of the feed",
        source="https://delta-io.github.io/delta-rs/usage/merging-tables/",
        needs=("deltalake==1.6.*", "pyarrow"),
    ),
    Peer(
        name="delta_spark",
        title="Delta, Spark",
        runner="delta_spark:DeltaSpark",
        used=f"{_MERGE}; `delta.enableChangeDataFeed`, `readChangeFeed`",
        source=_DELTA_PAGE,
        needs=("pyspark[sql]==4.2.*", "pandas<3", "pyarrow"),
        jar="io.delta:delta-spark_4.2_2.13:4.4.0",
        groups=("io.delta", "io.unitycatalog"),
    ),
    Peer(
        name="iceberg_spark",
        title="Iceberg, Spark",
        runner="iceberg_spark:IcebergSpark",
        used=f"{_MERGE}; copy on write, `create_changelog_view` with `compute_updates`",
        source="https://iceberg.apache.org/docs/latest/spark-procedures/#change-data-capture",
        needs=("pyspark[sql]==4.1.*", "pandas<3", "pyarrow"),
        jar="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        groups=("org.apache.iceberg",),
    ),
    Peer(
        name="hudi_cow",
        title="Hudi, copy on write",
        runner="hudi_spark:HudiSpark",
        used="operation `upsert`, `precombine.field`, merge mode `EVENT_TIME_ORDERING`, "
        "`_hoodie_is_deleted`; `hoodie.table.cdc.enabled` with `data_before_after`",
        source="https://hudi.apache.org/docs/record_merger/",
        needs=_SPARK_3,
        jar="org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",
        groups=("org.apache.hudi",),
    ),
    Peer(
        name="hudi_mor",
        title="Hudi, merge on read",
        runner="hudi_spark:HudiSparkMergeOnRead",
        used="the same, of a `MERGE_ON_READ` table",
        source="https://hudi.apache.org/docs/record_merger/",
        needs=_SPARK_3,
        jar="org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",
        groups=("org.apache.hudi",),
    ),
    Peer(
        name="paimon_spark",
        title="Paimon, Spark",
        runner="paimon_spark:PaimonSpark",
        used="`primary-key`, `sequence.field`, `rowkind.field`, `changelog-producer=lookup`; "
        "`incremental-between` of the audit log",
        source="https://paimon.apache.org/docs/master/primary-key-table/changelog-producer/",
        needs=_SPARK_3,
        jar="org.apache.paimon:paimon-spark-3.5:0.9.0",
        groups=("org.apache.paimon",),
    ),
    Peer(
        name="paimon_python",
        title="Paimon, pypaimon",
        runner="paimon_python:PaimonPython",
        used="`primary_keys`, `sequence.field`, `rowkind.field`, bucket 1; its writer has no "
        "changelog of lookups, so that no changes are read",
        source="https://paimon.apache.org/docs/master/pypaimon/python-api/",
        needs=("pypaimon==2.1.*",),
    ),
    Peer(
        name="ducklake",
        title="DuckLake",
        runner="ducklake:DuckLake",
        used="a `DELETE` and a `MERGE` in a transaction, of the newest row of each key, which compare "
        "the order with the row's; `table_changes`",
        source="https://ducklake.select/docs/stable/duckdb/advanced_features/data_change_feed",
        needs=(
            "duckdb==1.5.5",
            "duckdb-extensions",
            "duckdb-extension-ducklake==1.5.5",
            "duckdb-extension-parquet==1.5.5",
        ),
    ),
)
"""In the order of the page."""


def run(peer: Peer, home: Path, *, cache: Path, own: bool = False) -> None:
    """Run the histories that `runner.ask` wrote into ``home`` under the interpreter of a system.

    Parameters
    ----------
    own : bool
        Whether to take the interpreter that runs this program, although the system asks for one.

    Raises
    ------
    SetupError
        The system cannot be had, or ended before it said anything.
    """
    python = sys.executable if own else _python(peer, cache)
    roots = [Path(__file__).resolve().parents[1], *_UPSERTFLOW]
    with (home / "log.txt").open("w") as log:
        done = subprocess.run(
            [python, "-m", "changelog_conformance.runner", peer.runner, str(home)],
            stdout=log,
            stderr=log,
            cwd=home,
            timeout=RUN_SECONDS_MAX,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, roots)),
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": python,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "CONFORMANCE_JARS": ",".join(map(str, _jars(peer, cache))),
            },
        )
    if not (home / "observed.json").exists():
        lines = (home / "log.txt").read_text().strip().splitlines() or [f"exit {done.returncode}"]
        raise SetupError(lines[-1][:300])


_CHECKOUT = Path(__file__).resolve().parents[2]
_UPSERTFLOW = (_CHECKOUT, _CHECKOUT / "datasource", _CHECKOUT / "sink")
"""Where our own package lies, installed or not; other systems look at none of it."""


def _python(peer: Peer, cache: Path) -> str:
    if not peer.needs:
        return sys.executable
    folder = cache / re.sub(r"[^\w.]+", "-", "-".join(peer.needs)).strip("-.")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        _do([sys.executable, "-m", "venv", str(folder)])
        _do([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *peer.needs])
        (folder / "complete").touch()
    return str(python)


def _jars(peer: Peer, cache: Path) -> list[Path]:
    if not peer.jar:
        return []
    folder = cache / "jars" / peer.jar.replace(":", "_")
    if not (folder / "complete").exists():
        if shutil.which("mvn") is None:
            raise SetupError("Maven (mvn) is not on the PATH; the jars come by it")
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(_POM.format(*peer.jar.split(":")))
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        groups = f"-DincludeGroupIds={','.join(peer.groups)}"
        _do(["mvn", "-B", "-q", "-f", str(pom), *copy, "-DincludeScope=runtime", groups])
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>conformance</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging><dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion>
</exclusions></dependency></dependencies></project>
"""


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        told = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        raise SetupError(f"{Path(command[0]).name}: {told[:300]}")
