"""The whole batches that a stream with a limit takes: any number, and never a part of one.

The reader goes through the records of the group table, from the oldest batch that the stream does
not have. A record counts the rows that came; a stream may have twice as many changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.table.log.look import Look


class WholeBatches:
    """The batches of a group that lie between a stream and the newest one.

    Parameters
    ----------
    table : GroupTable
    """

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._has_all_of = -1
        """The newest version of the group table of which the stream has all, as far as known."""

    def within(
        self, newest: int, rows_max: int, has_all: Callable[[TableGroup], bool]
    ) -> TableGroup | None:
        """Return the group as of the last batch that a limit admits.

        Parameters
        ----------
        newest : int
            The version of the group table to end at.
        rows_max : int
            The limit. The first batch that the stream lacks, or has in part, is always taken.
        has_all : callable
            Returns whether the stream has all of a group, and so of the groups before it.

        Returns
        -------
        Group or None
            None if that is the newest.
        """
        with self._table.table.log.last_look() as look:
            taken: TableGroup | None = None
            rows = 0
            for group in self._behind(look, newest, has_all):
                if taken is None or group.batch != taken.batch:
                    rows += group.batch.rows if group.batch else 0
                if taken is not None and rows > rows_max:
                    return taken
                taken = group
        return None

    def _behind(
        self, look: Look, newest: int, has_all: Callable[[TableGroup], bool]
    ) -> Iterator[TableGroup]:
        """Yield the groups of which the stream does not have all, the oldest first."""
        table = self._table
        versions = range(max(look.head().since, self._has_all_of), newest + 1)
        first = bisect_left(versions, True, key=lambda each: not has_all(table.seen_by(look, each)))
        if first:
            self._has_all_of = versions[first - 1]
        for version in versions[first:]:
            if version == versions[0] or look.commit(version).is_epoch:
                yield table.seen_by(look, version)
