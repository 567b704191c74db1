"""A run with right checksums and wrong contents, or one that is cut under its readers.

In processes of their own, because what is tested is that they survive.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.errors import CorruptionError
from spark_upsert.table.table import Table
from tests.support.fuzz import FUZZ_TIMES
from tests.support.stores import forget_runs_and_logs

ROOT = Path(__file__).parents[2]


def outcomes(first: int, count: int) -> list[str]:
    """Return what became of some mutants; the last line is of the one that killed the process."""
    command = [sys.executable, "-m", "tests.support.hostile_runs", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"process ended by {done.returncode} at {lines[-1]}\n{done.stderr}"
    assert len(lines) == count
    return lines


def require_harmless(lines: list[str]) -> None:
    harmless = {"answer", "CORRUPTION", "CORRUPTION answer"}
    assert [line for line in lines if line.partition(" ")[2] not in harmless] == []


def test_a_hostile_run_is_an_error_or_an_answer() -> None:
    lines = outcomes(0, 120)
    require_harmless(lines)
    assert sum("CORRUPTION" in line for line in lines) > 50


@pytest.mark.slow
@pytest.mark.parametrize("first", [1_000, 1_000_000])
def test_many_hostile_runs_are_errors_or_answers(first: int) -> None:
    require_harmless(outcomes(first, 200 * FUZZ_TIMES))


_CUT = """
import os, sys
import pyarrow as pa
from spark_upsert.errors import CorruptionError
from spark_upsert.table.table import Table
table = Table.open(sys.argv[1])
before = table.snapshot()
(file,) = table.log.commit(1).added
path = f"{sys.argv[1]}/{file.path}"
data = open(path, "rb").read()
for left in (len(data) // 2, 0, len(data) - 1):
    os.truncate(path, left)
    for read in (table.snapshot, table.changes):
        try:
            read()
        except CorruptionError as error:
            assert file.path in str(error) and str(left) in str(error), error
        else:
            raise AssertionError("read what is not there")
open(path, "wb").write(data)
assert table.snapshot() == before
"""


def test_a_run_that_is_cut_while_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64(), "v": pa.string()}), keys=["k"])
    rows = pa.table({"k": range(20_000), "v": [f"value {i}" for i in range(20_000)]})
    table.upsert(rows)
    subprocess.run([sys.executable, "-c", _CUT, str(tmp_path)], check=True)


def test_a_run_that_is_removed_while_it_is_mapped_stays_readable(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": [1, 2]}))
    before = table.snapshot()
    (file,) = table.log.commit(1).added
    (tmp_path / file.path).unlink()
    assert table.snapshot() == before
    forget_runs_and_logs()
    with pytest.raises(CorruptionError, match="no such file"):
        table.snapshot()
