"""Write `docs/adr/README.md`, the index of the decisions, from their titles.

Run ``make pages`` after adding or renaming a decision; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "adr"
TARGET = FOLDER / "README.md"

_HEAD = """# Decisions

One page for each decision that would cost more than a day to reverse: the decision, its reason, the
measured figures and the rejected alternatives. A page describes the current state. When a decision
changes, edit its page. This index is made from the titles by `tools/decision_index.py`.

| # | topic |
|---|---|
"""
_TITLE = re.compile(r"# (\d+)\. (.+)\n")


def decisions() -> list[Path]:
    """Return the pages of the decisions, by number."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def index() -> str:
    """Return the complete index."""
    return _HEAD + "".join(map(_row, decisions()))


def _row(page: Path) -> str:
    title = _TITLE.match(page.read_text("utf-8"))
    if title is None or int(title[1]) != int(page.name[:4]):
        raise ValueError(f"{page.name}: begin the page with '# <its number>. <a noun title>'")
    return f"| [{title[1]}]({page.name}) | {title[2]} |\n"


if __name__ == "__main__":
    TARGET.write_text(index(), encoding="utf-8")
