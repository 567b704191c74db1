"""What CONTRIBUTING.md says of the code is there: names, files, targets, the planted bug."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from integration.pages import blocks_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"

LINKS = re.findall(r"\[([^\]]+)\]\(([^)#]+)(?:#[^)]*)?\)", PAGE.read_text())


@pytest.mark.parametrize("target", sorted({target for _, target in LINKS}))
def test_a_link_leads_somewhere(target: str) -> None:
    assert (PAGE.parent / target).exists()


@pytest.mark.parametrize(
    ("name", "target"),
    sorted({(text.strip("`"), to) for text, to in LINKS if text[0] == "`" and to.endswith(".py")}),
)
def test_what_is_named_stands_in_the_module_that_the_link_leads_to(name: str, target: str) -> None:
    defined = set()
    for node in ast.parse((ROOT / target).read_text()).body:
        match node:
            case ast.FunctionDef(name=own) | ast.ClassDef(name=own):
                defined.add(own)
            case ast.Assign(targets=[ast.Name(id=own)]) | ast.AnnAssign(target=ast.Name(id=own)):
                defined.add(own)
            case _:
                pass
    assert name in defined


def test_folders_and_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", PAGE.read_text())
    assert len(named) > 5
    missing = [
        at for at in named if not (ROOT / at).exists() and not (ROOT / "spark_upsert" / at).exists()
    ]
    assert not missing


def test_the_planted_bug_is_one_of_ours() -> None:
    [shown] = [block.code for block in blocks_of(PAGE) if "@bug(" in block.code]
    areas = (ROOT / "tests" / "planted").glob("*.py")
    assert any(shown in area.read_text() for area in areas)


def test_every_target_of_make_that_people_use_is_told() -> None:
    told = set(re.findall(r"^\| `make ([a-z-]+)`", PAGE.read_text(), re.MULTILINE))
    listed = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert listed - told == {"help", "lint", "style", "types", "package", "clean"}
    assert told <= listed
