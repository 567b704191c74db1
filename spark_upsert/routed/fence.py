"""The fence: who has lost the root stays out of the tables that the new query has written.

Tables are not one transaction, so that no single put can shut the old query out of all of them. But
a query that takes the root over says so in the group before it touches any table. So whoever finds
the newest epoch of a table to be of a query that the group did not know when the batch began, asks
the group anew before it puts its own. That costs nothing as long as nobody else writes.
"""

from __future__ import annotations

from spark_upsert.errors import OtherTableError
from spark_upsert.routed.group import GroupTable, newest_query
from spark_upsert.state.log.manifest import Manifest


class Fence:
    """Judges the puts of one batch.

    Parameters
    ----------
    group_table : GroupTable
        It was looked at when the batch was allowed.
    writer : str
        As `Transaction.writer`.
    """

    def __init__(self, group_table: GroupTable, writer: str) -> None:
        self._group_table = group_table
        self._writer = writer
        head = group_table.table.log.seen
        self._known = {writer, *(head.transactions if head else ())}
        self.lost: OtherTableError | None = None
        """Why the batch is not to come into any further table, once that is known."""

    def refusal(self, head: Manifest) -> OtherTableError | None:
        """Return why nothing of the batch may come behind a version of a table."""
        newest = newest_query(head)
        if self.lost is None and newest is not None and newest not in self._known:
            self.look()
        return self.lost

    def look(self) -> None:
        """Ask the group whose the root is now."""
        self.lost = self.lost or self._group_table.refusal(self._writer)

    def require(self) -> None:
        """Refuse the batch, if the root is lost."""
        if self.lost is not None:
            raise self.lost
