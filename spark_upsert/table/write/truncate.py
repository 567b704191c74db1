"""Overwrites from existing slices: truncate at an order key, restore an old version.

Both commit one version whose low-water mark makes older rows late, as forgotten deletes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.core.casts import convert
from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.keys import ordered_words
from spark_upsert.core.precedence import Interval
from spark_upsert.core.schema import DIFF, TableSchema, is_live
from spark_upsert.errors import DataError
from spark_upsert.table.compaction.worker import with_epochs
from spark_upsert.table.log.manifest import Draft, Kind, Manifest, Slice
from spark_upsert.table.log.properties import encode_mark, higher_mark, is_at_or_below
from spark_upsert.table.log.view_position import HISTORY_OF, keeps_rows
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.state.reduce import mechanism_of
from spark_upsert.table.state.resolve import epochs_by_part
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.scratch import Scratch

_FIELD = b"upsertflow.truncated"
"""Metadata field on a command batch with its youngest truncate's mark."""


def with_truncates(
    commands: pa.RecordBatch, order: Sequence[pa.Array], schema: TableSchema
) -> pa.RecordBatch:
    """Return commands that carry truncates."""
    columns = [
        convert(c, order_field.type) for c, order_field in zip(order, schema.order, strict=True)
    ]
    words = [word for column in columns for word in ordered_words(column)]
    youngest = pa.array(np.lexsort(words[::-1])[-1:])
    known_columns = [pa.array([True])] * (len(schema.order_fields) - len(schema.order))
    mark = encode_mark([*known_columns, *(column.take(youngest) for column in columns)], schema)
    return with_truncate(commands, mark)


def with_truncate(commands: pa.RecordBatch, mark: str | None) -> pa.RecordBatch:
    """Attach a truncate mark to commands, which may be empty; None: no truncate."""
    if mark is None:
        return commands
    return commands.replace_schema_metadata(
        {**(commands.schema.metadata or {}), _FIELD: mark.encode()}
    )


def truncated_at(commands: pa.RecordBatch) -> str | None:
    """Return the youngest truncate's mark among the commands, or None."""
    recorded = (commands.schema.metadata or {}).get(_FIELD)
    return None if recorded is None else recorded.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedVersion:
    """A version, and its contents after a truncate."""

    before: Manifest
    after: Manifest
    """The table after the truncate, against which the epoch's rows are decided."""

    @property
    def is_needed(self) -> bool:
        """Whether it changes anything."""
        return (self.before.slices, self.before.low_water) != (
            self.after.slices,
            self.after.low_water,
        )

    def with_rows(self, rows: Draft) -> Draft:
        """Return an epoch's draft, made on ``after``, with the truncate included.

        A retained row that a command changes is counted once, by the command's outcome.
        """
        if not self.is_needed:
            return rows
        counters = Counters.from_json(rows.counters)
        met = counters.result_count
        contents = Counters(
            retracted=self.before.live_rows - met, restored=self.after.live_rows - met
        )
        return replace(
            rows,
            kind=Kind.OVERWRITE,
            compacted=self.after.slices,
            low_water=self.after.low_water,
            counters=(counters + contents).to_json(),
        )


def truncated(snapshot: Snapshot, mark: str, scratch: Scratch) -> TruncatedVersion:
    """Return a truncate's result: the entries above its mark.

    One pass over the complete table, piece by piece. Pieces with removed entries are rewritten; the
    others are reused. The mark keeps out late rows of unknown keys, which deletes per key would
    not.
    """
    head = snapshot.manifest
    pieces = [_above(snapshot, chunk, mark, scratch) for chunk in snapshot.chunks()]
    slices = tuple(slice_ for piece in pieces for slice_ in piece.slices)
    after = replace(
        head,
        slices=slices if any(piece.is_cut for piece in pieces) else head.slices,
        live_rows=sum(piece.live_rows for piece in pieces),
        low_water=higher_mark(mark, head.low_water, head.schema),
        forgot=head.upper,
    )
    return TruncatedVersion(before=head, after=after)


class _Piece(NamedTuple):
    """The remainder of a hash range after a truncate."""

    slices: tuple[Slice, ...]
    live_rows: int
    is_cut: bool
    """Whether any entries are removed."""


def _above(snapshot: Snapshot, hashes: HashRange, mark: str, scratch: Scratch) -> _Piece:
    schema = snapshot.manifest.schema
    slices = [slice_ for slice_ in snapshot.manifest.slices if slice_.overlaps(hashes)]
    parts = snapshot.parts(hashes)
    rows = Rows(schema, [part for part, _ in parts])
    if not len(rows):
        return _Piece((), 0, is_cut=False)
    epochs = epochs_by_part(rows, [epoch for _, epoch in parts])
    reduced = mechanism_of(schema).reduce(rows, epochs=epochs)
    rows, winners = reduced.rows, reduced.at
    remaining = winners[~is_at_or_below(rows.take(schema.order_columns, winners), mark, schema)]
    live_rows = int(is_live(rows.take([DIFF], remaining)[0]).sum())
    if len(remaining) == len(winners):
        untouched = (replace(slice_, live=slice_.live.intersect(hashes)) for slice_ in slices)
        return _Piece(tuple(untouched), live_rows, is_cut=False)
    if not len(remaining):
        return _Piece((), 0, is_cut=True)
    batch = pa.RecordBatch.from_arrays(rows.take(schema.run.names, remaining), schema=schema.run)
    if schema.has_quarantine:
        came = np.array([epoch for _, epoch in parts], dtype=np.uint64)
        batch = with_epochs(batch, came[rows.part_of(remaining)])
    covered = Interval(
        lower=min(slice_.epochs.lower for slice_ in slices),
        upper=max(slice_.epochs.upper for slice_ in slices),
    )
    return _Piece((Slice(file=scratch.write(batch), epochs=covered),), live_rows, is_cut=True)


def restoration(head: Manifest, old: Manifest, url: str) -> Draft | None:
    """Return the draft that restores ``old``'s contents on top of ``head``; pure.

    None if they are the same. Slices keep their epochs and the low-water mark is that of ``old``,
    so that all rules work as they did then. Transactions and schema stay. A table that stores a
    view's rows is not restored: its query would skip the batches between.
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
