"""The report in the repository: every promised figure is measured, and no miss goes unexplained."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from benchmarks import indexing, offsets, operators, routing, topics, wide
from benchmarks.bare import Bare, bare
from benchmarks.figures import STRETCHES, course, figures, written
from benchmarks.limits import limits
from benchmarks.limits.tables import wide_row
from benchmarks.measure import WAITED_MAX, quiet
from benchmarks.merging import measure
from benchmarks.report.page import about_machines, write_report
from benchmarks.report.plans import operators_section
from benchmarks.report.streams import discovery_section
from benchmarks.report.tables import (
    indexing_section,
    routing_section,
    topics_section,
    wide_section,
)
from benchmarks.words import count as told
from spark_upsert.table.table import Table

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"


ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "figures.json").read_text())
    return found


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
    assert len(text.splitlines()) < 2_100


def test_a_figure_and_its_spread_share_a_line() -> None:
    turns = [{"total_s": 0.123456789, "runs": 3.0}]
    found = {
        "b": {"turns": turns, "total_s": {"median": 0.123456789, "count": 1}},
        "a": [None, "x"],
    }
    kept = figures(found)
    assert kept == {"b": {"total_s": {"median": 0.12346, "count": 1}}, "a": [None, "x"]}
    assert json.loads(written(kept)) == kept
    assert written({"long": [kept] * 9}).splitlines()[:3] == [
        "{",
        ' "long": [',
        '  {"a": [null, "x"], "b": {"total_s": {"count": 1, "median": 0.12346}}},',
    ]


def test_a_course_has_every_turn_in_one_stretch() -> None:
    for count in (1, STRETCHES, 10 * STRETCHES + 3):
        found = course([{"total_s": float(turn), "runs": 1.0} for turn in range(count)])
        assert sum(part["total_s"]["count"] for part in found) == count
        assert [part["first"] for part in found[1:]] == [part["last"] + 1 for part in found[:-1]]
        assert (found[0]["first"], found[-1]["last"]) == (1, count)
        assert len(found) <= STRETCHES + 1


def test_a_figure_that_is_missing_is_not_passed_over(measured: dict[str, Any]) -> None:
    """Without any section each promise still has a row, and that says so."""
    rows = list(limits({}, "full"))
    assert len(rows) == 37
    assert {value for _, _, value, _, _ in rows} == {"not measured"}


def test_the_page_says_what_another_machine_or_a_busy_one_measured() -> None:
    ours = {"cores": 2, "cpu": "a", "memory_bytes": 1 << 34, "system": "Linux", "python": "3.11"}
    found = {
        "size": "full",
        "machines": {"idle": ours, "busy": ours, "apart": {**ours, "cpu": "b"}},
        "sections": {
            "idle": {"busy_before": 0.5},
            "busy": {"busy_before": 9.4},
            "apart": {"busy_before": 0.9},
        },
    }
    text = "\n".join(about_machines(found))
    assert text.startswith("Machine: 2 cores (a), 16 GiB, Linux, Python 3.11. Form: full.")
    assert "another machine: `apart` (2 cores (b)" in text
    assert (
        "Up to 9.4 processors were busy with other work when these sections began**: `busy`."
        in text
    )


def test_one_write_into_many_tables_makes_requests_for_each_of_them(tmp_path: Path) -> None:
    found = routing.measure(tmp_path, (1, 3), 60, rounds=1)
    one, three = (figures(found)["tables"][tables]["requests"] for tables in ("1", "3"))
    assert 0 < one["median"] < three["median"]
    page = "\n".join(routing_section({"routing": found}))
    assert "| 3 |" in page


def test_what_a_program_finds_is_what_it_prints_last(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint(*sys.argv[1:])\nprint('{\\n \"lost\": 0\\n}')\n")
    found = topics.measure(["--seed=7"], program)
    assert found == {"arguments": "--seed=7", "found": {"lost": 0}}
    assert "| lost | 0 |" in "\n".join(topics_section({"topics": found}))
    program.write_text("raise SystemExit('doubled')")
    with pytest.raises(subprocess.CalledProcessError):
        topics.measure([], program)


def test_joins_and_groups_of_a_task_give_as_many_rows_as_those_of_pyarrow() -> None:
    found = operators.measure(400, rounds=1)
    assert len(found["cases"]) == 9
    page = "\n".join(operators_section({"operators": found}))
    assert all(f"| {name} |" in page for name in found["cases"])


def test_each_order_of_the_bare_merge_hands_on_all_rows() -> None:
    found = measure(1_000, inputs=(2, 3), rounds=1)
    for inputs in ("2", "3"):
        assert list(found[inputs])[1:] == ["live", "concat", "roundrobin", "seeded"]


def test_peers_ended_with_the_same_rows(measured: dict[str, Any]) -> None:
    sections = measured["sections"]
    contests = [s for s in sections.values() if "same_table" in s]
    contests += [s for s in sections["variants"].values() if isinstance(s, dict)]
    assert len(contests) > 8
    for contest in contests:
        assert contest["same_table"] in (True, None)
        assert contest["same_changes"] in (True, None)


def test_how_soon_a_commit_is_planned_is_told_by_the_number_of_tables() -> None:
    spread = {"median": 0.0087, "min": 0.008, "max": 0.02, "mean": 0.009, "count": 3}
    each = {"latest_s": spread, "planned_s": {**spread, "max": 1.5}, "requests_per_look": 1.125}
    text = "\n".join(discovery_section({"discovery": {"10000": each, "1000": each, "took_s": 3.0}}))
    rows = [line for line in text.splitlines() if line.startswith("| 1")]
    assert [row.split("|")[1].strip() for row in rows] == [told(1_000), told(10_000)]
    assert rows[1].split("|")[3:6] == [" 9 ms ", " 1500 ms ", " 1.12 "]


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


def test_a_stream_that_is_behind_is_asked_as_spark_asks_it(tmp_path: Path) -> None:
    found = offsets.measure(tmp_path, 3, calls=2)
    assert found["epochs"] == 3
    assert found["warm_s"]["count"] == found["limited_s"]["count"] == 2


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


def test_a_section_waits_for_a_quiet_machine_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = iter([100.0, 60.0, 0.0, 100.0])
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: next(seen))
    assert quiet() == 0.0
    assert next(seen) == 100.0, "it went on at the first quiet look"
    looks = 0

    def busy(interval: float) -> float:
        nonlocal looks
        looks += 1
        return 100.0

    monkeypatch.setattr(psutil, "cpu_percent", busy)
    assert quiet() >= 1
    assert looks == WAITED_MAX
