"""A folder that a command fills: new or empty before, and as it was if that fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from spark_upsert.errors import is_url


def as_new_folder(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Return a folder that is not there yet, or has nothing in it."""
    if folder is not None and is_url(str(folder)):
        raise click.BadParameter("expected a folder of this machine, found a URL.")
    if folder is None or not folder.exists():
        return folder
    if not folder.is_dir():
        raise click.BadParameter(f"expected a new or an empty folder, found the file {folder}.")
    found = sorted(each.name for each in folder.iterdir())
    if found:
        raise click.BadParameter(
            f"expected a new or an empty folder, found {len(found)} files or folders in "
            f"{folder}, such as {found[0]!r}. Nothing is overwritten: name another one."
        )
    return folder


@contextmanager
def filled(folder: Path | None) -> Iterator[Path]:
    """Lend a folder that `as_new_folder` has let pass, or one for temporary files.

    What is in it goes again if filling it fails, so that a command whose disk was full can be typed
    again, as its hint says.
    """
    was_there = folder is not None and folder.exists()
    at = folder or Path(tempfile.mkdtemp(prefix="upsertflow-demo-"))
    try:
        yield at
    except BaseException:
        for each in at.iterdir() if at.is_dir() else ():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        if not was_there and at.is_dir():
            at.rmdir()
        raise
