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


def test_a_figure_is_rounded_as_people_do() -> None:
    assert seconds_of("A", "| A | 1 ms | 2 ms | 6884 ms (1 ms to 2 ms) |") == "6.9 s"
    assert seconds_of("A", "| A | 1 ms | 2 ms | 29.0 s (26.0 s to 41.9 s) |") == "29.0 s"


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_row_of_the_comparison_is_that_of_the_report(name: str) -> None:
    section = section_of(SYSTEMS[name])
    [keys] = re.findall(r"^(\d+ M) keys .* batches of 100 000 rows", section, re.MULTILINE)
    told = [cells(line) for line in COMPARE.splitlines() if line.startswith(f"| {name} | ")]
    theirs, ours = (seconds_of(each, section) for each in (SYSTEMS[name], "upsertflow on Spark"))
    assert told == [[name, keys, theirs, ours]]


@pytest.mark.parametrize(
    ("system", "release"),
    [
        ("Hudi on Spark", "spark 3.5."),
        ("Paimon on Spark", "spark 3.5."),
        ("Paimon on Spark", "paimon-bundle-0.9."),
        ("Iceberg changelog on Spark", "spark 4.1."),
    ],
)
def test_a_release_that_the_comparison_names_is_that_of_the_report(
    system: str, release: str
) -> None:
    stated = "Hudi and Paimon ran on Spark 3.5, Iceberg on 4.1, and Paimon was release 0.9"
    assert stated in " ".join(COMPARE.split())
    [row] = [line for line in section_of(system).splitlines() if line.startswith(f"| {system} |")]
    assert release in row


def test_the_speed_of_a_mirror_is_that_of_the_report() -> None:
    [told] = re.findall(r"\| Delta Lake \|.* at (\S+) of Parquet's speed, .* at (\S+) \|", COMPARE)
    [scan] = [line for line in REPORT.splitlines() if line.startswith("| Spark reads all of a mir")]
    [theirs] = re.findall(r"as a table that Delta wrote: (\d+) ms .* as Parquet: (\d+) ms", REPORT)
    assert told == (cells(scan)[2], f"{int(theirs[1]) / int(theirs[0]):.2f}")


def test_the_figure_of_the_first_screen_is_that_of_the_report() -> None:
    section = section_of("Delta on Spark")
    ours, theirs = (seconds_of(name, section) for name in ("upsertflow on Spark", "Delta on Spark"))
    [told] = re.findall(
        r"changes in\s+(\S+ s)\. Delta's `MERGE` and change feed take (\d+ s)", README
    )
    assert told == (ours, f"{float(theirs.removesuffix(' s')):.0f} s")
