"""The objects in the folder of the log: their names and places."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_upsert.store import Store

FOLDER = "_log"
HINT_PATH = f"{FOLDER}/_last_checkpoint"

_ENTRY = re.compile(FOLDER + r"/(\d{20})(\.checkpoint)?\.json")


def commit_path(version: int) -> str:
    """Return where a version's commit lies."""
    return f"{FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Return where the checkpoint of a version lies, if it has one."""
    return f"{FOLDER}/{version:020d}.checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One object of the log: the commit or the checkpoint of a version."""

    version: int
    path: str
    is_checkpoint: bool
    modified_s: float
    """The time of its last write by the storage's own clock, in seconds since 1970."""
    is_link: bool = False
    """Whether it lies elsewhere, where nothing is removed."""


def entries(store: Store) -> list[LogEntry]:
    """Return the commits and checkpoints that lie in the log, the oldest version first."""
    found = []
    for info in store.list(FOLDER):
        match = _ENTRY.fullmatch(info.path)
        if match is not None:
            entry = LogEntry(
                version=int(match[1]),
                path=info.path,
                is_checkpoint=match[2] is not None,
                modified_s=info.modified_s,
                is_link=info.is_link,
            )
            found.append(entry)
    return sorted(found, key=lambda e: (e.version, e.is_checkpoint))
