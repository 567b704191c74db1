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
THIS = Path(__file__).relative_to(ROOT)
LINE_LENGTH_MAX = 100

BANNED: list[tuple[str, tuple[str, ...], str]] = [
    (
        r"\bTODO\b(?!\(#\d+\))",
        (*LIBRARY, *TESTS, "tools", "docs"),
        "write TODO(#12): with an issue",
    ),
    (r"\bFIXME\b|\bXXX\b|\bHACK\b", (*LIBRARY, *TESTS, "tools"), "fix it, or write TODO(#12):"),
    (r"^\s*print\(", LIBRARY, "return text, or log it; only the command line prints"),
    (r"\btime\.sleep\(", ("tests",), "a fake clock, or an event to wait for"),
    (r"\bpytest\.skip\b|\bmark\.skip\b", TESTS, "a marker, or a test that can run"),
    (r"\bimport \*", (*LIBRARY, *TESTS, "tools"), "the names"),
    (r"# type: ignore(?!\[)", (*LIBRARY, *TESTS, "tools"), "type: ignore[code]"),
    (r"# noqa(?!: [A-Z]+\d+)", (*LIBRARY, *TESTS, "tools"), "noqa: CODE"),
    (
        r"\bunittest\.mock import (?:.*\b)?(?:Mock|MagicMock)\b",
        ("tests",),
        "a small real implementation",
    ),
    (r"(?<![\w.])hash\(", ("spark_upsert",), "hash_keys: Python's hash differs between processes"),
    (r"^\s*except\s*:", (*LIBRARY, *TESTS, "tools"), "the exception that is meant"),
]

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}

IMPORTS_NEVER = {
    "spark_upsert": {"pyspark", "py4j", "spark_upsert_sink", "pyspark_upsertflow", "pandas"},
    "sink": {"pyspark_upsertflow"},
}


@cache
def files() -> tuple[Path, ...]:
    """Return the files that belong to the project, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [Path(line) for line in listed.stdout.splitlines()]
        return tuple(sorted(name for name in names if (ROOT / name).is_file()))
    folders = [ROOT / folder for folder in (*LIBRARY, *TESTS, "tools")]
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return tuple(sorted(path.relative_to(ROOT) for path in found))


def python_files(*folders: str) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in folders]


@cache
def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def lines_with(pattern: str, *folders: str) -> Iterator[tuple[Path, int, str]]:
    for path in files():
        if path.suffix in (".py", ".md", ".txt") and path.parts[0] in folders and path != THIS:
            text = text_of(path)
            # Hardly any file has one, so that few are looked at line by line.
            for number, line in enumerate(
                text.splitlines() if re.search(pattern, text, re.MULTILINE) else (), start=1
            ):
                if re.search(pattern, line):
                    yield path, number, line


@pytest.mark.parametrize(("pattern", "folders", "instead"), BANNED, ids=[b[0] for b in BANNED])
def test_nothing_banned_is_written(pattern: str, folders: tuple[str, ...], instead: str) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, number, line in lines_with(pattern, *folders)
        if not ("print" in pattern and "cli" in path.parts)
    ]
    assert not found, f"write instead: {instead}"


def test_the_engine_leaves_to_adapters_how_a_setting_is_given() -> None:
    found = [
        f"{path}:{number}"
        for path, number, line in lines_with(r"\.option\(['\"]\w", "spark_upsert")
        if "options" not in path.parts
    ]
    assert not found, "write instead: {setting('lateRows', 'apply')}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = [
        str(path) for path in python_files(*LIBRARY, *TESTS, "tools") if path.stem in BANNED_NAMES
    ]
    assert not found, "name the idea"


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for path in python_files("spark_upsert")}
    folders |= {path.parent for path in python_files("datasource", "sink") if len(path.parts) > 2}
    missing = [str(f) for f in sorted(folders) if not (ROOT / f / "__init__.py").is_file()]
    assert not missing


def test_every_module_says_what_it_is_about() -> None:
    # By its beginning: to parse a thousand files takes as long as a hundred tests.
    texts = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in python_files(*LIBRARY, *TESTS, "tools")
    }
    found = [
        str(path)
        for path, text in texts.items()
        if text.strip() and re.match(r'(#.*\n)*r?"""\S', text) is None
    ]
    assert not found, "add a module docstring"


def test_every_public_function_and_class_of_the_engine_is_documented() -> None:
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path in python_files("spark_upsert")
        for node in tree_of(ROOT / path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not found, "add a docstring"


def test_lines_are_not_too_long() -> None:
    found = [
        f"{path}:{number}: {len(line)}"
        for path, number, line in lines_with(f".{{{LINE_LENGTH_MAX + 1}}}", "spark_upsert", "tests")
        if path.suffix == ".py"
    ]
    assert not found, f"at most {LINE_LENGTH_MAX} characters"


@pytest.mark.parametrize("folder", IMPORTS_NEVER)
def test_imports_point_one_way(folder: str) -> None:
    found = [
        f"{path}: {name}"
        for path in python_files(folder)
        for name in imported(tree_of(ROOT / path))
        if name.split(".")[0] in IMPORTS_NEVER[folder]
    ]
    assert not found


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
