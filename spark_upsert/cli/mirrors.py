"""Mirrors on the command line: one step, or one after the other as the table goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from spark_upsert.table.published import Published
from spark_upsert.table.table import Table

POLL_S = 0.2
"""How often a follower looks for a version. A look is one request."""


def follow(
    table: Table,
    publish: Callable[[], Published],
    *,
    sleep: Callable[[float], Any] = time.sleep,
) -> Iterator[Published]:
    """Publish whenever the table has a new version; yield each step that changed the mirror."""
    while True:
        done = publish()
        if done.has_changed:
            yield done
        while not table.log.has_newer():
            sleep(POLL_S)
