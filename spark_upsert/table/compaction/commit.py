"""The commit of compactions: each is a version of its own, or is dropped.

What a compaction takes must be live still, as it was planned; others may have compacted, expired or
restored meanwhile. Then it is dropped, and nothing is lost but its work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from spark_upsert.store import Store
from spark_upsert.table.compaction.worker import Compacted
from spark_upsert.table.log.fold import is_applicable
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest
from spark_upsert.table.log.tombstones import higher_mark
from spark_upsert.table.log.unused import remove_unused


def commit_compactions(store: Store, log: Log, compacted: Iterable[Compacted]) -> int:
    """Make compactions visible; return how many. A compaction of runs that are gone is dropped."""
    count = 0
    for each in compacted:
        if log.append(partial(_draft, store, log, each)) is not None:
            count += 1
        else:
            files = [slice_.file for slice_ in each.added]
            remove_unused(store, log, files, base_version=each.base_version)
    return count


def _draft(store: Store, log: Log, each: Compacted, head: Manifest) -> Draft | None:
    """Return the version that a compaction makes behind another, None if it is to be dropped."""
    log.require_descent(head, each.base, "the compaction")
    if not each.taken or not head.accepts(each.base_version):
        return None
    # What it takes may be live again, below other runs than it was planned under.
    between = log.commits(each.base_version + 1, head.upper)
    if any(commit.restored is not None for commit in between):
        return None
    if not is_applicable(head, each.taken) or not each.is_safe(store, head):
        return None
    mark = each.low_water and higher_mark(each.low_water, head.low_water, head.schema)
    return Draft(
        kind=Kind.COMPACT,
        compacted=each.added,
        taken=each.taken,
        live_rows=head.live_rows,
        low_water=mark,
    )
