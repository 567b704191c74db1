"""Each promise of the README names the tests that hold it, in docs/reliability.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests.planted import BUGS

ROOT = Path(__file__).parents[2]

_PROMISE = re.compile(r"^\| (P\d) \| .* \|$", re.MULTILINE)
_CLAUSE = re.compile(r"^\| (P\d) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

PROMISES = _PROMISE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
CLAUSES = _CLAUSE.findall((ROOT / "docs/reliability.md").read_text(encoding="utf-8"))
NAMED = sorted({named for _, _, tests in CLAUSES for named in _TEST.findall(tests)})


def test_every_promise_names_its_tests() -> None:
    assert [f"P{n}" for n in range(1, 8)] == PROMISES
    assert list(dict.fromkeys(promise for promise, _, _ in CLAUSES)) == PROMISES
    assert [clause for _, clause, tests in CLAUSES if not _TEST.findall(tests)] == []


def test_the_tests_of_a_promise_exist_and_a_planted_bug_breaks_it() -> None:
    for file, test in NAMED:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {test}\(", text, re.MULTILINE), f"{file}: {test}"
    caught = [bug.caught_by.__name__ for bug in BUGS]
    for promise in PROMISES:
        assert any(name.startswith(f"test_{promise.lower()}_") for name in caught), promise
