"""Examples in docstrings give the results that they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_SPARK = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "spark_upsert").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", WITHOUT_SPARK, ids=str)
def test_examples_in_docstrings_run(path: Path) -> None:
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed
