"""No code block of the documentation escapes: it runs somewhere, or says why it cannot."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from integration.pages import HERE, LANGUAGES, NO_CODE, ROOT, blocks, pages

BLOCKS = blocks()
CODE = [block for block in BLOCKS if block.language not in NO_CODE]

NOT_RUN = [
    "README.md: make demo",
    "README.md: pip install",
    "docs/compatibility.md: # pip install upsertflow pysail",
    "docs/compatibility.md: make changelog",
    "docs/conformance.md: make conformance",
    "docs/kafka.md: spark-submit --packages",
    "docs/many-tables.md: mixed = (",
    "docs/object-stores.md: UPSERTFLOW_TEST_S3_ENDPOINT=http://localhost:9000",
    "docs/object-stores.md: pip install",
    "docs/operations.md: upsertflow serve",
    "docs/start-polars.md: python3 -m venv",
    "docs/start-spark.md: java -version",
    "docs/tuning.md: python3 -m venv",
    "docs/tuning.md: spark-submit --master k8s",
    "docs/tutorial.md: curl -X POST",
    "docs/tutorial.md: docker compose --file",
    "docs/tutorial.md: export PYSPARK_SUBMIT_ARGS",
    "docs/tutorial.md: upsertflow init debezium servers",
]
"""What no test can run, by page and first words; each says why on its page."""


def test_every_block_says_its_language_and_what_is_not_run_says_why() -> None:
    unknown = [str(block) for block in BLOCKS if block.language not in LANGUAGES | NO_CODE]
    assert not unknown, f"write one of {sorted(LANGUAGES | NO_CODE)} behind the fence"
    left = [block for block in CODE if block.runner is None]
    assert [str(block) for block in left if not block.reason] == []
    starts = [f"{block.page}: {block.code}" for block in left]
    names = [next((n for n in NOT_RUN if start.startswith(n)), start) for start in starts]
    assert sorted(names) == NOT_RUN, "let a test run it, or name here what cannot run"


def test_the_test_that_is_said_to_run_a_block_asks_for_it() -> None:
    files = [path for at in ("integration", "tests") for path in (ROOT / at).rglob("*.py")]
    texts = [text for path in files if "code_of(" in (text := path.read_text())]
    for page, runner in {(b.page, b.runner) for b in CODE if b.runner not in (None, HERE)}:
        assert any(f'"{page}"' in text and f'"{runner}"' in text for text in texts), (page, runner)


def test_every_comment_about_running_stands_above_a_block() -> None:
    for page in pages():
        said = re.findall(r"^<!-- *(?:run|not) .*$", page.read_text(), re.MULTILINE)
        name = page.relative_to(ROOT).as_posix()
        marked = [b for b in CODE if b.page == name and b.runner != HERE]
        assert len(said) == len(marked), f"{name}: write <!-- not run: why --> above the fence"


def test_names_of_the_engine_that_a_block_imports_exist() -> None:
    for block in (block for block in CODE if block.language == "python"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("spark_upsert."):
                module = importlib.import_module(str(node.module))
                for name in (each.name for each in node.names if not hasattr(module, each.name)):
                    spec = importlib.util.find_spec(f"{node.module}.{name}")
                    assert spec is not None, f"{block}: {name}"


def test_commands_of_the_pages_exist() -> None:
    shown = "\n".join(page.read_text() for page in pages())
    makefiles = [ROOT / "Makefile", *(ROOT / "examples" / "projects").glob("*/Makefile")]
    targets = [
        found for path in makefiles for found in re.findall(r"(?m)^([a-z]+):", path.read_text())
    ]
    assert set(re.findall(r"(?:^|`)make ([a-z]+)\b", shown, re.MULTILINE)) <= set(targets)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(",".join(re.findall(r"upsertflow\[([a-z,]+)\]", shown)).split(","))
    assert extras <= project["optional-dependencies"].keys()


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose_of(text: str) -> str:
    """Return a page without its code."""
    return re.sub(r"^( *)(```+|~~~).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ +(.*?) *$", prose_of(text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        names.add(name if not found[name] else f"{name}-{found[name]}")
        found[name] += 1
    return names


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = LINK.findall(prose_of(page.read_text()))
    for link in (link for link in links if not re.match(r"\w+://|mailto:", link)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target.read_text()), link
