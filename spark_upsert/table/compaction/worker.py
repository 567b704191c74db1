"""Compaction work: merge a job's runs with bounded memory, then commit or drop the result.

A compaction is dropped if some of its ranges are no longer live at the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.keys import Mask, Positions, ordered_words
from spark_upsert.core.schema import DIFF, EPOCH, ERROR, HASH, Scope, is_live
from spark_upsert.errors import DataError
from spark_upsert.store import Store
from spark_upsert.table.compaction.policy import Job
from spark_upsert.table.log.log import Log, remove_unused
from spark_upsert.table.log.manifest import (
    Draft,
    Kind,
    Manifest,
    RemovedRange,
    Slice,
    TableVersion,
    is_applicable,
)
from spark_upsert.table.log.properties import encode_mark, higher_mark
from spark_upsert.table.run.file import RUNS, RunFile, Span, new_run_path, write_run
from spark_upsert.table.run.remote import REMOTE_RUNS, Access
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.fold import require_possible
from spark_upsert.table.state.observer import prepare
from spark_upsert.table.state.reduce import ReducedEntries, merge_function_for
from spark_upsert.table.state.resolve import epochs_by_part
from spark_upsert.table.state.snapshot import Snapshot, cut_evenly

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation, PreparedFiles


FILE_BYTES = 32 << 20
"""Approximate file size after a compaction, which needs about four times as much memory."""

FILE_BYTES_MAX = 128 << 20
"""The same for large tables, where look-ups would otherwise visit too many files."""

_FILES = 32
"""File count above which a table's files exceed `FILE_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """A job's durable output, not yet visible."""

    added: tuple[Slice, ...]
    taken: tuple[RemovedRange, ...]
    """Empty if the runs cannot be compacted: then there is nothing to commit."""
    base: TableVersion
    """The version on which the job was planned."""
    low_water: str | None = None
    """The greatest order key among the dropped tombstones."""
    forgotten: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    """The dropped tombstones' key hashes, ascending."""
    ahead: PreparedFiles | None = None
    """Files prepared for the table's mirror."""

    @property
    def base_version(self) -> int:
        return self.base.version

    def is_safe(self, store: Store, head: Manifest) -> bool:
        """Return whether no newer run holds a dropped tombstone's key.

        Such a run may hold a command stale against the tombstone.
        """
        if not len(self.forgotten):
            return True
        newer = tuple(s for s in head.slices if s.epochs.upper > self.base_version + 1)
        parts = Snapshot(store, replace(head, slices=newer)).parts(access=Access(columns=(HASH,)))
        return not any(len(np.intersect1d(self.forgotten, p.hashes)) for p, _ in parts)


def compact_runs(store: Store, manifest: Manifest, job: Job) -> CompactionResult:
    """Merge a job's runs and write the output durably.

    Notes
    -----
    Each key keeps its winning entry (`resolve`). A tombstone is dropped if no older entry remains
    below it and no late command can be stale against it (any scope but `Scope.TABLE`); with
    `Scope.TABLE`, if it is past its retention (`table.log.properties`). In a table with
    contributions, an all-zero entry is dropped, regardless of older entries (`table.state.fold`).

    A sum fitting over all epochs may overflow over some of them. Then the compaction is skipped,
    until it includes the oldest runs.
    """
    pieces = []
    taken = job.taken
    prepared = prepare(store, manifest)
    for piece_range in _piece_ranges(store, manifest, job):
        # A separate function, so only one piece is in memory.
        try:
            pieces.append(_merge_piece(store, manifest, job, piece_range, prepared))
        except DataError:
            taken = ()
            break
        RUNS.trim(rows=0)
    files = [piece.file for piece in pieces if piece.file is not None]
    # Deletes past their retention stay only if a newer run holds their key.
    is_held = job.is_oldest and all(s.epochs.upper <= job.forget_before for s in job.slices)
    mark = None
    for piece in pieces:
        mark = higher_mark(mark, piece.low_water, manifest.schema)
    nothing = np.empty(0, np.uint64)
    return CompactionResult(
        added=tuple(
            Slice(
                file=f,
                epochs=job.epochs,
                index=i if job.index is None else job.index,
                is_held=is_held and f.tombstones > 0,
            )
            for i, f in enumerate(files)
        ),
        taken=taken,
        base=manifest.version_ref,
        low_water=mark,
        forgotten=np.concatenate([nothing, *(piece.forgotten for piece in pieces)])
        if mark is not None
        else nothing,
        ahead=None if prepared is None else prepared.result(),
    )


def _piece_ranges(store: Store, manifest: Manifest, job: Job) -> list[HashRange]:
    """Divide a job's hash range into pieces, each for a file with the usual size."""
    file_bytes = _file_bytes(manifest)
    if not manifest.schema.hash_prefix:
        return job.hash_range.cut(max(1, -(-job.bytes // file_bytes)))
    runs = []
    opened = REMOTE_RUNS.open_all(
        store, [slice_.file for slice_ in job.slices], _access(manifest, job)
    )
    for slice_, hashes in zip(job.slices, (run.hashes for run in opened), strict=True):
        start, stop = slice_.live.intersect(job.hash_range).rows_of(hashes)
        runs.append((hashes[start:stop], slice_.file.bytes / slice_.file.rows))
    size = sum(len(hashes) * row_bytes for hashes, row_bytes in runs)
    return cut_evenly(job.hash_range, runs, max(1, -(-int(size) // file_bytes)))


def _access(manifest: Manifest, job: Job) -> Access:
    """Return what a job reads of its runs."""
    return Access(hash_range=job.hash_range, has_hot_prefixes=manifest.schema.hash_prefix > 0)


class _Piece(NamedTuple):
    """The compacted entries in one hash range."""

    file: RunFile | None
    forgotten: npt.NDArray[np.uint64]
    low_water: str | None


def _merge_piece(
    store: Store, manifest: Manifest, job: Job, hash_range: HashRange, ahead: Preparation | None
) -> _Piece:
    reduced, slices = _reduce_range(store, manifest, job, hash_range)
    rows, winners = reduced.rows, reduced.at
    forgotten, mark = np.empty(0, np.uint64), None
    schema = manifest.schema
    if schema.engine.multiplicity is not None:
        # An all-zero entry adds nothing to older entries, so it is dropped from any runs.
        if job.is_oldest:
            columns = rows.take(schema.columns.names, winners)
            entries = dict(zip(schema.columns.names, columns, strict=True))
            require_possible(schema, entries, store.url)
        winners = winners[is_live(rows.take([DIFF], winners)[0])]
    elif job.is_oldest:
        gone = _droppable_tombstones(Snapshot(store, manifest), job, reduced, slices)
        mark = _greatest_mark(rows, winners[gone])
        forgotten = rows.hashes[winners[gone]]
        winners = winners[~gone]
    if not len(winners):
        return _Piece(None, forgotten, mark)
    columns = rows.take(schema.run.names, winners)
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.run)
    if schema.has_quarantine:
        # A combined entry is a row, of several epochs.
        epochs = np.array([*(slice_.epochs.lower for slice_ in slices), 0], dtype=np.uint64)
        batch = with_epochs(batch, epochs[rows.part_of(winners)])
    file = write_run(store, new_run_path(), batch)
    if ahead is not None:
        ahead.write(file, batch)
    return _Piece(file, forgotten, mark)


def _file_bytes(manifest: Manifest) -> int:
    """Return the approximate file size for a compaction."""
    return min(max(FILE_BYTES, manifest.bytes // _FILES), FILE_BYTES_MAX)


def with_epochs(batch: pa.RecordBatch, epochs: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    """Set the epoch for error entries only: a compacted run has several epochs."""
    came = pc.coalesce(batch.column(EPOCH), pa.array(epochs))
    is_error = pc.equal(batch.column(DIFF), ERROR)
    index = batch.schema.get_field_index(EPOCH)
    noted = pc.if_else(is_error, came, pa.scalar(None, pa.uint64()))
    return batch.set_column(index, batch.schema.field(index), noted)


def _droppable_tombstones(
    snapshot: Snapshot, job: Job, reduced: ReducedEntries, slices: list[Slice]
) -> Mask:
    """Return which winners are droppable tombstones."""
    schema = snapshot.manifest.schema
    rows, winners = reduced.rows, reduced.at
    dead = rows.take([DIFF], winners)[0].to_numpy() < 0
    if schema.scope is not Scope.TABLE:
        return dead
    # Folded entries belong to no single slice; tombstones with an order are never dropped.
    is_old = np.array([s.epochs.upper <= job.forget_before for s in slices], dtype=np.bool_)
    is_old = np.append(is_old, False) if len(is_old) else is_old  # Combined entries are rows.
    dead &= is_old[rows.part_of(winners)] if len(is_old) else False
    row_indices = np.flatnonzero(dead)
    newer = tuple(s for s in snapshot.manifest.slices if s.epochs.lower >= job.epochs.upper)
    above = Snapshot(snapshot.store, replace(snapshot.manifest, slices=newer))
    shadowed = above.find(
        rows.hashes[winners[row_indices]],
        rows.take(schema.identity, winners[row_indices]),
        columns=(),
    )
    dead[row_indices[shadowed.present]] = False
    return dead


def _greatest_mark(rows: Rows, chosen: Positions) -> str | None:
    """Return the mark for the greatest order key among the given rows, None without an order."""
    schema = rows.schema
    if schema.scope is not Scope.TABLE or not len(chosen):
        return None
    order = rows.take(schema.order_columns, chosen)
    words = [word for column in order for word in ordered_words(column)]
    last = pa.array(np.lexsort(words[::-1])[-1:])
    return encode_mark([column.take(last) for column in order], schema)


def _reduce_range(
    store: Store, manifest: Manifest, job: Job, hash_range: HashRange
) -> tuple[ReducedEntries, list[Slice]]:
    """Return a job's reduced entries in a hash range, and their source slices."""
    schema = manifest.schema
    slices = [slice_ for slice_ in job.slices if not slice_.live.intersect(hash_range).is_empty]
    files = [slice_.file for slice_ in slices]
    opened = REMOTE_RUNS.open_all(store, files, _access(manifest, job))
    parts = [
        RunPart(Span.within(run, slice_.live.intersect(hash_range)))
        for slice_, run in zip(slices, opened, strict=True)
    ]
    rows = Rows(schema, parts)
    epochs = epochs_by_part(rows, [slice_.epochs.lower for slice_ in slices])
    return merge_function_for(schema).reduce(rows, epochs=epochs), slices


VERSION_JOBS_MAX = 16
"""Maximum compactions per version: a version costs a put, and is read by every other writer."""


def commit_compactions(
    store: Store, log: Log, compacted: Iterable[CompactionResult], *, per_version: int = 1
) -> int:
    """Commit compactions; return how many. A compaction with missing runs is dropped."""
    count = 0
    remaining = iter(compacted)
    while group := list(islice(remaining, per_version)):
        fitting: list[CompactionResult] = []

        def propose(head: Manifest) -> Draft | None:
            fitting[:] = _fitting(store, log, group, head)  # noqa: B023
            return _draft(fitting, head) if fitting else None  # noqa: B023

        if log.append(propose) is None:
            fitting.clear()
        count += len(fitting)
        for compaction in group:
            if not any(compaction is committed for committed in fitting):
                files = [slice_.file for slice_ in compaction.added]
                remove_unused(store, log, files, base_version=compaction.base_version)
    return count


def _fitting(
    store: Store, log: Log, group: Sequence[CompactionResult], head: Manifest
) -> list[CompactionResult]:
    """Return the compactions that may follow a version together."""
    fitting: list[CompactionResult] = []
    taken: dict[str, list[HashRange]] = {}
    for each in group:
        log.require_descent(head, each.base, "the compaction")
        if not each.taken or not head.accepts(each.base_version):
            continue
        # After a restore, its input may be live again below other runs.
        between = log.commits(each.base_version + 1, head.upper)
        if any(commit.restored is not None for commit in between):
            continue
        is_taken = any(
            other.overlaps(removed.hash_range)
            for removed in each.taken
            for other in taken.get(removed.path, ())
        )
        if is_taken or not is_applicable(head, each.taken) or not each.is_safe(store, head):
            continue
        fitting.append(each)
        for removed in each.taken:
            taken.setdefault(removed.path, []).append(removed.hash_range)
    return fitting


def _draft(fitting: Sequence[CompactionResult], head: Manifest) -> Draft:
    """Return the version for compactions, immediately after a head."""
    mark = None
    for each in fitting:
        mark = higher_mark(mark, each.low_water, head.schema)
    return Draft(
        kind=Kind.COMPACT,
        compacted=tuple(slice_ for each in fitting for slice_ in each.added),
        taken=tuple(removed for each in fitting for removed in each.taken),
        live_rows=head.live_rows,
        low_water=mark and higher_mark(mark, head.low_water, head.schema),
    )
