"""How the tests are shared out when they run side by side: `make test`, `pytest -n 3 --dist loadfile`.

A file runs whole and on one lane, with its fixtures. Files that use the one Spark of `integration`
stay together, so that it starts once; they and the others that start Java come first, for they take
longest, and what is left of the quick files fills the gaps at the end.

A test that fails is reported by the name that runs it alone: `pytest <name>`.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parent

# xdist sets it in its workers, and the command would omit columns.
os.environ.pop("COLUMNS", None)

SHARED = "the shared Spark"
"""The lane of all files with a test or fixture that takes the argument ``spark``."""

LONGEST = (
    "integration/test_crash.py",
    "integration/test_debezium_flow.py",
    "integration/test_deployment.py",
    "integration/test_mirror_readers.py",
    "tests/simulation/test_simulation.py",
)
"""What takes a minute or two (`make times`): whichever came last would run alone."""


@cache
def lane_of(file: str) -> str:
    """Return what must run on one lane together with a file: the file, unless it shares."""
    is_sharing = file.startswith("integration/") and re.search(
        r"\bspark: ", (ROOT / file).read_text(encoding="utf-8")
    )
    return SHARED if is_sharing else file


def file_of(test: str) -> str:
    """Return the file of a test's name."""
    return test.partition("::")[0]


def rank(file: str) -> tuple[int, str]:
    """Return when a file should begin: what takes long goes first."""
    if lane_of(file) == SHARED:
        return 0, ""
    if file in LONGEST:
        return 1, ""
    # By name whatever the folder: those which wait for servers alternate with those which compute.
    if file.startswith(("integration/", "tests/crash/", "tests/simulation/")):
        return 2, Path(file).name
    return 3, ""


def pytest_configure() -> None:
    """Let an interrupt end the run and each of its lanes, however the run was started.

    A shell without job control starts its background commands with interrupts ignored, and all that
    they start inherits it: Python then installs no handler, and the run goes on for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


COMPARED_MAX = 10_000
"""Pairs of lines, in each of which `difflib` looks for the letters that differ."""


class _BoundedDiffer(difflib.Differ):
    """Shows long blocks that differ as lines gone and lines come, in time that grows with the lines.

    Python before 3.13 compares each line with each and once more with what is left, so that the diff of
    two pages takes minutes, and of two long lists hours: a failed assertion was a run that hung.
    """

    def _fancy_replace(
        self, a: Any, alo: int, ahi: int, b: Any, blo: int, bhi: int
    ) -> Iterator[str]:
        is_long = (ahi - alo) * (bhi - blo) > COMPARED_MAX
        show: Any = getattr(super(), "_plain_replace" if is_long else "_fancy_replace")
        yield from show(a, alo, ahi, b, blo, bhi)


difflib.Differ = _BoundedDiffer  # type: ignore[misc]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests, on a lane only: a run without lanes keeps the order of the folders."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(file_of(item.nodeid)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without a look for garbage, and do not look through what is collected later.

    Thousands of tests and modules live to the end. To visit them again and again took a fifth of
    the processor time of `make check`, and to look behind every 700 new objects a twentieth.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


# Without pytest-xdist there is no such hook, and no lane.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return what hands out the files; None leaves it to another ``--dist``."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out what belongs together, in the order of the collection."""

        def _split_scope(self, nodeid: str) -> str:
            return lane_of(file_of(nodeid))

    config.option.loadscopereorder = False
    return Lanes(config, log)
