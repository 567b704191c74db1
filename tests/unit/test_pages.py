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

from integration.pages import HERE, LANGUAGES, NO_CODE, ROOT, Block, blocks, code_of, pages, parse

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


def test_every_block_says_what_language_it_is_in() -> None:
    unknown = [str(block) for block in BLOCKS if block.language not in LANGUAGES | NO_CODE]
    assert not unknown, f"write one of {sorted(LANGUAGES | NO_CODE)} behind the fence"


def test_what_is_not_run_is_known_by_name() -> None:
    found = [f"{b.page}: {b.code}" for b in CODE if b.runner is None]
    known = [next((k for k in NOT_RUN if each.startswith(k)), each) for each in found]
    assert sorted(known) == NOT_RUN, "let a test run it, or name here what cannot run"
    assert all(b.reason for b in CODE if b.runner is None)
    assert len(CODE) > 4 * len(NOT_RUN), "most of what a reader copies runs"


@pytest.mark.parametrize(
    "block", [b for b in CODE if b.runner not in (None, HERE)], ids=lambda block: str(block)
)
def test_the_test_that_is_said_to_run_a_block_asks_for_it(block: Block) -> None:
    assert block.runner is not None
    assert (ROOT / block.runner).is_file()
    names = {f'"{block.page}"', f'"{block.runner}"'}
    files = [path for at in ("integration", "tests") for path in (ROOT / at).rglob("*.py")]
    texts = (path.read_text() for path in files)
    askers = [text for text in texts if "code_of(" in text and all(name in text for name in names)]
    assert askers, f"{block.runner} does not call code_of({block.page!r}, ...)"


def test_every_comment_about_running_stands_above_a_block() -> None:
    for page in pages():
        said = re.findall(r"^<!-- *(?:run|not) .*$", page.read_text(), re.MULTILINE)
        name = page.relative_to(ROOT).as_posix()
        understood = [b for b in BLOCKS if b.page == name and b.language in LANGUAGES]
        marked = [b for b in understood if b.runner != HERE]
        assert len(said) == len(marked), (
            f"{name}: write <!-- not run: why --> right above the fence"
        )


@pytest.mark.parametrize(
    "block", [b for b in CODE if b.language == "python"], ids=lambda block: str(block)
)
def test_what_a_block_imports_of_the_engine_is_there(block: Block) -> None:
    imports = [n for n in ast.walk(ast.parse(block.code)) if isinstance(n, ast.ImportFrom)]
    ours = [(n.module, each.name) for n in imports if n.module for each in n.names]
    missing = [
        f"{module}.{name}"
        for module, name in ours
        if module.partition(".")[0] == "spark_upsert"
        and not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert not missing, "write the name that the code has"


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
    lost = []
    for link in LINK.findall(prose_of(page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" in link or link.startswith("mailto:"):
            continue
        is_page = target.suffix == ".md" and target.is_file()
        if not target.exists() or (
            anchor and is_page and anchor not in anchors_of(target.read_text())
        ):
            lost.append(link)
    assert not lost, "name a file or a heading that is there"


# -- the parser ----------------------------------------------------------------------

PAGE = """# A page

```python
first = 1
```

<!-- run by tests/a_test.py -->
```sql
SELECT 1;
```
1. a list

   <!-- not run: too slow -->
   ```sh
   sleep 1000
   ```

````text
```python
quoted = True
```
````
"""


def test_a_block_knows_its_place_its_code_and_who_runs_it() -> None:
    found = parse("page.md", PAGE)
    assert [(b.line, b.language, b.runner, b.reason) for b in found] == [
        (3, "python", HERE, ""),
        (8, "sql", "tests/a_test.py", ""),
        (14, "sh", None, "too slow"),
        (18, "text", None, ""),
    ]
    assert found[0].code == "first = 1\n"
    assert found[2].code == "sleep 1000\n"


def test_a_block_with_a_title_is_a_file() -> None:
    [block] = parse("page.md", '```python title="one.py"\nfirst = 1\n```\n')
    assert (block.language, block.title) == ("python", "one.py")
    assert not parse("page.md", PAGE)[0].title


def test_a_page_without_code_for_a_test_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"README\.md has no sql"):
        code_of("README.md", "sql", runner=HERE)
