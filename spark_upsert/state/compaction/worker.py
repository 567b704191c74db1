"""Merge the runs of a job into one run: bounded memory, nothing decided here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.hashing import even_cuts
from spark_upsert.schema import DIFF, Scope
from spark_upsert.state.compaction.policy import Job
from spark_upsert.state.log import new_token
from spark_upsert.state.manifest import Manifest, Slice, Taken
from spark_upsert.state.resolve import epochs_by_part, resolve
from spark_upsert.state.rows import Rows, RunPart
from spark_upsert.state.run import RUNS, Span, write_run
from spark_upsert.store import Store

FILE_BYTES = 128 << 20
"""A merged run is cut into files of about this size, so that one fits in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The durable, not yet visible outcome of a job."""

    added: tuple[Slice, ...]
    taken: tuple[Taken, ...]


def merge(store: Store, manifest: Manifest, job: Job) -> Merged:
    """Merge the runs of a job and write the outcome durably.

    Notes
    -----
    Each key keeps its winning entry (`resolve`). A tombstone goes if nothing older is left
    below it and no late command can be stale against it (any scope but `Scope.TABLE`).
    """
    count = max(1, -(-job.bytes // FILE_BYTES))
    added = []
    for lower, upper in even_cuts(count, job.hash_lower, job.hash_upper):
        batch = _merged(store, manifest, job, lower, upper)
        if batch.num_rows:
            file = write_run(store, f"data/{new_token()}.arrow", batch)
            added.append(Slice(file=file, epochs=job.epochs, index=len(added)))
    return Merged(added=tuple(added), taken=job.taken)


def _merged(store: Store, manifest: Manifest, job: Job, lower: int, upper: int) -> pa.RecordBatch:
    schema = manifest.schema
    parts, epochs = [], []
    for part in job.slices:
        low, high = max(lower, part.hash_lower), min(upper, part.hash_upper)
        if low < high:
            parts.append(RunPart(Span.within(RUNS.open(store, part.file), low, high)))
            epochs.append(part.epochs.lower)
    rows = Rows(schema, parts)
    winners = resolve(rows, epochs=epochs_by_part(rows, epochs)).winners
    if job.is_oldest and schema.scope is not Scope.TABLE:
        winners = winners[np.asarray(rows.take([DIFF], winners)[0]) > 0]
    return pa.RecordBatch.from_arrays(rows.take(schema.run.names, winners), schema=schema.run)
