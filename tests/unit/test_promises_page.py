"""Each promise of the README names the tests that hold it, in docs/reliability.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.planted import BUGS

ROOT = Path(__file__).parents[2]

_PROMISE = re.compile(r"^\| (P\d) \| .* \|$", re.MULTILINE)
_CLAUSE = re.compile(r"^\| (P\d) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

PROMISES = _PROMISE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
CLAUSES = _CLAUSE.findall((ROOT / "docs/reliability.md").read_text(encoding="utf-8"))
NAMED = sorted({named for _, _, tests in CLAUSES for named in _TEST.findall(tests)})


def test_every_promise_names_its_tests() -> None:
    names = [f"P{n}" for n in range(1, 8)]
    assert names == PROMISES
    assert list(dict.fromkeys(promise for promise, _, _ in CLAUSES)) == PROMISES
    assert [clause for _, clause, tests in CLAUSES if not _TEST.findall(tests)] == []


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_holds_a_promise_is_there(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_is_broken_on_purpose(promise: str) -> None:
    caught = [bug.caught_by.__name__ for bug in BUGS]
    assert any(name.startswith(f"test_{promise.lower()}_") for name in caught)
