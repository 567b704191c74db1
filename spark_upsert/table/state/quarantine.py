"""The quarantine: a version's error entries that no later entry has replaced (docs/adr/0009).

Only runs with errors are read; the others are searched for replacements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, order_of
from spark_upsert.core.keys import Positions
from spark_upsert.core.schema import DIFF, EPOCH, ERROR, RAW_KEY, RAW_VALUE, REASON, TableSchema
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.lookup import find
from spark_upsert.table.state.snapshot import Snapshot

_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_reason", pa.string(), nullable=False),
    pa.field("_epoch", pa.int64(), nullable=False),
    pa.field("_raw_key", pa.binary()),
    pa.field("_raw_value", pa.binary()),
)


def quarantine_schema(schema: TableSchema) -> pa.Schema:
    """Return a quarantine's columns: the table's keys, then reason, time and payload."""
    keys = [schema.columns.field(key) for key in schema.keys]
    return pa.schema([*keys, *_FIELDS])


def read_quarantine(
    snapshot: Snapshot, *, hash_range: HashRange = ALL_HASHES
) -> Iterator[pa.RecordBatch]:
    """Yield the error entries with hashes in a range, in any order."""
    manifest = snapshot.manifest
    schema = manifest.schema
    if not schema.has_quarantine:
        return
    suspects = replace(manifest, slices=tuple(s for s in manifest.slices if s.file.errors))
    holders = Snapshot(snapshot.store, suspects)
    for chunk in holders.chunks(hash_range):
        rows = Rows(schema, [part for part, _ in holders.parts(chunk)])
        if not len(rows):
            continue
        [diffs] = rows.take([DIFF], np.arange(len(rows)))
        errors = np.flatnonzero(diffs.to_numpy() == ERROR)
        batch = _standing(snapshot, rows, errors[order_of(rows.hashes[errors])])
        if batch.num_rows:
            yield batch


def _standing(snapshot: Snapshot, rows: Rows, errors: Positions) -> pa.RecordBatch:
    """Return the error entries, sorted by hash, that no other entry has replaced."""
    schema = snapshot.manifest.schema
    hashes = rows.hashes[errors]
    state = snapshot.parts(HashRange.spanning(hashes[0], hashes[-1])) if len(errors) else []
    stored_rows = find(schema, state, hashes, rows.take(schema.identity, errors))
    # An identity may have error entries in several runs: they all lead to the one that stands.
    at = np.unique(stored_rows.at[stored_rows.present])
    at = at[stored_rows.rows.take([DIFF], at)[0].to_numpy() == ERROR]
    names = [*schema.keys, REASON, EPOCH, RAW_KEY, RAW_VALUE]
    columns = dict(zip(names, stored_rows.rows.take(names, at), strict=True))
    run_epochs = np.array([epoch for _, epoch in state], dtype=np.uint64)
    came = pc.coalesce(columns[EPOCH], pa.array(run_epochs[stored_rows.rows.part_of(at)]))
    columns[EPOCH] = came.cast(pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=quarantine_schema(schema))
