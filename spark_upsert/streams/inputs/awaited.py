"""A table that is not there yet: the first batch of the query that writes it makes it.

Spark does not call a sink before that batch, so the query cannot make the table when it starts; and
Spark asks a source for its columns when a read is made, so a stream of the table cannot begin
without the table either. So the read waits, where an option says how long (``tableTimeout``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_upsert.errors import TableNotFoundError
from spark_upsert.model.durations import render_ms
from spark_upsert.store import Store
from spark_upsert.table.log.entries import no_table
from spark_upsert.table.table import Table

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
"""A table is found within a second of its first epoch, at a request a second."""


def awaited(
    table: Table,
    timeout_ms: int | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Table:
    """Return a table once it is there.

    Parameters
    ----------
    timeout_ms : int or None
        How long it is waited for; None: not at all.
    clock, sleep : callable, optional
        In seconds.

    Raises
    ------
    TableNotFoundError
        It is still not there.
    """
    deadline_s = clock() + (timeout_ms or 0) / 1000
    pause_s = PAUSE_S_MIN
    while table.log.try_head() is None:
        left_s = deadline_s - clock()
        if left_s <= 0:
            raise _missing(table.store, timeout_ms)
        sleep(min(pause_s, left_s))
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)
    return table


def _missing(store: Store, timeout_ms: int | None) -> TableNotFoundError:
    if timeout_ms is None:
        return no_table(store, may_wait=True)
    path = store.url
    return TableNotFoundError(
        f"there is no upsertflow table at '{path}' (no version 0 in its _log folder) after "
        f"{render_ms(timeout_ms)}.",
        hint="look whether the query that writes it has had a batch (its first one makes the "
        "table), or make the table before by spark_upsert.Table.create.",
        path=path,
    )
