"""The line of a program's log about a version that was committed, whatever its kind."""

from __future__ import annotations

import logging

from spark_upsert.model.log_fields import Fields
from spark_upsert.table.log.manifest import Commit, Kind

_LOGGER = logging.getLogger(__name__)


def tell(commit: Commit, path: str) -> None:
    """Say what a version did, with its counters; those that are zero are left out."""
    _LOGGER.info("version committed: %s", _fields(commit, path))


def _merged(commit: Commit) -> dict[str, int | None]:
    """Return what a compaction left; of an epoch the counters tell."""
    if commit.kind is not Kind.COMPACT:
        return {}
    files = [slice_.file for slice_ in commit.slices()]
    tombstones = sum(file.tombstones for file in files)
    return {"rows": sum(file.rows for file in files), "tombstones": tombstones or None}


def _fields(commit: Commit, path: str) -> Fields:
    # A restore takes over what older versions have written.
    files = [] if commit.restored is not None else [slice_.file for slice_ in commit.slices()]
    count = len(commit.transactions)
    one = commit.transactions[0] if count == 1 else None
    return Fields(
        path=path,
        version=commit.version,
        kind=commit.kind.value,
        writer=one and one.writer,
        number=one and one.number,
        writers=count if count > 1 else None,
        files=len(files) or None,
        bytes=sum(file.bytes for file in files) or None,
        ranges_taken=len(commit.taken) or None,
        **_merged(commit),
        from_version=commit.restored,
        **{name: rows for name, rows in commit.counters.items() if rows},
        live_rows=commit.live_rows,
        since=commit.since or None,
        fence=commit.fence or None,
    )
