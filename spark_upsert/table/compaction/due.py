"""The compactions that are due in a table, and the tombstones that they may forget."""

from __future__ import annotations

from spark_upsert.table.compaction.policy import Job, choose, choose_all
from spark_upsert.table.log.look import Versions
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.tombstones import DEFAULT, PROPERTY, TombstoneRetention


def due_jobs(log: Versions, now_ms: int, *, full: bool = False) -> list[Job]:
    """Return the compactions that are due, the smallest first.

    Parameters
    ----------
    log : Versions
    now_ms : int
        By the clock of the log.
    full : bool
        Whether one run is to be left everywhere, whatever the sizes.
    """
    head = log.head()
    chooser = choose_all if full else choose
    return chooser(head, forget_before=_forget_before(log, head, now_ms))


def _forget_before(log: Versions, head: Manifest, now_ms: int) -> int:
    """Return the epoch before which tombstones are past their retention.

    Where entries are folded by an order, none ever is: a delete also forgets the older
    values of columns, and a row that comes behind it does not say which.
    """
    if head.schema.keeps_deletes:
        return 0
    retention = TombstoneRetention.parse(head.properties.get(PROPERTY, DEFAULT))
    if retention.is_for_ever or not any(slice_.file.tombstones for slice_ in head.slices):
        return 0
    before: int = head.upper
    if retention.epochs is not None:
        before = min(before, head.upper - retention.epochs)
    if retention.milliseconds is not None:
        limit_ms = now_ms - retention.milliseconds
        before = min(before, log.version_at(limit_ms) + 1)
    return max(0, before)
