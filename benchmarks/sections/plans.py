"""Tasks, views and flows."""

from __future__ import annotations

import shutil
from typing import Any

from benchmarks.contest import Place
from benchmarks.sections.running import program
from benchmarks.sections.size import Size


def tasks(place: Place, size: Size) -> dict[str, Any]:
    """Measure splits that are read through a task, against the direct call."""
    from benchmarks.tasks import measure

    folder = place.work / "tasks"
    try:
        return measure(folder, size.split_keys, rounds=2 * size.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def operators(place: Place, size: Size) -> dict[str, Any]:
    """Measure joins and groups of a task against those of pyarrow, which have all rows at once."""
    from benchmarks.operators import measure

    return measure(size.merged // 2, rounds=size.rounds + 2)


LIVED_ROUNDS = 40
"""Rounds of the long run for each one that is measured by itself."""


def views(place: Place, size: Size) -> dict[str, Any]:
    """Measure views that are kept up by changes, against computing them again."""
    asked = {"orders": size.table, "rounds": size.rounds, "lived": LIVED_ROUNDS * size.rounds}
    return program("views", *(text for name, n in asked.items() for text in (f"--{name}", str(n))))


def fusion(place: Place, size: Size) -> dict[str, Any]:
    """Measure the effect of fusion on Spark."""
    rows = str(size.table // 10)
    return program("fusion", "--rows", rows, "--rounds", str(min(3, size.rounds)))
