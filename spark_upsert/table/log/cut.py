"""Cutting off the beginning of the log, which no readable version needs.

A cut frees the names of old versions: a process that slept meanwhile would take the first free one
for the end of the log, and read old rows for ever or, worse, commit there. So a cut keeps an order,
the only copy of the rule:

1. the newest checkpoint at or below ``since`` is made anew from the versions that it replaces and
   is durable, and the hint is not older;
2. version 0, which is never removed, is marked as cut;
3. the versions below that checkpoint are removed one by one, the oldest first, each of them
   `LOG_SECONDS_MIN` old at least.

Hence, as long as the commit of version ``v`` is in the log, no version behind ``v`` was removed:
the proof of the log's end (`read`) holds under cuts, too.

Rejected: to leave a mark in place of each removed version. It needs no rule, but leaves a
file per version for ever.
"""

from __future__ import annotations

from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store
from spark_upsert.store.records import checked_record, read_record
from spark_upsert.table.log.checkpoints import (
    hint_at,
    hinted,
    last_due,
    newest_up_to,
    read_checkpoint,
    write_checkpoint,
)
from spark_upsert.table.log.codec import commit_from_json
from spark_upsert.table.log.entries import checkpoint_path, commit_path, entries
from spark_upsert.table.log.read import LogReader
from spark_upsert.table.log.stored import CommitMark

LOG_SECONDS_MIN = 3600.0
"""The age below which versions stay in the log, so that cuts rarely meet running readers."""


def cut(
    store: Store,
    log: LogReader,
    *,
    now_s: float,
    seconds_min: float = LOG_SECONDS_MIN,
    dry_run: bool = False,
) -> list[str]:
    """Remove the beginning of the log that no readable version needs.

    Kept are version 0, the newest checkpoint at or below ``since`` and all behind it. The
    order of the steps is that of the module; a crash between them is harmless.

    Parameters
    ----------
    store : Store
    log : LogReader
    now_s : float
        Seconds since 1970 by the storage's own clock.
    seconds_min : float
        Younger versions stay, because their times are still needed.
    dry_run : bool
        Whether only to look.

    Returns
    -------
    list of str
        The paths of what was removed, or would be.
    """
    lower = last_due(log.head().since)
    limit_s = now_s - max(seconds_min, LOG_SECONDS_MIN)
    gone = []
    for entry in entries(store):
        if entry.version == 0 or entry.is_link:
            continue  # Version 0 is never removed, and young since it was marked.
        if entry.version >= lower or entry.modified_s > limit_s:
            break
        gone.append(entry.path)
    if gone and not dry_run:
        _begin_at(store, log, lower)
        for path in gone:
            store.delete(path)
    return gone


def _begin_at(store: Store, log: LogReader, version: int) -> None:
    """Make a checkpoint the beginning of the log: steps 1 and 2 of a cut."""
    # From older checkpoints and the commits behind them; None if the log begins here already.
    manifest = log.stored.roll(newest_up_to(store, version - 1), version)
    if manifest is not None and manifest.version == version:
        write_checkpoint(store, manifest)
    elif read_checkpoint(store, version) is None:
        raise CorruptionError.in_file(
            f"{store.url}/{checkpoint_path(version)}", "a checkpoint", "none"
        )
    # Else the log begins here already; what is left below comes from a crash or a sleeper.
    last = hinted(store)
    if last is None or last < version:
        hint_at(store, version)
    first = read_record(store, commit_path(0), dict)
    if first is not None and not first.get("cut", False):
        commit = commit_from_json(first)
        value = commit, CommitMark(token=commit.token, is_cut=True)
        checked_record(
            commit_path(0),
            value,
            {**first, "cut": True},
            lambda record: (commit_from_json(record), CommitMark.from_json(record)),
        ).put(store)
