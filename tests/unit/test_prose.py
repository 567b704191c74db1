"""A sentence of a page names its subject: "the planner", "a writer", hardly ever "who".

Well-loved projects have up to 0.7 such words in 1 000. A page that has more stands in `CEILINGS`
with its count, which may only fall. ADRs are left out, as they tell what was decided then, and so
is the house, which quotes docstrings.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.pages import ROOT

PER_THOUSAND = 1.0
WHO = re.compile(r"\b(?:who|whoever|whose|whom|nobody|somebody)\b", re.IGNORECASE)
WITHOUT = {"house.md"}

CEILINGS = {
    "docs/options.md": 13,
}
"""Pages that have more, and how many words they have: say instead what acts."""


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
    ceiling = CEILINGS.get(page.relative_to(ROOT).as_posix(), allowed(text))
    instead = "name the subject (the planner, a writer, this task)"
    assert len(found) <= ceiling, f"{instead}: {found}"


def test_what_has_become_better_stays_so() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in CEILINGS}
    counts = {name: len(who_words(text)) for name, text in texts.items()}
    assert counts == CEILINGS, "lower the ceiling to what the page has"
    within = [name for name, text in texts.items() if counts[name] <= allowed(text)]
    assert not within, "take it out of the list: it has few enough"


def test_code_is_not_prose() -> None:
    text = "Nobody asks.\n\n```python\nwho = 1\n```\n\nA writer, whose turn [it is](0029-who.md).\n"
    assert who_words(text) == ["Nobody asks.", "A writer, whose turn [it is]."]
