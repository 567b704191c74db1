"""A restore: an overwrite by the slices of an old version, which are there already.

The commit lists the old slices with the epochs that they cover, so that every rule that goes by
epochs works as it did then: which entry wins, which deletes are old enough to be forgotten, which
runs are merged. Later rows are out of the table, as if they had never been sent: order keys of the
present do not make rows of the past stale.

So the **low-water mark** is that of the old version. Deletes that were forgotten since are
tombstones again; a higher mark would reject commands that the old table would have taken, for
example those that are sent again after a mistake.

**Transactions** are no part of the contents: they say which batches a writer need not repeat, and
stay. The schema stays, too: it only ever grows, and old rows show null in new columns.

The changelog of the epoch compares the table before it with the table after it, as for any
overwrite. Epochs that were staged before the restore and sealed after it are judged again;
compactions that were planned before it are dropped (`Table.commit_compactions`).

A table that keeps the rows of a view is not restored: the query that writes it would go on with its
next batch, and the rows of the batches between would be missing. A table that keeps groups has its
position at each version (`moves`), so that the query that writes it goes on from there.

Rejected: to write the old rows anew. It costs the table's size, forgets tombstones, and loses
the epochs by which late commands are told from new ones.
"""

from __future__ import annotations

from spark_upsert.errors import DataError
from spark_upsert.table.entries.counters import Counters
from spark_upsert.table.log.kept_position import HISTORY_OF, keeps_rows
from spark_upsert.table.log.manifest import Draft, Kind, Manifest


def restoration(head: Manifest, old: Manifest, url: str) -> Draft | None:
    """Return the draft that makes the contents of ``head`` those of ``old``; pure.

    None if they are the same.

    Raises
    ------
    DataError
        The table keeps the rows of a view, or a history.
    """
    if (head.slices, head.low_water) == (old.slices, old.low_water):
        return None
    if keeps_rows(head.properties) or HISTORY_OF in head.properties:
        raise DataError(
            f"the table at '{url}' keeps the rows of a view or a history, and cannot be restored "
            f"to version {old.version}: what writes it would go on with its next batch, and what "
            "came of those between would be missing. Nothing was committed.",
            hint=f"read version {old.version} (versionAsOf), or keep the view in a new path.",
        )
    counters = Counters(retracted=head.live_rows, restored=old.live_rows)
    return Draft(
        kind=Kind.OVERWRITE,
        compacted=old.slices,
        restored=old.version,
        low_water=old.low_water,
        counters=counters.to_json(),
        live_rows=old.live_rows,
    )
