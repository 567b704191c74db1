"""Whatever bytes come: right, or bad with a reason; never a crash, never without bounds.

The differential tests run in processes of their own: bytes that kill the interpreter are a
failure of one test, not the end of all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def assert_agrees_with_python(format_: str, first: int, seeds: int, count: int) -> None:
    arguments = map(str, (first, seeds, count))
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.payload_fuzz", format_, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"exit code {run.returncode}: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_payloads_are_what_python_reads(format_: str) -> None:
    assert_agrees_with_python(format_, 0, 32, 100)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["json", "avro"])
@pytest.mark.parametrize("first", range(0, 320, 32))
def test_many_payloads_are_what_python_reads(format_: str, first: int) -> None:
    assert_agrees_with_python(format_, 1000 + first, 32, 2000)
