"""The glossary names what the code has."""

from __future__ import annotations

import re

from integration.pages import ROOT

PACKAGES = ("spark_upsert", "datasource", "sink")
DEFINED = re.compile(
    r"^ *(?:class|def) (\w+)\b|^    (\w+): |^(\w+)(?:: TypeAlias)? = ", re.MULTILINE
)


def defined() -> set[str]:
    """Return what the packages define: classes, functions, fields, aliases; and all options."""
    names: set[str] = set()
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        names.update(*DEFINED.findall(text))
        if path.parent.name in ("options", "model"):
            names.update(re.findall(r'"(\w+)"', text))
    return names


def test_each_word_stands_once_and_its_names_in_the_code_exist() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| ?(.*?) ?\|$", text, re.MULTILINE)
    words = [word.lower() for word, _, _ in rows]
    assert len(words) == text.count("\n| **")
    assert words == sorted(set(words))
    known = defined()
    names = {word: re.findall(r"`([^`]+)`", cell) for word, _, cell in rows}
    assert [(word, name) for word in names for name in names[word] if name not in known] == []
