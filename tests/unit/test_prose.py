"""A sentence names its subject: "the planner", "a writer", hardly ever "who".

Well-loved projects have up to 0.7 such words in 1 000, and a page may have one. ADRs are
left out, as they tell what was decided then, and so is the house, which quotes docstrings. The
docstrings of the packages are counted all together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from integration.pages import ROOT

PER_THOUSAND = 1.0
CLAUSES_MAX = 24
"""Docstrings of the packages that begin with 'What'."""
WHO = re.compile(r"\b(?:who|whoever|whose|whom|nobody|somebody|everybody)\b", re.IGNORECASE)
WITHOUT = {"house.md"}

PACKAGES = ("spark_upsert", "datasource", "sink")


def prose_pages() -> list[Path]:
    """Return the pages that are written by hand, those about decisions left out."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    return sorted(path for path in found if path.name not in WITHOUT)


def prose_of(text: str) -> str:
    """Return a page without its code and without the targets of its links."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def who_words(text: str) -> list[str]:
    """Return the lines with such a word, once for each."""
    return [line for line in prose_of(text).splitlines() for _ in WHO.findall(line)]


def allowed(text: str) -> int:
    """Return how many such words a page may have."""
    return int(PER_THOUSAND * len(prose_of(text).split()) / 1_000)


@pytest.mark.parametrize("page", prose_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_sentences_of_a_page_have_a_subject(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = who_words(text)
    instead = "name the subject (the planner, a writer, this task)"
    assert len(found) <= allowed(text), f"{instead}: {found}"


def docstrings(source: str) -> list[str]:
    """Return the texts that stand alone in a module: of it, its classes, functions and names."""
    nodes = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, str)]


@cache
def docstrings_of_packages() -> Mapping[Path, list[str]]:
    """Return the docstrings of each module."""
    paths = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    return {path: docstrings(path.read_text(encoding="utf-8")) for path in paths}


def test_the_sentences_of_docstrings_have_a_subject() -> None:
    texts = {path: "\n".join(found) for path, found in docstrings_of_packages().items()}
    found = [(path, len(WHO.findall(text))) for path, text in texts.items()]
    rate = 1_000 * sum(count for _, count in found) / sum(len(t.split()) for t in texts.values())
    most = [f"{path.relative_to(ROOT)}: {n}" for path, n in sorted(found, key=lambda f: -f[1])[:5]]
    instead = "name the subject (the planner, a writer, this task), most of all in"
    assert rate <= PER_THOUSAND, f"{rate:.2f} in 1 000 words: {instead} {most}"


def test_a_docstring_begins_with_the_thing_itself() -> None:
    """'The cost of a plan', not 'What a plan costs': few are better left as a clause."""
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, all_of_it in docstrings_of_packages().items()
        for text in all_of_it
        if text.startswith("What ")
    ]
    assert len(found) <= CLAUSES_MAX, f"begin with the noun: {found}"


def test_docstrings_are_those_of_names_too_and_code_is_none() -> None:
    source = '"""Of whom."""\nwho = "nobody"\n"""Whose."""\ndef f():\n    """Who."""\n'
    assert sorted(docstrings(source)) == ["Of whom.", "Who.", "Whose."]


def test_code_is_not_prose() -> None:
    text = "Nobody asks.\n\n```python\nwho = 1\n```\n\nA writer, whose turn [it is](0029-who.md).\n"
    assert who_words(text) == ["Nobody asks.", "A writer, whose turn [it is]."]
