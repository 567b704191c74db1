"""The fence: a query that has lost the root cannot write behind the new query, and little else.

Tables are not one transaction, so no single put can shut the old query out of all of them. But a
query that takes the root over says so in the group before it touches any table. So a batch that
finds the newest epoch of a table written by a query that the group did not know when the batch
began, asks the group anew before it puts its own epoch. That costs nothing while only one query
writes. Tables that the new query has not written yet show no sign of it in their logs; so a batch
also asks once every `ASK_EVERY` tables. What the old query may still write is bounded: those
tables, and the ones that are under way just then.
"""

from __future__ import annotations

from itertools import count

from spark_upsert.errors import OtherTableError
from spark_upsert.routed.group import GroupTable, newest_query
from spark_upsert.table.log.manifest import Manifest

ASK_EVERY = 32
"""Tables of a batch between two questions to the group. A question is two requests; writing so
many tables is some 200."""


class Fence:
    """Judges the puts of one batch.

    Parameters
    ----------
    group_table : GroupTable
        The group, as it was seen when the batch was allowed.
    writer : str
        The query that writes (`Transaction.writer`).
    """

    def __init__(self, group_table: GroupTable, writer: str) -> None:
        self._group_table = group_table
        self._writer = writer
        head = group_table.table.log.seen
        self._known = {writer, *(head.transactions if head else ())}
        self.lost: OtherTableError | None = None
        """The reason why the batch must not write any further table, once that is known."""
        self._begun = count()

    def begin(self) -> OtherTableError | None:
        """Return why the batch must not begin with a further table, if so; on any thread."""
        begun = next(self._begun)
        if begun and begun % ASK_EVERY == 0:
            self.look()
        return self.lost

    def refusal(self, head: Manifest) -> OtherTableError | None:
        """Return why the batch must not write behind a version of a table, if so."""
        newest = newest_query(head)
        if self.lost is None and newest is not None and newest not in self._known:
            self.look()
        return self.lost

    def look(self) -> None:
        """Ask the group which query owns the root now."""
        self.lost = self.lost or self._group_table.refusal(self._writer)

    def require(self) -> None:
        """Refuse the batch, if the root is lost."""
        if self.lost is not None:
            raise self.lost
