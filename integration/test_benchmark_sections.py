"""The benchmark's sections about many tables run, in the form that measures nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contest import Place
from benchmarks.host import Host
from benchmarks.limits import limits
from benchmarks.report.page import write_report
from benchmarks.sections import SECTIONS, TINY, streams
from benchmarks.sections.running import inputs_on_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def place(
    spark_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Place]:
    """Where the sections run, all with the one Spark that each would start for itself."""
    for name, value in spark_environ.items():
        monkeypatch.setenv(name, value)
    place = Place(cache=tmp_path / "cache", work=tmp_path / "work", parts=2)
    with inputs_on_spark(place) as host:

        @contextmanager
        def running(_: Place) -> Iterator[Host]:
            yield host

        monkeypatch.setattr(streams, "inputs_on_spark", running)
        yield place


def test_sections_about_many_tables(place: Place, tmp_path: Path) -> None:
    size = replace(TINY, table=2_000, rounds=1, inputs=(2,), queries=(1, 2), slow_s=1)
    names = ("union", "inputs", "queries")
    sections = {name: {**SECTIONS[name](place, size), "busy_before": 0.0} for name in names}
    told = [row for row in limits(sections, "tiny") if row[2] != "not measured"]
    assert len(told) == 3, "a union, a query for each table, and a slow consumer"
    assert sections["union"]["rows"] == 4 * 2 * 2 * size.table, (
        "updates of two tables in four epochs"
    )
    assert list(sections["inputs"]) == ["2", "busy_before"]
    assert set(sections["queries"]) == {"one", "1", "2", "tables", "busy_before"}
    machine = {"cores": 2, "cpu": "", "memory_bytes": 0, "system": sys.platform, "python": ""}
    found = {"size": "tiny", "machines": dict.fromkeys(names, machine), "sections": sections}
    write_report(found, tmp_path)
    assert "## One query over many tables" in (tmp_path / "report.md").read_text()
