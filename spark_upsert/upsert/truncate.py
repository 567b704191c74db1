"""A truncate at an order key: all that is not younger goes, and stays away if it comes late.

It becomes a version of its own, right before the epoch in which it came: an overwrite by the
entries that are younger (there are some only where changes arrived out of order). The version's
**low-water mark** is the truncate's order key: so a row before the truncate is late, be it of the
same epoch, of another task or of a later one, by the rule that guards forgotten deletes
(`state.tombstones`).

It may be repeated: where nothing is left below the mark, there is nothing to do. A process that
dies between the two versions leaves the truncated table, and the replay of the batch goes on.

Rejected: a delete per key. A row that comes late, of a key that the table did not know, would
come back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_upsert.model.schema import DIFF, TableSchema, is_live
from spark_upsert.model.words import ordered_words
from spark_upsert.state.counters import Counters
from spark_upsert.state.log.log import new_token
from spark_upsert.state.log.manifest import Draft, Kind
from spark_upsert.state.resolve import epochs_by_part, resolve
from spark_upsert.state.run.file import RunFile, write_run
from spark_upsert.state.run.rows import Rows
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.state.tombstones import encode_mark, higher_mark, is_at_or_below

_FIELD = b"upsertflow.truncated"
"""Of a batch of commands: the mark of the youngest truncate that came among them."""


def with_truncates(
    commands: pa.RecordBatch, order: Sequence[pa.Array], schema: TableSchema
) -> pa.RecordBatch:
    """Return commands that carry truncates.

    Parameters
    ----------
    commands : pyarrow.RecordBatch
    order : sequence of pyarrow.Array, each of length n > 0
        The order keys of the truncates, without nulls, one array per `TableSchema.order` field.
    """
    columns = [c.cast(own.type) for c, own in zip(order, schema.order, strict=True)]
    words = [word for column in columns for word in ordered_words(column)]
    youngest = pa.array(np.lexsort(words[::-1])[-1:])
    known = [pa.array([True])] * (len(schema.order_fields) - len(schema.order))
    mark = encode_mark([*known, *(column.take(youngest) for column in columns)], schema)
    return commands.replace_schema_metadata({_FIELD: mark.encode()})


def truncated_at(commands: pa.RecordBatch) -> str | None:
    """Return the mark of the youngest truncate among some commands, if there is one."""
    found = (commands.schema.metadata or {}).get(_FIELD)
    return None if found is None else found.decode()


def truncation(snapshot: Snapshot, mark: str) -> Draft | None:
    """Return the draft that leaves the entries above a mark; None if there are no others.

    A pass over the whole table, a piece at a time. The entries that stay are written again; what
    is written for a version that another writer takes is left to the vacuum.
    """
    head = snapshot.manifest
    files: list[RunFile] = []
    gone_count = live_rows = 0
    for chunk in snapshot.chunks():
        parts = snapshot.parts(chunk)
        rows = Rows(head.schema, [part for part, _ in parts])
        if not len(rows):
            continue
        epochs = epochs_by_part(rows, [epoch for _, epoch in parts])
        winners = resolve(rows, epochs=epochs).winners
        order = rows.take(head.schema.order_columns, winners)
        kept = winners[~is_at_or_below(order, mark, head.schema)]
        gone_count += len(winners) - len(kept)
        if len(kept):
            columns = rows.take(head.schema.run.names, kept)
            batch = pa.RecordBatch.from_arrays(columns, schema=head.schema.run)
            live_rows += int(is_live(batch.column(DIFF)).sum())
            files.append(write_run(snapshot.store, f"data/{new_token()}.arrow", batch))
    low_water = higher_mark(mark, head.low_water, head.schema)
    if not gone_count and low_water == head.low_water:
        for file in files:
            snapshot.store.delete(file.path)
        return None
    return Draft(
        kind=Kind.OVERWRITE,
        added=tuple(files),
        low_water=low_water,
        counters=Counters(retracted=head.live_rows, restored=live_rows).to_json(),
        live_rows=live_rows,
    )
