"""The figures of README and of the comparison are those of the report, as it is now."""

from __future__ import annotations

import re

import pytest

from integration.pages import ROOT

REPORT = (ROOT / "docs/benchmarks/report.md").read_text("utf-8")
COMPARE = (ROOT / "docs/compare.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")

SYSTEMS = {
    "Delta `MERGE`, change data feed": "Delta on Spark",
    "Iceberg `MERGE`, changelog view": "Iceberg changelog on Spark",
    "Hudi, copy on write with CDC": "Hudi on Spark",
    "Paimon, lookup changelog": "Paimon on Spark",
}
"""What the report calls them."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def section_of(system: str) -> str:
    """Return the section of the report in which another system is measured."""
    through_spark = [
        each for each in REPORT.split("\n## ") if each.startswith("Through Spark, aga")
    ]
    [found] = [each for each in through_spark if f"\n| {system} | " in each]
    return found


def seconds_of(system: str, section: str) -> str:
    """Return what an upsert and its changes take, in seconds to a tenth."""
    [row] = [cells(line) for line in section.splitlines() if line.startswith(f"| {system} | ")]
    value, unit = row[3].split()[:2]
    return f"{float(value) / (1000 if unit == 'ms' else 1):.1f} s"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_row_of_the_comparison_is_that_of_the_report(name: str) -> None:
    section = section_of(SYSTEMS[name])
    [keys] = re.findall(r"^(\d+ M) keys .* batches of 100 000 rows", section, re.MULTILINE)
    told = [cells(line) for line in COMPARE.splitlines() if line.startswith(f"| {name} | ")]
    theirs, ours = (seconds_of(each, section) for each in (SYSTEMS[name], "upsertflow on Spark"))
    assert told == [[name, keys, theirs, ours]]


def test_the_figure_of_the_first_screen_is_that_of_the_report() -> None:
    section = section_of("Delta on Spark")
    ours, theirs = (seconds_of(name, section) for name in ("upsertflow on Spark", "Delta on Spark"))
    [told] = re.findall(
        r"changes in\s+(\S+ s)\. Delta's `MERGE` and change feed take (\d+ s)", README
    )
    assert told == (ours, f"{float(theirs.removesuffix(' s')):.0f} s")
