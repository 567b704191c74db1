"""Which entries of a table's runs are dead: not the row of their key at a version.

An entry is dead if it is no row (a tombstone, an error), if its slice was cut away, or if another
entry wins its key by the table's own rule (`model.precedence`); a newer entry may lose to an older
one. Where the engine folds, the newest run that has a key carries its row, and all older entries
are dead; whether that row lives is asked of the folded entry, not of the carrier's own.

    vector(run, version) is a function of the manifest of that version alone

There are three ways to it. *By change*: what was dead stays dead, and the keys of the new runs are
looked up in all runs. *By manifest*: all entries are settled, range by range, as a read does. The
first costs what changed; the second makes no use of what was known, so that it checks the first.
*By deaths*: the writers of the new runs say which entries lost, and nothing is looked up; it holds
where as many rows live then as the table has (`mirror.ahead`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.mirror.vectors import Vector
from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.schema import DIFF, HASH, TableSchema, is_live
from spark_upsert.store import Store
from spark_upsert.table.entries.ahead import Deaths
from spark_upsert.table.entries.fold import fold
from spark_upsert.table.entries.lookup import hits_of
from spark_upsert.table.entries.mechanism import Hits, mechanism_of
from spark_upsert.table.entries.resolve import arrange, epochs_by_part
from spark_upsert.table.entries.snapshot import CHUNK_ROWS, Snapshot
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.run.file import RUNS, RunFile, Span
from spark_upsert.table.run.rows import Rows, RunPart

Vectors = dict[str, Vector]
"""The dead rows of runs, by the run's path."""


class _Lined(NamedTuple):
    """The entries of a range of hashes, lined up, and where each part of them lies."""

    rows: Rows
    spans: list[Span]
    epochs: list[int]

    def mark(self, vectors: Vectors, dead: Positions) -> None:
        """Let some of the rows be dead; runs without a vector are left out."""
        owners = self.rows.part_of(dead)
        for index in np.unique(owners).tolist():
            span = self.spans[index]
            vector = vectors.get(span.run.file.path)
            if vector is not None:
                own = dead[owners == index]
                vector.mark(own - self.rows.starts[index] + span.start)


def files_of(manifest: Manifest) -> dict[str, RunFile]:
    """Return the runs of a version, each once, by path."""
    return {slice_.file.path: slice_.file for slice_ in manifest.slices}


def by_manifest(store: Store, manifest: Manifest) -> Vectors:
    """Return the dead entries of every run of a version, from nothing but the version."""
    files = files_of(manifest)
    vectors = {path: Vector(file.rows) for path, file in files.items()}
    _mark_cut(store, manifest, vectors)
    snapshot = Snapshot(store, manifest)
    for chunk in snapshot.chunks():
        lined = _lined(store, manifest, chunk)
        lined.mark(vectors, np.flatnonzero(_settled(manifest.schema, lined)))
        RUNS.settle(len(lined.rows))
    return vectors


def by_change(
    store: Store, manifest: Manifest, known: Mapping[str, Vector], new: Collection[str]
) -> Vectors:
    """Return the dead entries of runs, from those that were dead and the keys of new runs.

    Parameters
    ----------
    manifest : Manifest
        The version that is wanted. No overwrite lies between it and what is known.
    known : mapping of str to Vector
        The vectors of runs at an older version. Runs of the manifest that are neither here nor new
        are all dead, and stay so.
    new : collection of str
        Paths of the runs that the manifest gained since.
    """
    vectors = _begun(store, manifest, known, new)
    for path in new:
        for span in _spans_of(store, manifest, path):
            for start in range(span.start, span.stop, CHUNK_ROWS):
                chunk = Span(span.run, start, min(start + CHUNK_ROWS, span.stop))
                _mark_by_keys(store, manifest, chunk, vectors)
                RUNS.settle(len(chunk))
    return vectors


def by_deaths(
    store: Store,
    manifest: Manifest,
    known: Mapping[str, Vector],
    new: Collection[str],
    deaths: Sequence[Deaths],
) -> Vectors | None:
    """Return the dead entries of runs, from those that were dead and what writers told.

    Parameters
    ----------
    manifest, known, new
        As of `by_change`.
    deaths : sequence of Deaths
        What the writers of the versions since told.

    Returns
    -------
    Vectors or None
        None if deaths are missing: as many rows would live as the table does not have.
    """
    vectors = _begun(store, manifest, known, new)
    for told in deaths:
        for path in told.keys() & vectors.keys():
            vectors[path].mark(told[path].astype(np.int64))
    live = sum(vector.rows - vector.count for vector in vectors.values())
    return vectors if live == manifest.live_rows else None


def _begun(
    store: Store, manifest: Manifest, known: Mapping[str, Vector], new: Collection[str]
) -> Vectors:
    """Return vectors of what was dead before, and of what lies outside of its slices."""
    files = files_of(manifest)
    vectors = {path: known[path].copy() for path in known if path in files}
    vectors |= {path: Vector(files[path].rows) for path in new}
    _mark_cut(store, manifest, vectors)
    return vectors


def _mark_cut(store: Store, manifest: Manifest, vectors: Vectors) -> None:
    """Let the rows outside of the live ranges of their runs be dead."""
    for path, vector in vectors.items():
        reached = 0
        for span in _spans_of(store, manifest, path):
            vector.mark_range(reached, max(reached, span.start))
            reached = max(reached, span.stop)
        vector.mark_range(reached, vector.rows)


def _spans_of(store: Store, manifest: Manifest, path: str) -> list[Span]:
    """Return the live rows of a run, ascending."""
    own = [slice_ for slice_ in manifest.slices if slice_.file.path == path]
    spans = [Span.within(RUNS.open(store, each.file), each.live) for each in own]
    return sorted((span for span in spans if len(span)), key=lambda span: span.start)


def _lined(store: Store, manifest: Manifest, hash_range: HashRange = ALL_HASHES) -> _Lined:
    """Line up the entries with hashes in a range, as `Snapshot.parts` does."""
    spans: list[Span] = []
    epochs: list[int] = []
    for slice_, run in Snapshot(store, manifest).opened(hash_range):
        span = Span.within(run, slice_.live.intersect(hash_range))
        if len(span):
            spans.append(span)
            epochs.append(slice_.epochs.lower)
    return _Lined(Rows(manifest.schema, list(map(RunPart, spans))), spans, epochs)


def _settled(schema: TableSchema, lined: _Lined) -> Mask:
    """Return which of some rows are dead, where these are all entries of their keys."""
    rows, dead = lined.rows, np.ones(len(lined.rows), dtype=np.bool_)
    if not len(rows):
        return dead
    if schema.engine.folds:
        order, begins = arrange(rows, None, lambda _: [])
        lasts = order[np.flatnonzero(np.append(begins[1:], True))]
        made = fold(rows, epochs=epochs_by_part(rows, lined.epochs)).rows
        [diffs] = made.take([DIFF], np.arange(len(made)))
        dead[lasts[is_live(diffs)]] = False
        return dead
    _, wins = mechanism_of(schema).settle(rows, lined.epochs)
    return ~(is_live(_diffs(rows)) & wins)


def _diffs(rows: Rows) -> pa.Array:
    pieces = [rows.slice(i, [DIFF], 0, len(part))[0] for i, part in enumerate(rows.parts)]
    return pa.concat_arrays(pieces)


def _mark_by_keys(store: Store, manifest: Manifest, chunk: Span, vectors: Vectors) -> None:
    """Let all entries of a chunk's keys be dead but the one that is the row of its key."""
    schema = manifest.schema
    own = Rows(schema, [RunPart(chunk)])
    [hashes, *keys] = own.slice(0, [HASH, *schema.identity], 0, len(chunk))
    probes = hashes.to_numpy()
    lined = _lined(store, manifest, HashRange.spanning(probes[0], probes[-1]))
    hits = list(hits_of(lined.rows, probes, keys))
    found = mechanism_of(schema).gather(lined.rows, lined.epochs, hits, len(probes))
    [diffs] = found.rows.take([DIFF], found.at)
    row_of_key = carriers(hits, len(probes)) if schema.engine.folds else found.at.copy()
    row_of_key[~is_live(diffs)] = -1
    for each in hits:
        lined.mark(vectors, each.rows[each.rows != row_of_key[each.probes]])


def carriers(hits: Iterable[Hits], count: int) -> Positions:
    """Return the newest entry of each of some keys; parts come in the order of their epochs."""
    newest = np.full(count, -1, dtype=np.int64)
    for each in hits:
        newest[each.probes] = np.maximum(newest[each.probes], each.rows)
    return newest
