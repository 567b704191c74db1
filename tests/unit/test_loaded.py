"""What a process of Spark's loads before its first answer: it starts one for each query."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

LOADED = """
import json, sys
import {module}
print(json.dumps(sorted(sys.modules)))
"""


@cache
def loaded_by(module: str) -> frozenset[str]:
    """Return the modules of a fresh process that has imported one."""
    program = [sys.executable, "-c", LOADED.format(module=module)]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found = frozenset(json.loads(said))
    assert module in found
    return found


@pytest.mark.parametrize("module", ["pyspark_upsertflow.source", "pyspark_upsertflow.readers"])
@pytest.mark.sweep(1)
def test_a_process_that_plans_reads_loads_neither_writers_nor_flows(module: str) -> None:
    unwanted = ("spark_upsert_sink.writers", "spark_upsert.routed.commit", "spark_upsert.flow")
    assert loaded_by(module).isdisjoint(unwanted)


@pytest.mark.parametrize(
    "module",
    ["pyspark_upsertflow.source", "spark_upsert_sink.writers", "spark_upsert_sink.routed"],
)
@pytest.mark.sweep(1)
def test_no_constant_of_a_module_makes_pyarrow_load_pandas(module: str) -> None:
    """pyarrow does for the first value that it makes of one of Python's: a third of a second."""
    assert "pandas" not in loaded_by(module)


def test_a_worker_that_reads_rows_loads_no_parquet_and_no_tls() -> None:
    unwanted = ("pyarrow.parquet", "pyarrow.fs", "ssl", "difflib")
    assert loaded_by("spark_upsert.streams.reads.read_split").isdisjoint(unwanted)


def test_a_new_process_has_all_commands() -> None:
    program = "from spark_upsert.cli.main import upsertflow; print(*sorted(upsertflow.commands))"
    command = [sys.executable, "-c", program]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"doctor", "init", "info", "changes", "expire", "alter", "parked"} <= {*names}
