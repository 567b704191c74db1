"""The fragments of `changes/` are what the next section of the changelog is made from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = {entry["directory"]: entry["name"] for entry in SETTINGS["type"]}
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")

OWN = "Something that was not possible: `option=value`.\n"


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a release works on, behind `make changelog ARGS=--yes`."""
    folder = tmp_path_factory.mktemp("release")
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "changes", folder / "changes")
    # Just behind a release there is no other.
    (folder / "changes" / "+of-this-test.added.md").write_text(OWN)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--dir", str(folder)]
    command += ["--version", "9.9.9", "--date", "2030-01-31"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_release_moves_each_fragment_into_the_changelog(released: Path) -> None:
    text = one_line((released / "CHANGELOG.md").read_text())
    told = [OWN, *(path.read_text() for path in FRAGMENTS)]
    assert [each for each in told if one_line(each) not in text] == []
    assert [path.name for path in (released / "changes").iterdir()] == ["README.md"]


def test_the_newest_release_stands_on_top_and_older_ones_stay(released: Path) -> None:
    before, after = ((at / "CHANGELOG.md").read_text() for at in (ROOT, released))
    head, older = before.split("\n<!-- releases, the newest first -->\n")
    assert after.startswith(head)
    assert after.endswith(older)
    titles = re.findall(r"^## (.*)$", after, re.MULTILINE)
    assert titles == ["9.9.9 (2030-01-31)", *re.findall(r"^## (.*)$", before, re.MULTILINE)]


def test_sections_stand_in_the_order_of_the_table(released: Path) -> None:
    table = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "changes" / "README.md").read_text(), re.MULTILINE
    )
    assert list(TYPES) == table
    section = (released / "CHANGELOG.md").read_text().split("\n## ")[1]
    used = {"added", *(path.name.split(".")[-2] for path in FRAGMENTS)}
    assert re.findall(r"^### (.*)$", section, re.MULTILINE) == [
        TYPES[t] for t in table if t in used
    ]


def test_fragments_have_names_that_are_understood() -> None:
    """What is not, a release would pass over in silence; just behind one there are none."""
    name = rf"(\+[a-z0-9-]+|\d+)\.({'|'.join(TYPES)})\.md"
    assert [path.name for path in FRAGMENTS if not re.fullmatch(name, path.name)] == []
    assert [path.name for path in FRAGMENTS if len(path.read_text().strip()) <= 40] == []
