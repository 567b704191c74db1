"""Clocks: the storage's own time, and how far another may be ahead of it.

Times in the log come from the machines that commit, and only ever grow. One commit from a
clock that is far ahead would make all later versions as young as that: nothing would expire any
more, while a machine with such a clock would take every lease for lapsed. So the writer compares
its time with the storage's own where it could be wrong: at the first commit, at a commit more than
`AHEAD_MS` after the last, and at each expiry. A clock that is behind does no harm.

Source: Spanner's rule in small: an uncertain clock is bounded by one that all see.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from spark_upsert.errors import ClockError
from spark_upsert.model.durations import render_time
from spark_upsert.store import Store

Clock: TypeAlias = Callable[[], float]
"""Returns seconds since 1970."""

AHEAD_MS = 3_600_000
"""Next to an hour, the clocks of a cluster agree."""

_FOLDER = "data"
_LAST = "f" * 16
"""A probe sorts behind nearly all runs, so that few are listed with it."""


def storage_ms(store: Store) -> int | None:
    """Return the storage's time in ms since 1970: that of an object written just now.

    None if the listing does not show it yet.
    """
    probe = f"{_FOLDER}/{_LAST}{uuid.uuid4().hex[:16]}.now"
    store.put(probe, b"")
    try:
        found = [info for info in store.list(_FOLDER, after=probe[:-1]) if info.path == probe]
    finally:
        store.delete(probe)
    return int(found[0].modified_s * 1000) if found else None


def require_clock(store: Store, now_ms: int) -> None:
    """Raise if a time is far beyond the storage's own.

    Raises
    ------
    ClockError
        It is ahead by more than `AHEAD_MS`.
    """
    theirs = storage_ms(store)
    if theirs is not None and now_ms > theirs + AHEAD_MS:
        raise ClockError.ahead(store.url, render_time(now_ms), render_time(theirs))
