"""The oldest release of Spark, and Sail: each in an environment of its own."""

from __future__ import annotations

import pytest

from integration.servers.install import alone
from tools.matrix import OLDEST, WITHOUT_JAVA, Cell, asked, prepared

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STREAM_READS = ("stream read", "stream in bounds", "batch again")


def problems(cell: Cell) -> dict[str, str]:
    """Return of each thing that is tried what is wrong with it, or nothing."""
    with alone(f"release {cell.name}"):
        python = prepared(cell)
    assert not isinstance(python, str), python
    _, told = asked(python, cell.kind)
    return told


def test_all_works_on_the_oldest_release() -> None:
    assert {name: text for name, text in problems(OLDEST).items() if text} == {}


def test_all_but_reads_of_streams_works_on_sail() -> None:
    found = problems(WITHOUT_JAVA)
    assert tuple(name for name, text in found.items() if text) == STREAM_READS
