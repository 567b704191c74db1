"""Waiting until the tables below a root have an own write (`wait_for_lsn`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike

from spark_upsert.core.durations import render_ms
from spark_upsert.core.lsn import lsn_argument, parse_lsn, without_page_header
from spark_upsert.errors import OptionError, VersionNotFoundError
from spark_upsert.replication.state import read_state
from spark_upsert.routed.group import GroupTable
from spark_upsert.store.open import open_store

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 0.5


def wait_for_lsn(
    root: str | PathLike[str],
    lsn: str,
    *,
    timeout_s: float = 30.0,
    storage_options: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Wait until the tables that follow a database have everything before a position of its log.

    After a commit, request the position by ``SELECT pg_current_wal_insert_lsn()``: then each reader
    of the tables sees what was committed.

    Parameters
    ----------
    root : str or path
        The folder with the tables.
    lsn : str
        Such as ``0/1A2B3C4``.
    timeout_s : float
    storage_options : mapping, optional
    clock, sleep : callable, optional

    Returns
    -------
    int
        The number of the batch, for the option ``asOfBatch`` of a read.

    Raises
    ------
    VersionNotFoundError
        The tables have not reached the position within the time.
    OptionError
        The text is not a position, or the tables do not follow a database.
    """
    wanted = without_page_header(lsn_argument("lsn", lsn))
    store = open_store(root, storage_options)
    group_table = GroupTable(store)
    deadline_s, pause_s = clock() + timeout_s, _PAUSE_S_MIN
    while True:
        # First what was confirmed without a batch: the batch read next has everything before it.
        state = read_state(store)
        group = group_table.at()
        batch, source = group.batch, group.source
        if batch is not None and source is None:
            raise OptionError(
                f"the tables below '{store.url}' do not follow a database.",
                hint="check the path: it is the folder before the first '{' of the path that the "
                "follower writes to.",
            )
        if batch is not None and source is not None and source.is_whole:
            reached = max(parse_lsn(source.lsn), 0 if state is None else state.released)
            if reached >= wanted and batch.number is not None:
                return batch.number
        left_s = deadline_s - clock()
        if left_s <= 0:
            break
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
    newest = "there is no batch yet"
    if batch is not None and source is not None:
        joining = "" if source.is_whole else ", and tables are joining"
        newest = f"the newest batch is {batch.number} at {source.lsn}{joining}"
    raise VersionNotFoundError(
        f"the tables below '{store.url}' have not reached {lsn} after "
        f"{render_ms(round(timeout_s * 1000))}: {newest}.",
        hint="is 'upsertflow follow' running, and from this database? Else wait longer.",
    )
