"""The code of the documentation: what a reader copies runs in a test, as it stands there.

Every fenced block of a page says its language, and may have a title, the name of a file. Those of `LANGUAGES` are code, and each is run once:
by `integration/test_pages.py`, unless an HTML comment on the line above it names another test or
says why no test can::

    <!-- run by integration/test_kafka.py -->
    <!-- not run: installs from the network -->

`text` and `mermaid` are no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LANGUAGES = frozenset({"python", "sh", "sql", "json"})
NO_CODE = frozenset({"text", "mermaid"})

HERE = "integration/test_pages.py"
"""Runs what no comment gives to another test."""

_MARK = re.compile(r"<!-- (?:run by (?P<runner>\S+)|not run: (?P<reason>.+)) -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: str
    """Relative to the root."""
    line: int
    """Where its fence stands, from 1."""
    language: str
    title: str
    """The name of the file that the page says to save it as; empty for what is no file."""
    code: str
    runner: str | None
    """The test that runs it; None if no test can."""
    reason: str
    """Why no test can."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that people read, in order."""
    found = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    return sorted([*found, ROOT / "changes" / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks() -> list[Block]:
    """Return all fenced blocks, those that are no code included."""
    return [block for page in pages() for block in blocks_of(page)]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    name = page.relative_to(ROOT).as_posix()
    return parse(name, page.read_text(encoding="utf-8"))


def parse(page: str, text: str) -> list[Block]:
    """Return the fenced blocks of a text, for a page of a name."""
    found: list[Block] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"( *)(`{3,}|~{3,})(.*)", lines[number])
        if fence is None:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != fence[2]:
            end += 1
        mark = _MARK.fullmatch(lines[number - 1].strip()) if number else None
        language, _, title = fence[3].strip().partition(" title=")
        own = HERE if language in LANGUAGES else None
        found.append(
            Block(
                page=page,
                line=number + 1,
                language=language,
                title=title.strip('"'),
                code="\n".join(line.removeprefix(fence[1]) for line in lines[number + 1 : end])
                + "\n",
                runner=mark["runner"] if mark else own,
                reason=(mark["reason"] or "") if mark else "",
            )
        )
        number = end + 1
    return found


def code_of(page: str, language: str, *, runner: str) -> list[str]:
    """Return what a page gives a test to run in one language, in its order."""
    found = [
        block.code
        for block in blocks_of(ROOT / page)
        if block.language == language and block.runner == runner
    ]
    assert found, f"{page} has no {language} for {runner}"
    return found
