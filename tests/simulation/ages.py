"""What an expiry of rows must delete, by its cutoff and what the observer knows."""

from __future__ import annotations

from collections.abc import Mapping

from spark_upsert.table.log.manifest import Transaction
from tests.support.reference import Command, Identity, Placed

WRITER = "rowTtl:"
"""The prefix of the writers of expiries, as the log has them."""


def expired_by(
    transaction: Transaction,
    standing: Mapping[Identity, Placed],
    times_ms: Mapping[int, int],
    since: int,
    *,
    is_empty: bool,
) -> list[Command]:
    """Return the deletes that an expiry of rows must consist of.

    Parameters
    ----------
    transaction : Transaction
        Its number is the cutoff, in ms since 1970.
    standing : mapping
        The command of each row at the version before.
    times_ms : mapping
        The time of each version.
    since : int
        The first version that can be read at the version before.
    is_empty : bool
        Whether it has deleted nothing, as one whose past was expired may.
    """
    last = max((v for v, ms in times_ms.items() if ms <= transaction.number), default=-1)
    if last < 0 or (last < since and is_empty):
        return []
    return [
        Command(key, None, placed.command.order)
        for key, placed in standing.items()
        if placed.version <= last
    ]
