"""The fence: who has lost the root comes into no table behind the new query, and into few others.

Tables are not one transaction, so that no single put can shut the old query out of all of them. But
a query that takes the root over says so in the group before it touches any table. So whoever finds
the newest epoch of a table to be of a query that the group did not know when the batch began, asks
the group anew before it puts its own. That costs nothing as long as nobody else writes. Of the
tables that the new query has not written no log tells; so each batch asks once for so many tables,
too, and what it may still bring is bounded: those, and the ones that are under way just then.
"""

from __future__ import annotations

from itertools import count

from spark_upsert.errors import OtherTableError
from spark_upsert.routed.group import GroupTable, newest_query
from spark_upsert.table.log.manifest import Manifest

ASK_EVERY = 32
"""Tables of a batch between two times that the group is asked. A look is two requests, and so many
tables are some 200."""


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
        self._begun = count()

    def begin(self) -> OtherTableError | None:
        """Return why a batch is not to begin with a further table; on any thread."""
        begun = next(self._begun)
        if begun and begun % ASK_EVERY == 0:
            self.look()
        return self.lost

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
