"""The report in the repository: every promised figure is measured, and no miss goes unexplained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.limits import limits

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "raw.json").read_text())
    return found


def test_every_promised_figure_is_measured(measured: dict[str, Any]) -> None:
    rows = list(limits(measured["sections"], measured["size"]))
    assert measured["size"] == "full"
    assert [what for what, _, value, _, _ in rows if value == "not measured"] == []


def test_what_misses_its_limit_says_why(measured: dict[str, Any]) -> None:
    for what, _, _, met, explanation in limits(measured["sections"], measured["size"]):
        assert met == "yes" or len(explanation) > 300, what


def test_the_page_shows_the_figures_that_were_measured(measured: dict[str, Any]) -> None:
    page = (FOLDER / "report.md").read_text()
    for row in limits(measured["sections"], measured["size"]):
        assert f"| {' | '.join(row[:3])} |" in page


def test_a_figure_that_is_missing_is_not_passed_over(measured: dict[str, Any]) -> None:
    """Without any section each promise still has a row, and that says so."""
    rows = list(limits({}, "full"))
    assert len(rows) == 11
    assert {value for _, _, value, _, _ in rows} == {"not measured"}


def test_peers_ended_with_the_same_rows(measured: dict[str, Any]) -> None:
    sections = measured["sections"]
    contests = [s for s in sections.values() if "same_table" in s]
    contests += [s for s in sections["variants"].values() if isinstance(s, dict)]
    assert len(contests) > 8
    for contest in contests:
        assert contest["same_table"] in (True, None)
        assert contest["same_changes"] in (True, None)
