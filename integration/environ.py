"""The environment of a Spark that is started here: the installed PySpark, `conf/`, our code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parent.parent

ROOTS = (ROOT, ROOT / "datasource", ROOT / "sink")
"""The folders that an editable installation puts on the path."""


def environment() -> dict[str, str]:
    """Return the environment in which any Spark is started."""
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


def from_checkout(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose programs find our packages in a bare checkout, too."""
    return {**environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS))}


def link_home(folder: Path) -> Path:
    """Make a folder that is Spark's home by links, but for its archive of Python modules.

    Spark puts ``python/lib/pyspark.zip`` on the path of its Python processes, ahead of the
    installed PySpark. The archive has sources only, which each process compiles anew
    (``docs/adr/0130``).
    """
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (folder / entry.name).symlink_to(entry)
    return folder
