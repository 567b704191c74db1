"""A Chromium without a window: the one of this machine, or Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.servers.install import FETCH_SECONDS_MAX, alone

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""What the program is called by those that package it."""

_REMEDY = "install Chromium (Debian: `apt install chromium`)."


def browser() -> Path:
    """Return the program; as root, and where there is `apt-get`, it is installed if it lacks."""
    if (known := _known()) is not None:
        return known
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.fail(f"there is no {', '.join(NAMES)} on the PATH: {_REMEDY}", pytrace=False)
    with alone("chromium"):
        if _known() is None:
            _apt_get("update")
            _apt_get("install", "--yes", "--no-install-recommends", "chromium")
    if (installed := _known()) is None:
        pytest.fail(f"Debian's package left no {NAMES[0]} on the PATH: {_REMEDY}", pytrace=False)
    return installed


def _known() -> Path | None:
    return next((Path(found) for found in map(shutil.which, NAMES) if found), None)


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-1000:]
        pytest.fail(f"`apt-get {arguments[0]}` failed; {_REMEDY}\n{said}", pytrace=False)
