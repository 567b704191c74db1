"""Figures in the pages that count something in the repository agree with the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_upsert.options.read import DELAY_MS
from spark_upsert.payloads.decoder import PARTS_MAX
from spark_upsert.payloads.schema_registry import ANSWER_BYTES_MAX
from spark_upsert.plan.nodes import JoinType
from spark_upsert.routed.fence import ASK_EVERY
from spark_upsert.store.object_store import RANGE_BYTES, RANGES_AT_ONCE
from spark_upsert.streams.planner.poller import LOOKED_AT_MAX
from tests.planted import BUGS
from tests.simulation.schema_changes import SHAPES
from tests.support.column_types import NESTINGS
from tests.support.mirrored import KINDS
from tools.decision_index import TARGET, decisions, index

ROOT = Path(__file__).parents[2]
RELIABILITY, CONCEPTS = "docs/reliability.md", "docs/concepts.md"
UP_TO_TEN = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = {word: number for number, word in enumerate(UP_TO_TEN, start=2)} | {"twenty": 20}


def read(path: str) -> str:
    """Return a file with one blank for each run of white space but line ends."""
    return re.sub(r"[ \t]+", " ", (ROOT / path).read_text(encoding="utf-8"))


def bold(page: str, words: str) -> int:
    """Return how much is in bold print after some words of a page, and before the next section."""
    return len(re.findall(r"\*\*.+?\*\*", read(page).partition(words)[2].partition("\n## ")[0]))


[STOCKS] = re.findall(r"IN 1\.\.(\d+)", read("docs/tutorial.md"))
OF_PRODUCT = (
    ("docs/delta.md", "histories of {} kinds of tables", len(KINDS)),
    ("docs/tasks.md", "{} kinds of joins", len(JoinType)),
    ("docs/envelopes.md", "{} types in it", PARTS_MAX),
    ("docs/envelopes.md", "a registry has {} MiB", ANSWER_BYTES_MAX >> 20),
    ("docs/many-tables.md", "Up to {} inputs a query", LOOKED_AT_MAX),
    ("docs/many-tables.md", "`maxTriggerDelay` ({} minutes)", DELAY_MS // 60_000),
    ("docs/object-stores.md", "in pieces of {} MiB", RANGE_BYTES >> 20),
    ("docs/object-stores.md", "MiB, {} at a time", RANGES_AT_ONCE),
    ("docs/routed.md", "checks every {} tables", ASK_EVERY),
    (RELIABILITY, "histories for {} kinds of tables", len(SHAPES)),
    (RELIABILITY, "with `TYPE_NESTINGS={}`", len(NESTINGS)),
    ("README.md", "{} nouns, and one order", bold(CONCEPTS, "terms")),
    (CONCEPTS, "builds on {} terms", bold(CONCEPTS, "terms")),
    (CONCEPTS, "one use of {} systems", bold(CONCEPTS, "## Five systems")),
    ("docs/compatibility.md", "## {} promises", bold("docs/compatibility.md", "promises\n")),
    ("docs/tutorial.md", "tutorial: {} tables of", 2 + int(STOCKS)),
)
"""A page, a sentence in which ``{}`` is the figure, and the figure."""

HISTORIES = r"^@seeds\((\d+), quick=\d+\)\ndef test_p6_every_path"
VARIABLE = r'environ\.get\("{}", "(\d+)"\)'
OF_TESTS = (
    ("| {} random histories", "tests/promises/test_schema_promises.py", HISTORIES),
    ("versions, {} in the long form", "Makefile", r"--schema-changes --seeds (\d+)"),
    ("| {} random numbers", "tests/laws/test_python_values.py", "PYTHON_VALUES"),
    ("| {} seeded worlds", "tests/simulation/test_simulation.py", "SIMULATION_SEEDS"),
    ("; {} in the long form", "Makefile", r"tests.simulation --seeds (\d+)"),
    ("middle of a file one of {}", "tests/crash/test_every_step.py", "CRASH_PAIRS_EVERY"),
    ("every kind, one step of {}", "tests/crash/test_every_method.py", "CRASH_STRIDE"),
    ("| one step of {}", "tests/crash/test_views.py", "CRASH_STRIDE"),
    ("| {} drawn tables", "tests/laws/test_group_commit.py", r"range\(0, (\d+), STRETCH\)"),
    ("| {} seeded lakes", "tests/simulation/test_lakes.py", "SIMULATION_LAKES"),
    ("| {} seeded mills", "tests/simulation/test_mills.py", "SIMULATION_MILLS"),
    ("| {} random graphs in batch", "integration/test_random_flows.py", "FLOW_GRAPHS"),
    ("| {} tables of a database", "integration/debezium_flow.py", r"^TABLES = (\d+)"),
    ("alone kills {} times", "integration/chaos.py", r'"--kills", type=int, default=(\d+)'),
)
"""A sentence about the tests, a file, and the variable or the pattern that has the figure."""

OF_TWO_KINDS = (
    ("random plans, {} histories of", "tests/laws/test_views.py", "VIEW_LIVES"),
    ("random plans, {} histories, thousands", "tests/laws/test_view_tables.py", "VIEW_TABLE_LIVES"),
)
"""Sentences that count the lives of two kinds; the variable has those of one."""

ORACLE = "changelog-conformance/changelog_conformance/oracle.py"
AT_LEAST = (
    (RELIABILITY, "plants more than {} bugs", len(BUGS)),
    ("docs/conformance.md", "an oracle of more than {} lines", read(ORACLE).count("\n")),
)
"""Figures that may grow: the repository has more, and less than half more."""


def figure(page: str, sentence: str) -> int:
    """Return the figure in the sentence of a page."""
    before, _, after = re.escape(sentence).replace(r"\ ", r"\s+").partition(r"\{\}")
    [text] = re.findall(rf"{before}(\d[\d ]*\d|\d|[A-Za-z]+){after}", read(page))
    text = text.strip().lower().replace(" ", "")
    return WORDS[text] if text in WORDS else int(text)


@pytest.mark.parametrize(("page", "sentence", "expected"), OF_PRODUCT)
def test_a_figure_of_the_product_is_that_of_the_code(
    page: str, sentence: str, expected: int
) -> None:
    assert figure(page, sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "path", "place", "kinds"),
    [*((*row, 1) for row in OF_TESTS), *((*row, 2) for row in OF_TWO_KINDS)],
)
def test_a_figure_of_the_tests_is_that_of_their_file(
    sentence: str, path: str, place: str, kinds: int
) -> None:
    pattern = VARIABLE.format(place) if place.isupper() else place
    [number] = re.findall(pattern, read(path), re.MULTILINE)
    assert figure(RELIABILITY, sentence) == kinds * int(number.replace("_", ""))


@pytest.mark.parametrize(("page", "sentence", "number"), AT_LEAST)
def test_a_figure_that_grows_is_a_near_bound(page: str, sentence: str, number: int) -> None:
    least = figure(page, sentence)
    assert least < number < 1.5 * least


def test_pages_and_decisions_stay_few_and_are_linked() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 32, "add a section to a page"
    assert len(decisions()) <= 40, "edit the decision of the topic, or merge two"
    assert TARGET.read_text("utf-8") == index(), "run make pages"
    paths = [*ROOT.glob("*.md"), *pages, *ROOT.glob("spark_upsert/**/*.py")]
    texts = "\n".join(path.read_text("utf-8") for path in paths if path.name != "CHANGELOG.md")
    assert [path.name for path in decisions() if f"adr/{path.name}" not in texts] == []
