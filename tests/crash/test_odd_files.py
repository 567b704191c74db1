"""What is no regular file is never read: not waited for, not without end, whatever verb meets it.

In a process of its own, because what is tested is that it comes back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.odd_files import CALLS, KINDS

ROOT = Path(__file__).parents[2]

_GUARD_S = 300
"""Of a process that does not come back."""

REFUSED = "expected a regular file, found "

OFTEN = ("a FIFO", "a link to an endless device")

HARMLESS = ("answer", "CORRUPTION ", "STORAGE ", "OPTION version", "TABLE_NOT_FOUND ")
"""An answer that does without the file, or an error of ours. A log whose head is lost is short."""


def outcomes(kind: str) -> list[tuple[str, str, str]]:
    """Return of each file and call what became of it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.odd_files", kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_GUARD_S,
    )
    lines = [line.split(": ", 2) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended by {done.returncode} at {lines[-1:]}\n{done.stderr}"
    return [(file, call, became) for file, call, became in lines]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=() if k in OFTEN else pytest.mark.slow) for k in KINDS],
)
def test_every_call_comes_back_from_what_is_no_file(kind: str) -> None:
    found = outcomes(kind)
    folders = {file.partition("/")[0] for file, _, _ in found}
    assert folders >= {"_log", "data", "_consumers", "_pressure", "_index", "5" * 32}
    assert {call for _, call, _ in found} == set(CALLS)
    assert [each for each in found if not each[2].startswith(HARMLESS)] == []
    is_odd = "levels of symbolic links" if kind == "a link to itself" else REFUSED
    for call in ("read", "map", "a file of others"):
        assert all(is_odd in became for _, name, became in found if name == call), call
