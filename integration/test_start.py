"""The pages of the first minutes, followed word for word: what is saved, run and shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from integration.pages import ROOT, code_of
from tools.stopwatch import BEGIN, PAGES, RemovedRange, follow, steps_of, with_times

pytestmark = pytest.mark.slow

MINUTES = {"docs/start-polars.md": 2, "docs/start-spark.md": 5}


@pytest.mark.parametrize(
    "page", ["docs/start-polars.md", pytest.param("docs/start-spark.md", marks=pytest.mark.spark)]
)
def test_a_page_is_followed(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environ = dict(os.environ)
    if "spark" in page:
        # Its reader has not set up a Spark: all that is said is what stands on the page.
        environ = {**request.getfixturevalue("spark_environ")}
        del environ["SPARK_CONF_DIR"]
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    taken = list(follow(page, tmp_path, environ, installs=False))
    assert len(taken) == len(code_of(page, "sh", runner="integration/test_start.py"))


@pytest.mark.parametrize("page", PAGES)
def test_the_times_on_a_page_are_of_its_steps(page: str) -> None:
    table = (ROOT / page).read_text("utf-8").partition(BEGIN)[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    times = {name: float(seconds) for name, seconds in rows[1:]}
    commands = dict.fromkeys(step.section for step in steps_of(page) if step.block.language == "sh")
    assert list(times) == [*commands, "in all"], "make stopwatch"
    assert times["in all"] < 60 * MINUTES[page], "what the title of the page says"


def test_what_a_page_does_not_show_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.stopwatch.ROOT", tmp_path)
    monkeypatch.setattr("integration.pages.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("## 1. Begin\n\n```sh\necho 2\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:3: found\n2"):
        list(follow("page.md", tmp_path, os.environ, installs=False))


def test_the_seconds_of_a_section_are_added_up() -> None:
    taken = [RemovedRange("1. A", 1.0), RemovedRange("2. B", 2.0), RemovedRange("1. A", 0.5)]
    made = with_times("before\n<!-- times -->\nold\n<!-- end of times -->\n", taken)
    assert "| 1. A | 1.5 |\n| 2. B | 2.0 |\n| in all | 3.5 |" in made
    assert "old" not in made
