"""The code that CONTRIBUTING.md names is there: names, files, targets."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_names_files_and_folders_that_the_page_gives_exist() -> None:
    names = re.findall(r"\[`([^`\]]+)`\]\(([^)#]+\.py)\)", PAGE)
    defined = r"^(?:async def |def |class |){}\b[ (:=]"
    for name, target in names:
        text = (ROOT / target).read_text()
        assert re.search(defined.format(re.escape(name)), text, re.MULTILINE), f"{target}: {name}"
    folders = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", PAGE)
    roots = (ROOT, ROOT / "spark_upsert")
    assert [at for at in folders if not any((root / at).exists() for root in roots)] == []


def test_every_target_of_make_that_people_use_is_on_the_page() -> None:
    on_page = set(re.findall(r"^\| `make ([a-z-]+)`", PAGE, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets - on_page == {"help", "lint", "style", "types", "package", "clean"}
    assert on_page <= targets
