"""The objects in the folder of the log: their names and places; what lies where there are none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_upsert.errors import CorruptionError, TableNotFoundError, setting
from spark_upsert.store import Store

FOLDER = "_log"
HINT_PATH = f"{FOLDER}/_last_checkpoint"

_GROUP = "_group"
"""The folder of the group table below the root of a routed write (`routed.group`)."""

_DELTA_LOG = "_delta_log"

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


def entries(store: Store, *, after: str = "") -> list[LogEntry]:
    """Return the commits and checkpoints in the log, the oldest version first.

    Parameters
    ----------
    after : str
        A path: the listing begins with the next one.
    """
    found = []
    for info in store.list(FOLDER, after=after):
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


def require_no_rest(store: Store) -> None:
    """Raise if a log without a version 0 has other versions.

    Raises
    ------
    CorruptionError
        Version 0 was lost, or the table is being copied or removed.
    """
    rest = [entry for entry in entries(store) if entry.version]
    if rest:
        path = f"{store.url}/{commit_path(0)}"
        raise CorruptionError(
            f"'{store.url}' holds the rest of a table: its log has '{rest[0].path}' and "
            f"{len(rest) - 1} further objects, but not '{path}'. Nothing was written.",
            hint=f"restore '{path}' from a copy; or finish the copy or the removal of that table, "
            "or choose another path.",
            path=path,
        )


def no_table(store: Store, *, may_wait: bool = False) -> TableNotFoundError:
    """Return the error of a place that holds no table, which tells what lies there instead.

    The roots of routed writes and mirrors lie beside tables, and their paths are taken for those of
    tables. It takes two looks at the storage, and only where a table is missing.

    Parameters
    ----------
    store : Store
    may_wait : bool
        Whether what asks for the table could wait for it.
    """
    path = store.url
    if _is_root(store):
        return TableNotFoundError(
            f"'{path}' is no table, but the root of those that one stream writes.",
            hint=f"read one of them by its own path ('upsertflow tables {path}' lists them), or "
            f"all with {setting('inputsPattern', '*')}.",
            path=path,
        )
    if next(iter(store.list(_DELTA_LOG)), None) is not None:
        return TableNotFoundError(
            f"at '{path}' lies a Delta table, and none of upsertflow.",
            hint="read it with the format 'delta', or by delta-rs, Polars or DuckDB. If it is the "
            "mirror of a table, give the path of that table.",
            path=path,
        )
    return TableNotFoundError.at(path, may_wait=may_wait)


def _is_root(store: Store) -> bool:
    try:
        store.read(f"{_GROUP}/{commit_path(0)}")
    except FileNotFoundError:
        return False
    return True
