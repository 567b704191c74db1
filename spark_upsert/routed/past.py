"""Retention of a root's own tables: the query that writes the root expires and vacuums them.

These tables are the group (`routed.group`) and the parked rows (`routed.park`); no other process
looks after them. Only old versions are removed, and files that no version names: a parked row
stands in the newest version, however long ago it came.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_upsert.errors import UpsertFlowError
from spark_upsert.model.log_fields import Fields
from spark_upsert.table.table import Table

_LOGGER = logging.getLogger(__name__)

UPKEEP_EVERY = 100
"""Versions of the group between two times, at some ten requests each."""


def is_due(before: int, newest: int) -> bool:
    """Return whether the past is to be given up, by the group's versions before a batch and now."""
    return newest // UPKEEP_EVERY > max(before, 0) // UPKEEP_EVERY


def give_up(tables: Iterable[Table], retention_ms: int) -> None:
    """Give up what is older; the batch is whole whatever becomes of that.

    Parameters
    ----------
    tables : iterable of Table
        One that is not there, or has nothing of the past, costs a look.
    retention_ms : int
    """
    for table in tables:
        try:
            if table.log.try_head() is not None:
                _give_up(table, retention_ms)
        except UpsertFlowError as error:
            fields = Fields(path=table.store.url, code=error.code, reason=error.message)
            _LOGGER.warning("a table keeps its past: %s", fields)


def _give_up(table: Table, retention_ms: int) -> None:
    head = table.log.head()
    if not head.live_rows and len(head.slices) > 1:
        # All that was parked is applied: too few versions follow for a compaction to be due.
        table.compact(full=True)
    table.expire(retain_ms=retention_ms)
    table.vacuum()
