"""A Spark of this machine alone, as all measurements start it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession


def session(
    folder: Path, settings: Mapping[str, str] | None = None, *, cores: int = 0
) -> SparkSession:
    """Return a session, which logs errors alone.

    Parameters
    ----------
    folder : Path
        Of its warehouse and of what it spills.
    settings : mapping of str to str, optional
        Of Spark, beside those of each measurement and before them.
    cores : int
        All by default.
    """
    # The workers' choice would be `python3`, and the process that looks for sources heeds no
    # configuration.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    cores = cores or os.cpu_count() or 1
    told = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("upsertflow bench")
    for name, value in told.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found
