"""What a process of Spark's loads before its first answer: it starts one for each query."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LOADED = """
import json, sys
import {module}
print(json.dumps(sorted(sys.modules)))
"""


def printed_by(program: str) -> str:
    """Return what a fresh process prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def loaded_by(module: str) -> frozenset[str]:
    """Return the modules of a fresh process that has imported one."""
    return frozenset(json.loads(printed_by(LOADED.format(module=module))))


READERS = ("pyspark_upsertflow.stream_reader", "pyspark_upsertflow.readers")
WRITERS = ("spark_upsert_sink.writers", "spark_upsert_sink.routed")


@pytest.mark.parametrize("module", READERS)
@pytest.mark.sweep(1)
def test_a_process_that_plans_reads_loads_neither_writers_nor_flows(module: str) -> None:
    unwanted = ("spark_upsert_sink.writers", "spark_upsert.routed.commit", "spark_upsert.flow")
    assert loaded_by(module).isdisjoint(unwanted)


@pytest.mark.parametrize("module", [READERS[0], *WRITERS])
@pytest.mark.sweep(1)
def test_no_constant_of_a_module_makes_pyarrow_load_pandas(module: str) -> None:
    """pyarrow does for the first value that it makes of one of Python's: a third of a second."""
    assert "pandas" not in loaded_by(module)


def test_a_worker_that_reads_rows_loads_no_parquet_and_no_tls() -> None:
    unwanted = ("pyarrow.parquet", "pyarrow.fs", "ssl", "difflib")
    assert loaded_by("spark_upsert.streams.reads.read_split").isdisjoint(unwanted)


EXTRAS: dict[str, tuple[str, ...]] = {
    "click": ("spark_upsert.cli",),
    "rich": ("spark_upsert.cli",),
    "obstore": ("spark_upsert.store.object_store",),
    "polars": ("spark_upsert.table.polars_frame",),
    **dict.fromkeys(
        ("fastavro", "pandas", "prometheus_client", "pyspark", "urllib3", "psycopg"), ()
    ),
}
"""Packages that a plain installation lacks, and the modules that need each of them."""

WITHOUT_EXTRAS = """
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys({extras!r}))
import spark_upsert
failed = {{}}
for module in pkgutil.walk_packages(spark_upsert.__path__, "spark_upsert."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = str(error)
print(json.dumps(failed))
"""


def test_only_the_modules_of_an_extra_need_its_packages() -> None:
    failed: dict[str, str] = json.loads(printed_by(WITHOUT_EXTRAS.format(extras=[*EXTRAS])))
    needing = tuple(prefix for prefixes in EXTRAS.values() for prefix in prefixes)
    assert [f"{name}: {failed[name]}" for name in failed if not name.startswith(needing)] == []


LIGHT = """
import sys
sys.modules.update(dict.fromkeys(["pyarrow", "numpy", "spark_upsert"]))
import pyspark_upsertflow
import pyspark_upsertflow_postgres
print(pyspark_upsertflow.DefaultSource.name())
"""

WITHOUT_LIMITS = """
import pyspark.sql.datasource_internal
import pyspark.sql.streaming.datasource as limits
del limits.SupportsTriggerAvailableNow, limits.ReadMaxRows
from pyspark_upsertflow import postgres, readers, registration, stream_reader, writers
import pyspark_upsertflow
print(pyspark_upsertflow.DefaultSource.name())
"""


@pytest.mark.parametrize(
    "program", [LIGHT, WITHOUT_LIMITS], ids=["pyarrow", "the read limits of PySpark 4.2"]
)
def test_spark_discovers_the_source_without(program: str) -> None:
    """Spark imports the source to discover it; PySpark 4.1 has no read limits."""
    folders = [str(ROOT), str(ROOT / "datasource"), str(ROOT / "sink")]
    assert printed_by(f"import sys; sys.path[:0] = {folders!r}\n{program}") == "upsertflow\n"
