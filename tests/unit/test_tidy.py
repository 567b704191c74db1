"""Our own rules, read from the files. Each failure names the place and what to write instead."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.layers import tree_of

ROOT = Path(__file__).parents[2]
LIBRARY = ("spark_upsert", "datasource", "sink")
TESTS = ("tests", "integration")
CODE = (*LIBRARY, *TESTS, "tools")
THIS = Path(__file__).relative_to(ROOT)

BANNED = {
    r"\bTODO\b(?!\(#\d+\))": ((*CODE, "docs"), "write TODO(#12): with an issue"),
    r"\bFIXME\b|\bXXX\b|\bHACK\b": (CODE, "fix it, or write TODO(#12):"),
    r"^\s*print\(": (LIBRARY, "return text, or log it; only the command line prints"),
    r"\btime\.sleep\(": (("tests",), "a fake clock, or an event to wait for"),
    r"\bpytest\.skip\b|\bmark\.skip\b": (TESTS, "a marker, or a test that can run"),
    r"# type: ignore(?!\[)": (CODE, "type: ignore[code]"),
    r"# noqa(?!: [A-Z]+\d+)": (CODE, "noqa: CODE"),
    r"\bunittest\.mock import (?:.*\b)?(?:Mock|MagicMock)\b": (("tests",), "a small real one"),
    r"(?<![\w.])hash\(": (("spark_upsert",), "hash_keys: Python's differs between processes"),
}
"""Patterns, the folders that must not have them, and what to write instead."""

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}

IMPORTS_NEVER = {
    "spark_upsert": {"pyspark", "py4j", "spark_upsert_sink", "pyspark_upsertflow", "pandas"},
    "sink": {"pyspark_upsertflow"},
}


@cache
def files() -> tuple[Path, ...]:
    """Return the files that belong to the project, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines()
    if listed.returncode != 0:
        paths = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
        names = [str(path.relative_to(ROOT)) for path in paths]
    return tuple(sorted(Path(name) for name in names if (ROOT / name).is_file()))


def python_files(*folders: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in folders]


def lines_with(pattern: str, *folders: str) -> Iterator[tuple[Path, str]]:
    for path in files():
        if path.suffix in (".py", ".md", ".txt") and path.parts[0] in folders and path != THIS:
            text = (ROOT / path).read_text(encoding="utf-8")
            # Hardly any file has one, so that few are looked at line by line.
            lines = text.splitlines() if re.search(pattern, text, re.MULTILINE) else ()
            for number, line in enumerate(lines, start=1):
                if re.search(pattern, line):
                    yield path, f"{path}:{number}: {line.strip()}"


@pytest.mark.parametrize("pattern", BANNED)
def test_nothing_banned_is_written(pattern: str) -> None:
    folders, instead = BANNED[pattern]
    places = [
        place
        for path, place in lines_with(pattern, *folders)
        if not ("print" in pattern and "cli" in path.parts)
    ]
    assert not places, f"write instead: {instead}"


def test_the_engine_leaves_to_adapters_how_a_setting_is_given() -> None:
    lines = lines_with(r"\.option\(['\"]\w", "spark_upsert")
    places = [place for path, place in lines if "options" not in path.parts]
    assert not places, "write instead: {setting('lateRows', 'apply')}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path for path in python_files(*CODE) if path.stem in BANNED_NAMES] == []


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for path in python_files(*LIBRARY)} - {Path("datasource"), Path("sink")}
    assert [path for path in folders if not (ROOT / path / "__init__.py").is_file()] == []


def test_every_module_of_the_tests_says_what_it_is_about() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in python_files(*TESTS)}
    documented = re.compile(r'\s*(#.*\n)*(r?"""\S|$)')
    assert [path for path, text in texts.items() if documented.match(text) is None] == []


@pytest.mark.parametrize("folder", IMPORTS_NEVER)
def test_imports_point_one_way(folder: str) -> None:
    for path in python_files(folder):
        roots = {name.split(".")[0] for name in imported(tree_of(ROOT / path))}
        assert roots.isdisjoint(IMPORTS_NEVER[folder]), path


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def test_no_test_is_hidden_by_another_of_its_name() -> None:
    for path in python_files(*TESTS):
        names = re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, path
