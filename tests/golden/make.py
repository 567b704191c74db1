"""Make golden data anew: all cases, or those that are named (``python -m tests.golden.make``).

``python -m tests.golden.make --release`` adds the archive of the release that is being made, with
all cases as its code writes them, and beside it the names that later code must keep. Later code
must read it, and it is never made anew.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from spark_upsert._version import __version__
from tests.golden.case import RELEASES, Case
from tests.golden.cases import CASES
from tests.golden.interface import interface


def main(arguments: list[str]) -> None:
    """Write the data of cases, or the archive of a release."""
    if arguments == ["--release"]:
        print(make_release(RELEASES, __version__))
        return
    _make(case for case in CASES if not arguments or case.name in arguments)


def make_release(folder: Path, version: str) -> Path:
    """Write the archive of a release, and return its path.

    Raises
    ------
    FileExistsError
        The release has one.
    """
    archive = folder / f"{version}.zip"
    if archive.exists():
        raise FileExistsError(
            f"{archive.name} is what release {version} wrote, and stays as it is; "
            "delete it only while that release is not out"
        )
    with tempfile.TemporaryDirectory() as scratch:
        _make(replace(case, home=Path(scratch)) for case in CASES)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.make_archive(str(folder / version), "zip", scratch)
    text = json.dumps(interface(), indent=1)
    (folder / f"{version}.json").write_text(text + "\n", encoding="utf-8")
    return archive


def _make(cases: Iterable[Case]) -> None:
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            case.make(Path(scratch) / "case")


if __name__ == "__main__":
    main(sys.argv[1:])
