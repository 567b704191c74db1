"""A sentence of a docstring names its subject: "the planner", "a writer", hardly ever "who"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from integration.pages import ROOT

PER_THOUSAND = 1.0
WHO = re.compile(r"\b(?:who|whoever|whose|whom|nobody|somebody|everybody)\b", re.IGNORECASE)
PACKAGES = ("spark_upsert", "datasource", "sink")


def docstrings(path: Path) -> str:
    """Return the texts that stand alone in a module: of it, its classes, functions and names."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    values = (node.value for node in nodes if isinstance(node, ast.Expr))
    return "\n".join(str(each.value) for each in values if isinstance(each, ast.Constant))


def test_the_sentences_of_docstrings_have_a_subject() -> None:
    texts = {path: docstrings(path) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    counts = {path: len(WHO.findall(text)) for path, text in texts.items()}
    rate = 1_000 * sum(counts.values()) / sum(len(text.split()) for text in texts.values())
    most = sorted(counts, key=counts.__getitem__)[-5:]
    assert rate <= PER_THOUSAND, (
        f"{rate:.2f} in 1 000 words: name the subject, most of all in {most}"
    )
