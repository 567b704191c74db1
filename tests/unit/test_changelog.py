"""The fragments of `changes/` are what the next section of the changelog is made from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = {entry["directory"]: entry["name"] for entry in SETTINGS["type"]}
FRAGMENTS = sorted(path for path in (ROOT / "changes").iterdir() if path.name != "README.md")


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_release_moves_each_fragment_into_the_changelog_on_top_of_older_ones(
    tmp_path: Path,
) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changes", tmp_path / "changes")
    # A release leaves no fragment behind.
    added = "Something that was not possible: `option=value`.\n"
    (tmp_path / "changes" / "+of-this-test.added.md").write_text(added)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--dir", str(tmp_path)]
    command += ["--version", "9.9.9", "--date", "2030-01-31"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    before, after = ((folder / "CHANGELOG.md").read_text() for folder in (ROOT, tmp_path))
    texts = [added, *(path.read_text() for path in FRAGMENTS)]
    assert [text for text in texts if one_line(text) not in one_line(after)] == []
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]
    _, older = before.split("\n<!-- releases, the newest first -->\n")
    assert after.endswith(older)
    titles = re.findall(r"^## (.*)$", after, re.MULTILINE)
    assert titles == ["9.9.9 (2030-01-31)", *re.findall(r"^## (.*)$", before, re.MULTILINE)]


def test_fragments_have_names_that_a_release_does_not_pass_over() -> None:
    name = rf"(\+[a-z0-9-]+|\d+)\.({'|'.join(TYPES)})\.md"
    assert [path.name for path in FRAGMENTS if not re.fullmatch(name, path.name)] == []
    assert [path.name for path in FRAGMENTS if len(path.read_text().strip()) <= 40] == []
