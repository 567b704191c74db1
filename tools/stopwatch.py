"""Follow a page from an empty folder, word for word, and write into it how long its commands took.

`make stopwatch` does it for the pages of `PAGES`, each in a fresh folder and environment, with the
wheel of `make package` and nothing that pip has kept. A block of code with a title is saved under
that name, each block of commands is run, and what a ``text`` block behind it says must come out.
`integration/test_start.py` follows the same pages but for what installs from the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from integration.pages import ROOT, Block, blocks_of

PAGES = ("docs/start-polars.md", "docs/start-spark.md")
BEGIN, END = "<!-- times -->", "<!-- end of times -->"
SECONDS_MAX = 600
ACTIVATED = "[ ! -d .venv ] || . .venv/bin/activate\n"
"""What the shell of a reader has done since the first step."""


class Step(NamedTuple):
    """A block of a page that is copied."""

    section: str
    """The heading above it."""
    block: Block
    shown: str | None
    """What its page says that it shows; None if the page does not say."""


class RemovedRange(NamedTuple):
    """What a step took."""

    section: str
    seconds: float


def steps_of(page: str) -> list[Step]:
    """Return what a reader of a page copies, in order."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    headings = {at: line[3:] for at, line in enumerate(lines, 1) if line.startswith("## ")}
    found: list[Step] = []
    for block in blocks_of(ROOT / page):
        if block.language == "text":
            found[-1] = found[-1]._replace(shown=block.code)
        else:
            section = headings[max(at for at in headings if at < block.line)]
            found.append(Step(section, block, None))
    return found


def follow(
    page: str, folder: Path, environment: Mapping[str, str], *, installs: bool
) -> Iterator[RemovedRange]:
    """Do what a page says in an empty folder, and yield what each step took.

    Args:
        page: the page, relative to the root.
        folder: where its reader is.
        environment: of the reader's shell.
        installs: also what no test runs, for it asks the network.

    A command that fails, or shows something else than the page does, is an `AssertionError`.
    """
    for section, block, shown in steps_of(page):
        if block.language != "sh":
            assert block.title, f"{block}: no command runs it; give it the name of a file"
            (folder / block.title).write_text(block.code, "utf-8")
        elif installs or block.runner is not None:
            begin = time.monotonic()
            said = run(block, folder, environment)
            yield RemovedRange(section, time.monotonic() - begin)
            assert shown is None or words(said) == words(shown), f"{block}: found\n{said}"


def run(block: Block, folder: Path, environment: Mapping[str, str]) -> str:
    """Run commands as a reader does, and return what they print."""
    done = subprocess.run(
        ["bash", "-euc", ACTIVATED + block.code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
    return done.stdout


def words(shown: str) -> list[str]:
    """Return the lines of what is shown that are not blank, without the blanks at their ends."""
    return [line.rstrip() for line in shown.splitlines() if line.strip()]


def with_times(text: str, taken: list[RemovedRange]) -> str:
    """Return a page with a table of what its sections took."""
    sections = dict.fromkeys(section for section, _ in taken)
    seconds = [sum(each.seconds for each in taken if each.section == name) for name in sections]
    cells = [*zip(sections, seconds, strict=True), ("in all", sum(seconds))]
    table = ["| step | seconds |", "|---|---|", *(f"| {name} | {s:.1f} |" for name, s in cells)]
    made = "\n".join([BEGIN, *table, END])
    return re.sub(rf"{BEGIN}.*{END}", made, text, flags=re.DOTALL)


def fresh() -> dict[str, str]:
    """Return the environment of a reader that gets by pip the wheel of this checkout."""
    left_out = {"VIRTUAL_ENV", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PIP_FIND_LINKS": str(ROOT / "dist"), "PIP_NO_CACHE_DIR": "1"}


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            taken = list(follow(page, Path(folder), fresh(), installs=True))
        path = ROOT / page
        path.write_text(with_times(path.read_text("utf-8"), taken), "utf-8")
        print(f"{page}: {sum(each.seconds for each in taken):.1f} s")
