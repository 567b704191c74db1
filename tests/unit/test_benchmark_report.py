"""The report in the repository: every promised figure is measured, and no miss goes unexplained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import indexing, object_storage, offsets, operators, routing, wide
from benchmarks.bare import Bare, bare
from benchmarks.figures import figures, written
from benchmarks.limits import limits
from benchmarks.limits.tables import wide_row
from benchmarks.merging import measure
from benchmarks.report.page import write_report
from benchmarks.report.plans import operators_section
from benchmarks.report.tables import (
    indexing_section,
    routing_section,
    wide_section,
)
from spark_upsert.table.table import Table
from tests.support.counted_s3 import counted_s3

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"


ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    figures_: dict[str, Any] = json.loads((FOLDER / "figures.json").read_text())
    return figures_


def test_every_promised_figure_is_measured(measured: dict[str, Any]) -> None:
    rows = list(limits(measured["sections"], measured["size"]))
    assert measured["size"] == "full"
    assert {what for what, _, value, _, _ in rows if value == "not measured"} == set()


def test_what_misses_its_limit_says_why(measured: dict[str, Any]) -> None:
    for what, _, _, met, explanation in limits(measured["sections"], measured["size"]):
        assert met == "yes" or len(explanation) > 300, what


def test_the_page_is_made_from_the_figures(measured: dict[str, Any], tmp_path: Path) -> None:
    write_report(measured, tmp_path)
    # Plots need matplotlib, which only `make bench` installs; their figures are in the page, too.
    kept, made = (
        (at / "report.md").read_text().split("![")[0].rstrip() for at in (FOLDER, tmp_path)
    )
    assert kept == made, "write it anew: make bench ARGS='--full --report'"


def test_the_repository_keeps_figures_and_no_samples(measured: dict[str, Any]) -> None:
    assert measured == figures(measured)
    text = (FOLDER / "figures.json").read_text()
    assert text == written(measured) + "\n"
    assert len(text.splitlines()) < 2_200


def test_a_figure_that_is_missing_is_not_passed_over(measured: dict[str, Any]) -> None:
    """Without any section each promise still has a row, and that says so."""
    rows = list(limits({}, "full"))
    assert len(rows) == 37
    assert {value for _, _, value, _, _ in rows} == {"not measured"}


def test_one_write_into_many_tables_makes_requests_for_each_of_them(tmp_path: Path) -> None:
    found = routing.measure(tmp_path, (1, 3), 60, rounds=1)
    one, three = (figures(found)["tables"][tables]["requests"] for tables in ("1", "3"))
    assert 0 < one["median"] < three["median"]
    page = "\n".join(routing_section({"routing": found}))
    assert "| 3 |" in page


def test_each_benchmark_of_flows_and_streams_finds_its_rows(tmp_path: Path) -> None:
    found = operators.measure(400, rounds=1)
    assert len(found["cases"]) == 9
    page = "\n".join(operators_section({"operators": found}))
    assert all(f"| {name} |" in page for name in found["cases"])
    found = measure(1_000, inputs=(2, 3), rounds=1)
    for inputs in ("2", "3"):
        assert list(found[inputs])[1:] == ["live", "concat", "roundrobin", "seeded"]
    found = offsets.measure(tmp_path, 3, calls=2)
    assert found["epochs"] == 3
    assert found["warm_s"]["count"] == found["limited_s"]["count"] == 2


def test_peers_ended_with_the_same_rows(measured: dict[str, Any]) -> None:
    sections = measured["sections"]
    contests = [s for s in sections.values() if "same_table" in s]
    contests += [s for s in sections["variants"].values() if isinstance(s, dict)]
    assert len(contests) > 8
    for contest in contests:
        assert contest["same_table"] in (True, None)
        assert contest["same_changes"] in (True, None)


def test_reads_by_an_index_are_measured_and_told(tmp_path: Path) -> None:
    found = indexing.measure(tmp_path, 16_000, 160, rounds=1)
    assert found["found"]["by the beginning of the key"] == indexing.WANTED * indexing.PER_VALUE
    others = [found["found"][name] for name in ("by an index", "all rows read, and filtered")]
    assert others[0] == others[1] > 0
    page = "\n".join(indexing_section({"indexing": found}))
    assert "| by an index |" in page
    assert "one value has nine rows in ten" in page


def test_many_columns_are_measured_and_reported(tmp_path: Path) -> None:
    measured = wide.measure(tmp_path, (20, 40), rounds=1)
    page = "\n".join(wide_section({"wide": measured}))
    assert "| step | 20 columns | 40 columns |" in page
    assert page.count("\n| ") == 1 + len(measured["widths"]["20"])
    assert wide_row(measured)[2] != wide_row(None)[2] == "not measured"


def test_bare_calls_find_every_row_that_a_table_has(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), ROWS, keys=["k"])
    for first in (0, 20, 30):
        table.upsert(pa.table({"k": range(first, first + 20), "v": [first] * 20}, schema=ROWS))
    files = [tmp_path / "table" / part.file.path for part in table.log.head().slices]
    asked = pa.table({"k": [3, 25, 45, 99], "v": [1] * 4}, schema=ROWS)
    least = Bare(files, keys=["k"], seed=table.schema.hash_seed)
    _, hashes = least._sorted(asked)
    assert sum(map(len, least._found(hashes))) == 3, "each key once, and one is nowhere"
    found = bare(files, [asked] * 2, keys=["k"], seed=table.schema.hash_seed)
    assert set(found) == {"upsert", "changelog"}
    assert not list(tmp_path.rglob("bare.arrow"))


@pytest.mark.slow
def test_costs_in_a_bucket_are_counted(tmp_path: Path) -> None:
    with counted_s3(tmp_path / "s3") as gateway:
        bench = object_storage.Bench(gateway, tmp_path)
        measured = object_storage.operations(bench, 4_000)
        shared = object_storage.executors(bench, 4_000)
    fetched = [counts["bytes"] for counts in measured["operations"].values()]
    assert len(fetched) == 7
    assert min(fetched) > 1_000, "no process has copies of another one"
    assert shared["by hash"]["requests"] > 4 * 10
