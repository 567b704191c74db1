"""The hooks before a commit run what `make lint` runs, from this environment."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
HOOKS: list[dict[str, Any]] = [hook for repo in CONFIG["repos"] for hook in repo["hooks"]]


def test_nothing_is_fetched() -> None:
    assert {repo["repo"] for repo in CONFIG["repos"]} == {"local"}
    assert {hook["language"] for hook in HOOKS} == {"system"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: str(hook["id"]))
def test_a_hook_runs_a_program_of_the_environment_that_make_lint_runs(hook: dict[str, Any]) -> None:
    program, *words = shlex.split(hook["entry"])
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^lint: style types\b", makefile, re.MULTILINE)
    made = "".join(re.findall(r"^(?:style|types):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    assert " ".join([program.replace(".venv/bin", "$(BIN)"), *words[:1]]) in made
    assert os.access(Path(sys.executable).with_name(Path(program).name), os.X_OK)
