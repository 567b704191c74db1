"""Removing run files that no version came to use."""

from __future__ import annotations

from collections.abc import Sequence

from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.run.file import RunFile


def remove_unused(store: Store, log: Log, files: Sequence[RunFile], *, base_version: int) -> None:
    """Remove files, unless a version after the one that they were written on uses them.

    Only for files that no commit can bring in any more: a put that is under way may still win.
    """
    if not files:
        return
    head = log.try_head()
    used: set[str] = set()
    if head is not None:  # Else the table was not made, or is no more.
        if base_version + 1 < head.since:
            return  # The versions that may name them are expired; a vacuum will tell.
        for version in log.commits(base_version + 1, head.upper):
            used |= version.paths
    for file in files:
        if file.path not in used:
            store.delete(file.path)
