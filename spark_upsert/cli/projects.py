"""`upsertflow init`: projects that run as they are, written into a folder of the user's own.

They stand in `examples/projects` of a checkout, where they are linted and tested; a wheel brings
them along beside this module. A project is copied file by file but for two things: what pip is to
install is this very package, and paths below `/lake` lie in the project's own folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from spark_upsert.cli.doctor import requirement
from spark_upsert.cli.new_folder import filled
from spark_upsert.store.system_errors import translated

KINDS = ("debezium", "files", "kafka", "pipelines", "polars")
"""Names of the projects."""

_PACKAGE = re.compile(r"^upsertflow\[(?P<extras>[a-z,]+)\]$", re.MULTILINE)
"""The line of a requirements.txt that asks for us."""

_LAKE = re.compile(r"(?<=[\"/])/lake(?=[\"/])")
"""The folder of a project that must name it from the root, in a text or a URL."""

_MADE = {"__pycache__", ".pytest_cache", ".venv", "lake", "spark-warehouse"}
"""Names of what tools leave in a folder."""


def write_project(kind: str, directory: Path) -> list[str]:
    """Write a project into a folder that is empty, or not there; return the names of its files.

    Raises
    ------
    StorageError
        The file system refused. What was written is gone again: the command can be repeated.
    """
    texts = sorted(_texts(_home() / kind))
    with filled(directory):
        for name, text in texts:
            target = directory / name
            with translated("write", target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_own(text, target, directory), encoding="utf-8")
    return [name for name, _ in texts]


def _home() -> Traversable:
    """Return the folder of all projects."""
    here = files("spark_upsert.cli")
    packed = here / "projects"
    return packed if packed.is_dir() else Path(str(here)).parents[1] / "examples" / "projects"


def _texts(folder: Traversable, below: str = "") -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.name in _MADE:
            continue
        if each.is_dir():
            yield from _texts(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each.read_text(encoding="utf-8")


def _own(text: str, target: Path, directory: Path) -> str:
    if target.name == "requirements.txt":
        return _PACKAGE.sub(lambda found: requirement(found["extras"]), text)
    return _LAKE.sub(lambda _: f"{directory.resolve()}/lake", text)
