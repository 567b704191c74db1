"""The page of concepts tells one story, and each of its sentences about a number is checked."""

from __future__ import annotations

import re
from pathlib import Path

from integration.pages import ROOT, code_of

PAGE = "docs/concepts.md"
NOUNS_MAX = 8


def test_the_story_of_the_page_runs_from_row_to_view(tmp_path: Path) -> None:
    blocks = code_of("docs/concepts.md", "python", runner="tests/unit/test_concepts.py")
    assert len(blocks) >= 6
    exec("".join(blocks).replace('"/lake/', f'"{tmp_path}/'), {})


def test_the_page_has_few_nouns_and_explains_each() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    beginning, *_ = text.split("\n## ")
    nouns = re.findall(r"\*\*(\w+)\*\*", beginning)
    assert 5 <= len(nouns) <= NOUNS_MAX
    headings = " ".join(re.findall(r"^## (.*?):", text, re.MULTILINE)).lower()
    assert not [noun for noun in nouns if noun not in headings.split()]
