"""Where peers come from: Python environments by pip, jars by Maven, both into a cache.

Spark's own resolver is not used: it resolves while a session starts, which is neither
repeatable nor visible. Versions are pinned here, and nowhere else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.host import ROOT


class SetupError(Exception):
    """A peer cannot be had; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An interpreter with a Spark, and the jars for it."""

    spark: str | None = None
    """Requirement of pyspark; None is the interpreter that runs this program."""
    packages: tuple[str, ...] = ()
    """Requirements of an interpreter of its own, beside Spark."""
    jars: tuple[str, ...] = ()
    """Maven coordinates. What Spark itself brings along is left out."""
    groups: tuple[str, ...] = field(default=())
    """Groups of jars to take; empty takes only what is named."""

    def prepare(self, cache: Path) -> tuple[str, list[Path]]:
        """Return interpreter and jars, installing what is missing."""
        return self._python(cache), self._fetched(cache)

    def _python(self, cache: Path) -> str:
        if self.spark is None and not self.packages:
            return sys.executable
        wanted = [f"pyspark[sql]{self.spark}", "pandas<3"] if self.spark else []
        wanted += [*self.packages, "psutil", "pyarrow", "numpy"]
        folder = cache / re.sub(r"[^\w.]+", "-", "-".join(wanted[:1])).strip("-.")
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            # By the pip that is here, and without compiling what no peer may ever import.
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
            _run([*pip, "--quiet", "--no-compile", *wanted])
            (folder / "complete").touch()
        return str(python)

    def _fetched(self, cache: Path) -> list[Path]:
        if not self.jars:
            return []
        folder = cache / "jars" / self.jars[0].replace(":", "_")
        if not (folder / "complete").exists():
            if shutil.which("mvn") is None:
                raise SetupError("Maven (mvn) is not on the PATH; the jars come by it")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pom.xml").write_text(_pom(self.jars))
            wanted = self.groups or tuple({jar.split(":")[0] for jar in self.jars})
            _run(
                [
                    "mvn",
                    "--batch-mode",
                    "--quiet",
                    "--file",
                    str(folder / "pom.xml"),
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={folder}",
                    "-DincludeScope=runtime",
                    f"-DincludeGroupIds={','.join(wanted)}",
                ]
            )
            (folder / "complete").touch()
        return sorted(folder.glob("*.jar"))


DELTA = Environment(
    spark="==4.2.*",
    jars=("io.delta:delta-spark_4.2_2.13:4.4.0",),
    groups=("io.delta", "io.unitycatalog"),
)
ICEBERG = Environment(
    spark="==4.1.*", jars=("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
)
_ON_SPARK_3 = ("pyarrow<21",)
"""Spark 3.5 asks for numpy 1, and newer ones do not run with it."""
HUDI = Environment(
    spark="==3.5.*",
    packages=_ON_SPARK_3,
    jars=("org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",),
)
"""Maven did not find its bundles for Spark 4 when this was written."""
PAIMON = Environment(
    spark="==3.5.*", packages=_ON_SPARK_3, jars=("org.apache.paimon:paimon-spark-3.5:0.9.0",)
)
"""The newest of its connectors for Spark that Maven found when this was written."""
PYPAIMON = Environment(packages=("pypaimon>=2",))
"""Apart from the others: it asks for an old pyarrow."""
DUCKLAKE = Environment(
    packages=(
        "duckdb==1.5.5",
        "duckdb-extensions",
        "duckdb-extension-ducklake==1.5.5",
        "duckdb-extension-parquet==1.5.5",
    )
)
OURS = Environment()
OURS_BESIDE_DELTA = Environment(spark=DELTA.spark)


def _pom(jars: tuple[str, ...]) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "<exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions></dependency>".format(*jar.split(":"))
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        told = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        raise SetupError(f"{Path(command[0]).name}: {told[:600]}")
