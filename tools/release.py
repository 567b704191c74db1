"""Build a release: what users install, twice and to the same bytes, with its notes and checksums.

The date in all files is that of the commit, so that anybody can build the same release from it.

Rejected: signing here. A signature needs a key, and a key has no place in a build that all can run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"
NOTES = "NOTES.md"


class ReleaseError(Exception):
    """The release cannot be made; the text says what to do first."""


def version_of(source: Path) -> str:
    """Return the version of a checkout."""
    text = (source / "spark_upsert" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    if found is None:
        raise ReleaseError(f"expected __version__ in {source}/spark_upsert/_version.py, found none")
    return found[1]


def notes_of(changelog: str, version: str) -> str:
    """Return what a changelog says of a version.

    Raises
    ------
    ReleaseError
        It has no section of that version.
    """
    sections = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)
    for section in sections:
        if re.match(rf"## {re.escape(version)}(\s|$)", section):
            return section.strip() + "\n"
    known = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    raise ReleaseError(
        f"expected a section '## {version}' in CHANGELOG.md, found those of {known}\n\n"
        "Hint: run `make changelog ARGS=--yes`, which makes it of the files in changes/, and read it."
    )


def require_golden(source: Path, version: str) -> None:
    """Raise unless the tests have what this release writes, for those that follow to read."""
    releases = source / "tests" / "golden" / "releases"
    for file in (releases / f"{version}.zip", releases / f"{version}.json"):
        if not file.exists():
            raise ReleaseError(
                f"expected what release {version} writes in {file.relative_to(source)}, found "
                "none\n\nHint: run `python -m tests.golden.make --release`, and commit both files."
            )


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def require_equal(first: dict[str, str], second: dict[str, str]) -> None:
    """Raise unless two builds gave the same files."""
    names = sorted(first.keys() | second.keys())
    differ = [name for name in names if first.get(name) != second.get(name)]
    if differ:
        raise ReleaseError(f"expected two equal builds, found differences in {', '.join(differ)}")


def release(target: Path, *, source: Path = ROOT) -> str:
    """Build a release into a folder, which is emptied first, and return its version."""
    version = version_of(source)
    notes = notes_of((source / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    require_golden(source, version)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": _commit_seconds(source)}
    # The second one runs elsewhere: what follows from zone or hash seed must not be in the bytes.
    elsewhere = {**environ, "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7"}
    build = [sys.executable, str(source / "tools" / "package.py"), "--target"]
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        folders = [Path(scratch, name) for name in ("first", "second")]
        for folder, env in zip(folders, (environ, elsewhere), strict=True):
            done = subprocess.run(
                [*build, str(folder)], env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ReleaseError(f"the build failed: {(done.stdout + done.stderr)[-1000:]}")
            # What the build tool leaves there is no part of a release.
            (folder / ".gitignore").unlink(missing_ok=True)
        made, again = (digests(folder) for folder in folders)
        require_equal(made, again)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folders[0], target)
    (target / NOTES).write_text(notes, encoding="utf-8")
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests(target).items())
    (target / SUMS).write_text(sums, encoding="utf-8")
    return version


def _commit_seconds(source: Path) -> str:
    """Return when the commit was made, in seconds since 1970; the default of a build without git."""
    command = ["git", "-C", str(source), "log", "-1", "--format=%ct"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return os.environ.get("SOURCE_DATE_EPOCH") or found.stdout.strip() or "1580601600"


def main() -> None:
    """Build a release into ``dist``."""
    parser = argparse.ArgumentParser(description="Build a release, twice, with notes and sums.")
    parser.add_argument("--target", type=Path, default=ROOT / "dist", help="default: dist")
    target = parser.parse_args().target
    try:
        version = release(target)
    except ReleaseError as error:
        sys.exit(str(error))
    print((target / SUMS).read_text(encoding="utf-8"))
    print(f"release {version}: two builds gave these bytes; what it says is in {target / NOTES}")
    waiting = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    if waiting:
        print(
            f"{len(waiting)} changes in changes/ are not in its notes: `make changelog` shows them"
        )


if __name__ == "__main__":
    main()
