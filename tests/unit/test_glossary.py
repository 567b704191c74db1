"""The glossary is sorted, says each word once, and names what the code has."""

from __future__ import annotations

import re
from functools import cache

import pytest

from integration.pages import ROOT

PACKAGES = ("spark_upsert", "datasource", "sink")
WORDS_MIN, WORDS_MAX = 40, 60


def entries() -> list[tuple[str, str, list[str]]]:
    """Return the words, their meanings, and the names that the code is said to have."""
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| ?(.*?) ?\|$", text, re.MULTILINE)
    return [(word, meaning, re.findall(r"`([^`]+)`", names)) for word, meaning, names in rows]


@cache
def defined() -> frozenset[str]:
    """Return what the packages define: classes, functions, fields, aliases; and all options."""
    found: set[str] = set()
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r"^ *(?:class|def) (\w+)\b", text, re.MULTILINE))
        found.update(re.findall(r"^    (\w+): ", text, re.MULTILINE))
        found.update(re.findall(r"^(\w+)(?:: TypeAlias)? = ", text, re.MULTILINE))
        if path.parent.name in ("options", "model"):
            found.update(re.findall(r'"(\w+)"', text))
    return frozenset(found)


NAMED = [(word, name) for word, _, names in entries() for name in names]


def test_the_words_are_sorted_and_each_stands_once() -> None:
    words = [word.lower() for word, _, _ in entries()]
    assert words == sorted(set(words))
    assert WORDS_MIN <= len(words) <= WORDS_MAX, "a glossary is read, not searched"


def test_every_line_of_the_table_is_a_word_with_a_meaning() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(lines) == len(entries())
    assert not [word for word, meaning, _ in entries() if not meaning.endswith((".", ")."))]


@pytest.mark.parametrize(("word", "name"), NAMED, ids=[f"{w}: {n}" for w, n in NAMED])
def test_what_a_word_is_called_in_the_code_is_there(word: str, name: str) -> None:
    assert name in defined(), f"{word}: write the name that the code has"
