"""A Chromium without a window: the one of this machine, or Debian's."""

from __future__ import annotations

from pathlib import Path

from integration.servers.install import debian_program

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""What the program is called by those that package it."""


def browser() -> Path:
    """Return the program."""
    return debian_program(NAMES, "chromium")
