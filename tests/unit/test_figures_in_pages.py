"""Figures in the pages that count something in the repository agree with the repository."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_upsert.options.read import DELAY_MS
from spark_upsert.payloads.decoder import PARTS_MAX
from spark_upsert.payloads.schema_registry import ANSWER_BYTES_MAX
from spark_upsert.plan.nodes import JoinType
from spark_upsert.routed.fence import ASK_EVERY
from spark_upsert.store.object_store import RANGE_BYTES, RANGES_AT_ONCE
from spark_upsert.streams.planner.heads import LOOKED_AT_MAX
from tests.planted import BUGS
from tests.support.mirrored import KINDS
from tools.decision_index import TARGET, decisions, index

ROOT = Path(__file__).parents[2]
RELIABILITY = "docs/reliability.md"
CONFORMANCE = "changelog-conformance/changelog_conformance"

_FIRST = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = {word: number for number, word in enumerate(_FIRST, start=2)} | {"twenty": 20}


def read(path: str) -> str:
    """Return a file with one blank for each run of white space but line ends."""
    return re.sub(r"[ \t]+", " ", (ROOT / path).read_text(encoding="utf-8"))


def default(path: str, variable: str, times: int = 1) -> int:
    """Return a multiple of the default of a variable of the environment."""
    [number] = re.findall(rf'environ\.get\("{variable}", "(\d+)"\)', read(path))
    return times * int(number)


def number(path: str, pattern: str) -> int:
    """Return the number that a pattern finds in a file."""
    [found] = re.findall(pattern, read(path), re.MULTILINE)
    return int(found.replace("_", ""))


def lines(path: str) -> int:
    return (ROOT / path).read_text(encoding="utf-8").count("\n")


Figure = tuple[str, str, Callable[[], int]]
"""A page, a sentence in which ``{}`` is the figure, and what counts in the repository."""

EXACT: tuple[Figure, ...] = (
    ("README.md", "{} nouns, and one order", lambda: len(nouns())),
    ("docs/concepts.md", "{} nouns carry", lambda: len(nouns())),
    ("docs/concepts.md", "one use of {} systems", lambda: len(systems())),
    ("docs/compatibility.md", "## {} promises", lambda: len(promises())),
    (
        "docs/tutorial.md",
        "tutorial: {} tables of",
        lambda: 2 + number("docs/tutorial.md", r"IN 1\.\.(\d+)"),
    ),
    ("docs/delta.md", "lives of {} kinds of tables", lambda: len(KINDS)),
    ("docs/tasks.md", "{} kinds of joins", lambda: len(JoinType)),
    ("docs/envelopes.md", "{} types in it", lambda: PARTS_MAX),
    ("docs/envelopes.md", "a registry has {} MiB", lambda: ANSWER_BYTES_MAX >> 20),
    ("docs/many-tables.md", "Up to {} inputs a query", lambda: LOOKED_AT_MAX),
    ("docs/many-tables.md", "`maxTriggerDelay` ({} minutes)", lambda: DELAY_MS // 60_000),
    ("docs/object-stores.md", "in pieces of {} MiB", lambda: RANGE_BYTES >> 20),
    ("docs/object-stores.md", "MiB, {} at a time", lambda: RANGES_AT_ONCE),
    ("docs/routed.md", "checks every {} tables", lambda: ASK_EVERY),
    (
        RELIABILITY,
        "| {} seeded worlds",
        partial(default, "tests/simulation/test_simulation.py", "SIMULATION_SEEDS"),
    ),
    (
        RELIABILITY,
        "; {} in the long form",
        partial(number, "Makefile", r"tests.simulation --seeds (\d+)"),
    ),
    (
        RELIABILITY,
        "in the middle of a file one of {}",
        partial(default, "tests/crash/test_every_step.py", "CRASH_PAIRS_EVERY"),
    ),
    (
        RELIABILITY,
        "every kind, one step of {}",
        partial(default, "tests/crash/test_every_method.py", "CRASH_STRIDE"),
    ),
    (
        RELIABILITY,
        "| one step of {}",
        partial(default, "tests/crash/test_views.py", "CRASH_STRIDE"),
    ),
    (
        RELIABILITY,
        "| {} drawn tables",
        partial(number, "tests/laws/test_group_commit.py", r"range\(0, (\d+), STRETCH\)"),
    ),
    (
        RELIABILITY,
        "random plans, {} lives of streams",
        partial(default, "tests/laws/test_views.py", "VIEW_LIVES", 2),
    ),
    (
        RELIABILITY,
        "random plans, {} lives, thousands",
        partial(default, "tests/laws/test_view_tables.py", "VIEW_TABLE_LIVES", 2),
    ),
    (
        RELIABILITY,
        "| {} seeded lakes",
        partial(default, "tests/simulation/test_lakes.py", "SIMULATION_LAKES"),
    ),
    (
        RELIABILITY,
        "| {} seeded mills",
        partial(default, "tests/simulation/test_mills.py", "SIMULATION_MILLS"),
    ),
    (
        RELIABILITY,
        "| {} random graphs in batch",
        partial(default, "integration/test_random_flows.py", "FLOW_GRAPHS"),
    ),
    (
        RELIABILITY,
        "| {} tables of a database",
        partial(number, "integration/debezium_flow.py", r"^TABLES = (\d+)"),
    ),
    (
        RELIABILITY,
        "alone kills {} times",
        partial(number, "integration/chaos.py", r'"--kills", type=int, default=(\d+)'),
    ),
)

BOUNDS: tuple[Figure, ...] = (
    (RELIABILITY, "plants more than {} bugs", lambda: len(BUGS)),
    (
        "docs/conformance.md",
        "an oracle of more than {} lines",
        lambda: lines(f"{CONFORMANCE}/oracle.py"),
    ),
)
"""Figures that may grow: the repository has more, and less than half more."""


def nouns() -> list[str]:
    """Return the nouns in bold print that the page of concepts begins with."""
    return re.findall(r"\*\*(\w+)\*\*", read("docs/concepts.md").partition("```")[0])


def systems() -> list[str]:
    """Return the paragraphs of the systems, which begin in bold print."""
    section = read("docs/concepts.md").partition("## Five systems")[2].partition("\n## ")[0]
    return re.findall(r"^\*\*", section, re.MULTILINE)


def promises() -> list[str]:
    section = read("docs/compatibility.md").partition("promises\n")[2].partition("\n## ")[0]
    return re.findall(r"^\*\*", section, re.MULTILINE)


def as_id(value: object) -> str | None:
    return value if isinstance(value, str) else ""


def figure(page: str, sentence: str) -> int:
    """Return the figure in the sentence of a page."""
    before, _, after = re.escape(sentence).replace(r"\ ", r"\s+").partition(r"\{\}")
    [text] = re.findall(rf"{before}(\d[\d ]*\d|\d|[A-Za-z]+){after}", read(page))
    text = text.strip().lower().replace(" ", "")
    return WORDS[text] if text in WORDS else int(text)


@pytest.mark.parametrize(("page", "sentence", "counted"), EXACT, ids=as_id)
def test_a_figure_is_what_the_repository_has(
    page: str, sentence: str, counted: Callable[[], int]
) -> None:
    assert figure(page, sentence) == counted()


@pytest.mark.parametrize(("page", "sentence", "counted"), BOUNDS, ids=as_id)
def test_a_figure_that_grows_is_a_near_bound(
    page: str, sentence: str, counted: Callable[[], int]
) -> None:
    least = figure(page, sentence)
    assert least < counted() < 1.5 * least


PAGES_MAX, DECISIONS_MAX = 30, 40


def test_pages_and_decisions_stay_few() -> None:
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert len(pages) <= PAGES_MAX, f"add a section to one of {pages}"
    assert len(decisions()) <= DECISIONS_MAX, "edit the decision of the topic, or merge two"


def test_the_index_of_decisions_is_made_from_their_titles() -> None:
    assert TARGET.read_text("utf-8") == index(), "run make pages"


def test_a_decision_is_linked_from_a_page_or_from_code() -> None:
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("spark_upsert/**/*.py")]
    texts = "\n".join(path.read_text("utf-8") for path in paths if path.name != "CHANGELOG.md")
    lost = [path.name for path in decisions() if f"adr/{path.name}" not in texts]
    assert not lost, "link the decision from the page where it matters"
