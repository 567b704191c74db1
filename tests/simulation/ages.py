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
    """
    last = max((v for v, ms in times_ms.items() if ms <= transaction.number), default=-1)
    return [
        Command(key, None, placed.command.order)
        for key, placed in standing.items()
        if placed.version <= last
    ]
