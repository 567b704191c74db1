"""A table at one version (`Snapshot`): rows, entries and look-ups by hash range.

Memory is bounded by `CHUNK_ROWS` for any table size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange, hash_keys, order_of
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.schema import (
    DIFF,
    EPOCH,
    ERROR,
    HASH,
    RAW_KEY,
    RAW_VALUE,
    REASON,
    TableSchema,
    is_live,
)
from spark_upsert.core.threads import map_in_order
from spark_upsert.plan.join_keys import codes, first_occurrences
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest, Slice
from spark_upsert.table.run.file import RUNS, Run, Span
from spark_upsert.table.run.remote import REMOTE_RUNS, Access, share_of_limit
from spark_upsert.table.run.rows import Part, PickedPart, Rows, RunPart
from spark_upsert.table.state.lookup import Prefixes, as_stored, find, neighbours_within
from spark_upsert.table.state.reduce import ABSENT, EntryMatches, RowsByKey, merge_function_for
from spark_upsert.table.state.registers import are_rows, are_unknown, unknown_in
from spark_upsert.table.state.resolve import are_disjoint

_SAMPLES_PER_PIECE = 16
"""A piece exceeds its share by at most a sixteenth, or by one hash's entries."""


def cut_evenly(
    hash_range: HashRange, runs: Sequence[tuple[npt.NDArray[np.uint64], float]], count: int
) -> list[HashRange]:
    """Cut a range into at most ``count >= 1`` neighbours with about the same weight each."""
    hashes, weights = [], []
    for run_range, weight in runs:
        step = max(1, len(run_range) // (_SAMPLES_PER_PIECE * count))
        sample = run_range[step // 2 :: step]
        hashes.append(sample)
        weights.append(np.full(len(sample), len(run_range) * weight / max(1, len(sample))))
    if count == 1 or not hashes:
        return [hash_range]
    drawn = np.concatenate(hashes)
    order = np.argsort(drawn, kind="stable")
    reached = np.cumsum(np.concatenate(weights)[order])
    if not len(reached):
        return [hash_range]
    shares = reached[-1] * np.arange(1, count) / count
    indices = np.minimum(np.searchsorted(reached, shares), len(order) - 1)
    return _between(hash_range, drawn[order][indices].tolist())


class HashHistogram:
    """Entry distribution over a range, estimated from the log without opening files.

    The log records each file's row count, its bounds, and its crowded prefixes
    (`RunFile.crowds`). Elsewhere entries are assumed to be uniform.

    Parameters
    ----------
    hash_range : HashRange
    slices : iterable of Slice
    """

    def __init__(self, hash_range: HashRange, slices: Iterable[Slice]) -> None:
        self._range = hash_range
        # In whole numbers: beside a narrow file, a wide one would be lost in a float.
        change: dict[int, int] = {}
        for slice_ in slices:
            for part, rows in slice_.file.spread():
                part_range = part.intersect(slice_.live).intersect(hash_range)
                if not part_range.is_empty:
                    rows_per_hash = rows * HASH_END // part.width
                    change[part_range.first] = change.get(part_range.first, 0) + rows_per_hash
                    change[part_range.end] = change.get(part_range.end, 0) - rows_per_hash
        self._bounds = sorted(change)
        density = accumulate(change[bound] for bound in self._bounds)
        widths = (end - first for first, end in pairwise(self._bounds))
        held = [rate * width for rate, width in zip(density, widths, strict=False)]
        self._reached = list(accumulate(held, initial=0))

    @property
    def rows(self) -> int:
        """About how many entries there are."""
        return -(-self._reached[-1] // HASH_END)

    def hash_at(self, number: int, count: int) -> int:
        """Return the hash bounding the first ``number`` of ``count`` equal entry shares."""
        share, reached, bounds = self._reached[-1] * number // count, self._reached, self._bounds
        if not reached[-1]:
            return self._range.first + self._range.width * number // count
        if share == reached[-1]:
            return self._range.end
        at = bisect_right(reached, share) - 1
        held = reached[at + 1] - reached[at]
        return bounds[at] + (share - reached[at]) * (bounds[at + 1] - bounds[at]) // held


def cut_by_files(
    hash_range: HashRange, slices: Iterable[Slice], count: int, *, is_uniform: bool
) -> list[HashRange]:
    """Cut a range into pieces with similar entry counts, by the log alone (`HashHistogram`)."""
    if is_uniform or count == 1:
        return hash_range.cut(count)
    spread = HashHistogram(hash_range, slices)
    if not spread.rows:
        return hash_range.cut(count)
    return _between(hash_range, [spread.hash_at(number, count) for number in range(1, count)])


def common(hash_range: HashRange, cuts: Iterable[Sequence[HashRange]]) -> list[HashRange]:
    """Return the common refinement of several cuts: each piece is within one piece of every cut."""
    return _between(hash_range, [piece.first for pieces in cuts for piece in pieces])


def _between(hash_range: HashRange, bounds: Iterable[int]) -> list[HashRange]:
    inner = {int(bound) for bound in bounds if hash_range.first < bound < hash_range.end}
    ends = [hash_range.first, *sorted(inner), hash_range.end]
    return [HashRange(first, end) for first, end in pairwise(ends)]


CHUNK_ROWS = 1 << 17
"""Entries per read chunk; large enough to make the per-chunk cost negligible."""

CHUNK_BYTES = 64 << 20
"""Bytes per read chunk, by the runs' average row size; less if several readers share it."""

_READ_AHEAD = 2
"""Chunks fetched from remote runs while another one is processed."""

_SMALL_BYTES = 1 << 20
"""Pieces below this are put together."""

_Piece = tuple[list[pa.Array], Mask]
"""Entry columns, followed by their diffs, and the winner mask."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version."""

    store: Store
    manifest: Manifest

    def parts(
        self, hash_range: HashRange = ALL_HASHES, access: Access | None = None
    ) -> list[tuple[Part, int]]:
        """Return the entries with hashes in a range: parts with their epochs; as `opened`."""
        live_parts: list[tuple[Part, int]] = []
        for slice_, run in self.opened(hash_range, access):
            span = Span.within(run, slice_.live.intersect(hash_range))
            if len(span):
                live_parts.append((RunPart(span), slice_.epochs.lower))
        return live_parts

    def opened(
        self, hash_range: HashRange = ALL_HASHES, access: Access | None = None
    ) -> Iterator[tuple[Slice, Run]]:
        """Yield the slices with hashes in a range, and their runs.

        With an access by key, only the slices that may hold one of the keys.
        """
        access = access or Access(hash_range=hash_range)
        if self.manifest.schema.hash_prefix:
            access = replace(access, has_hot_prefixes=True)
        probes = access.probes
        ranges = (
            None
            if probes is None
            else (probes, probes if access.probe_ends is None else access.probe_ends)
        )
        slices: Sequence[Slice] = self.manifest.slice_list.within(hash_range, ranges)
        if probes is not None:
            slices = [s for s in slices if access.count_probes(s.live.intersect(hash_range))]
        runs = REMOTE_RUNS.open_all(self.store, [slice_.file for slice_ in slices], access)
        return zip(slices, runs, strict=True)

    def find(
        self,
        hashes: npt.NDArray[np.uint64],
        keys: Sequence[pa.Array],
        columns: Sequence[str] | None = None,
    ) -> EntryMatches:
        """Find entries by distinct keys (`lookup.find`).

        Parameters
        ----------
        columns : sequence of str, optional
            The columns read of the entries, besides those that identify and order them; by default
            all. It is a hint: others are fetched when they are read.
        """
        schema = self.manifest.schema
        if not len(hashes):
            return EntryMatches(Rows(schema, []), np.empty(0, dtype=np.int64))
        names = columns_to_find(schema, columns)
        access = Access(columns=names, probes=hashes)
        parts = self.parts(HashRange.spanning(hashes[0], hashes[-1]), access)
        REMOTE_RUNS.prefetch([part for part, _ in parts], hashes, names)
        return find(schema, parts, hashes, keys)

    def look_up(self, keys: Sequence[pa.Array], columns: Sequence[str] | None = None) -> RowsByKey:
        """Return the rows for the given keys.

        Each run is searched once for all keys. Only run blocks with a requested row are read,
        in hash order.
        """
        schema = self.manifest.schema
        names = list(schema.columns.names) if columns is None else list(columns)
        keys = [as_stored(v, schema, name) for v, name in zip(keys, schema.keys, strict=True)]
        hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
        order = order_of(hashes)
        probe_order: Positions | None = None
        if not bool((np.diff(hashes[order]) > 0).all()):
            # A folding engine would fold the entry of a key sought twice with itself.
            [numbers] = codes(keys)
            first = first_occurrences(numbers)
            probe_order, order = first[numbers], first[order_of(hashes[first])]
        sought = [key.take(pa.array(order)) for key in keys]
        if RAW_KEY in schema.identity:
            sought.append(pa.nulls(len(order), pa.binary()))
        columns_only = replace(self.manifest, schema=schema.for_columns(names))
        matches = Snapshot(self.store, columns_only).find(hashes[order], sought, [*names, DIFF])
        hit = np.flatnonzero(matches.present)
        *taken, diffs = matches.rows.take([*names, DIFF], matches.at[hit])
        live = are_rows(matches.rows, matches.at[hit], diffs)
        if not bool(live.all()):
            # Column by column: a batch without columns has no rows of which some could be left.
            taken = [column.filter(pa.array(live)) for column in taken]
        fields = pa.schema([schema.run.field(name) for name in names])
        rows = pa.RecordBatch.from_arrays(taken, schema=fields)
        at = np.full(len(hashes), ABSENT, dtype=np.int64)
        at[order[hit[live]]] = np.arange(int(live.sum()))
        return RowsByKey(rows, at if probe_order is None else at[probe_order])

    def read(
        self, columns: Sequence[str] | None = None, *, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with hashes in a range, each key once, in any order."""
        names = list(self.manifest.schema.columns.names) if columns is None else list(columns)
        schema = self.manifest.schema.for_columns(names)
        marks = schema.run_marks
        access = Access(columns=[*names, HASH, DIFF, *marks], hash_range=hash_range)

        def fetched_parts(chunk: HashRange) -> list[tuple[Part, int]]:
            parts = self.parts(chunk, access)
            is_shared = not are_disjoint([part for part, _ in parts])  # Then keys are compared.
            read = (
                columns_to_find(schema, [*names, HASH])
                if is_shared
                else [*names, DIFF, *(marks if schema.hides_unknown else ())]
            )
            REMOTE_RUNS.prefetch_rows([part for part, _ in parts], read)
            return parts

        slices = self.manifest.slice_list.within(hash_range)
        is_remote = any(self.store.needs_fetch(slice_.file.path) for slice_ in slices)
        threads = _READ_AHEAD if is_remote else 1
        for parts in map_in_order(fetched_parts, self.chunks(hash_range), threads):
            yield from self._winning_rows(parts, names)

    def having_prefix(
        self, values: Sequence[pa.Array], columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the given key prefixes, each once, in any order.

        It reads the prefixes' hash ranges, and in these the blocks with the keys; the cost is
        proportional to the matching rows.
        """
        prefixes = Prefixes.of(self.manifest.schema, values)
        names = self.manifest.schema.columns.names if columns is None else columns
        for few in prefixes.split_by_hash_range():
            yield from self._having(few, list(names) or list(prefixes.names))

    def count_having_prefix(self, values: Sequence[pa.Array]) -> int:
        """Return the entry count for the given key prefixes; it may include superseded entries."""
        return sum(
            int(prefix.positions_in(run, slice_.occupied).counts.sum())
            for prefix in Prefixes.of(self.manifest.schema, values).split_by_hash_range()
            for slice_, run in self.opened(prefix.spanning, prefix.access(()))
        )

    def _having(self, wanted: Prefixes, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows for a bounded number of prefixes."""
        requested = set(names)
        read = [*names, *(name for name in wanted.names if name not in requested)]
        for parts in self._parts_having(wanted, read):
            batches = map(wanted.filter, self._winning_rows(parts, read))
            yield from (batch.select(names) for batch in batches if batch.num_rows)
            RUNS.trim(rows=0)

    def _parts_having(
        self, wanted: Prefixes, names: Sequence[str]
    ) -> Iterator[list[tuple[Part, int]]]:
        """Yield the prefixes' entries, about `CHUNK_ROWS` at a time, with each key complete."""
        opened = list(self.opened(wanted.spanning, wanted.access([*names, DIFF])))
        bounds = [wanted.positions_in(run, slice_.occupied) for slice_, run in opened]
        counts = sum(
            (run_bounds.counts for run_bounds in bounds), np.zeros(len(wanted.firsts), np.int64)
        )
        for low, high in neighbours_within(counts, CHUNK_ROWS):
            if counts[low] > CHUNK_ROWS:
                hot = HashRange.spanning(wanted.firsts[low], wanted.lasts[low])
                yield from map(self.parts, self.chunks(hot))
                continue
            picked = (
                (PickedPart(run, run_bounds.positions(low, high)), slice_.epochs.lower)
                for (slice_, run), run_bounds in zip(opened, bounds, strict=True)
            )
            yield [(part, epoch) for part, epoch in picked if len(part)]

    def _winning_rows(
        self, parts: Sequence[tuple[Part, int]], names: list[str]
    ) -> list[pa.RecordBatch]:
        """Return the rows among entries complete for their keys."""
        schema = self.manifest.schema.for_columns(names)
        fields = pa.schema([schema.columns.field(name) for name in names])
        rows = Rows(schema, [part for part, _ in parts])
        rows, wins = merge_function_for(schema).mark_winners(rows, [epoch for _, epoch in parts])
        if schema.hides_unknown:
            wins &= ~are_unknown(rows, np.arange(len(rows)))
        pieces = [
            (rows.slice(index, [*names, DIFF], 0, len(part)), wins[start : start + len(part)])
            for index, (part, start) in enumerate(zip(rows.parts, rows.starts, strict=False))
        ]
        live_pieces = (_live_rows(piece, names, fields) for piece in _together(pieces))
        return [batch for batch in live_pieces if batch.num_rows]

    def chunks(self, hash_range: HashRange = ALL_HASHES, *, at_least: int = 1) -> list[HashRange]:
        """Cut a hash range into pieces with about `CHUNK_ROWS` entries each."""
        if self.manifest.schema.hash_prefix:
            return self._even_chunks(hash_range, at_least)
        rows = size = 0.0
        for slice_ in self.manifest.slice_list.within(hash_range):
            stored = slice_.file.hash_range
            share = stored.intersect(hash_range).width / stored.width
            rows += slice_.file.rows * share
            size += slice_.file.bytes * share
        count = max(at_least, int(rows // CHUNK_ROWS), int(size // share_of_limit(CHUNK_BYTES)))
        return hash_range.cut(count)

    def _even_chunks(self, hash_range: HashRange, at_least: int) -> list[HashRange]:
        """Cut a hash range evenly by entry count, as sampled from the runs."""
        runs = []
        for slice_, run in self.opened(hash_range, Access(columns=(HASH,), hash_range=hash_range)):
            start, stop = slice_.live.intersect(hash_range).rows_of(run.hashes)
            row_bytes = slice_.file.bytes / slice_.file.rows
            weight = max(1 / CHUNK_ROWS, row_bytes / share_of_limit(CHUNK_BYTES))
            runs.append((run.hashes[start:stop], weight))
        count = max(at_least, int(sum(len(hashes) * weight for hashes, weight in runs)))
        return cut_evenly(hash_range, runs, count)


def columns_to_find(schema: TableSchema, columns: Sequence[str] | None) -> Sequence[str]:
    """Return the columns read by a look-up; an engine that folds reads all."""
    if columns is None or schema.engine.folds:
        return schema.run.names
    identity = () if schema.hash_is_identity else schema.identity
    found = (*identity, *schema.order_columns, DIFF, *schema.run_marks, *columns)
    return [*dict.fromkeys(found)]


def _together(pieces: list[_Piece]) -> list[_Piece]:
    """Combine small pieces: row selection in a piece has a nearly constant cost."""
    is_small = [sum(column.nbytes for column in columns) < _SMALL_BYTES for columns, _ in pieces]
    if sum(is_small) < 2:
        return pieces
    columns, wins = zip(*compress(pieces, is_small), strict=True)
    combined = [pa.concat_arrays(chunks) for chunks in zip(*columns, strict=True)]
    return [*compress(pieces, np.logical_not(is_small)), (combined, np.concatenate(wins))]


def _live_rows(piece: _Piece, names: list[str], fields: pa.Schema) -> pa.RecordBatch:
    """Return the table rows among a piece's winning entries."""
    columns, wins = piece
    live = is_live(columns[-1]) & wins
    # Without columns there is still a number of rows.
    batch = pa.RecordBatch.from_arrays(columns, schema=fields.append(_DIFF_FIELD))
    if not bool(live.all()):
        batch = batch.filter(pa.array(live))
    return batch.select(names) if names else batch


_DIFF_FIELD = pa.field(DIFF, pa.int8(), nullable=False)


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
    """Yield the error entries with hashes in a range, and the rows hidden for unknown values.

    In any order. The hidden rows are found by a read of all keys.
    """
    manifest = snapshot.manifest
    schema = manifest.schema
    if schema.hides_unknown:
        for chunk in snapshot.chunks(hash_range):
            batch = _hidden(schema, snapshot.parts(chunk))
            if batch.num_rows:
                yield batch
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


def count_unknown(snapshot: Snapshot) -> int:
    """Return the number of rows with an unknown value, shown or hidden, by a read of all keys."""
    schema = snapshot.manifest.schema
    if not schema.unchanged:
        return 0
    return sum(len(_unknown_rows(schema, snapshot.parts(c))[1]) for c in snapshot.chunks())


def _unknown_rows(schema: TableSchema, parts: Sequence[tuple[Part, int]]) -> tuple[Rows, Positions]:
    """Return the rows with an unknown value among entries complete for their keys."""
    rows = Rows(schema, [part for part, _ in parts])
    combined, wins = merge_function_for(schema).mark_winners(rows, [epoch for _, epoch in parts])
    at = np.flatnonzero(wins)
    return combined, at[are_unknown(combined, at)]


def _hidden(schema: TableSchema, parts: Sequence[tuple[Part, int]]) -> pa.RecordBatch:
    """Return the rows hidden for unknown values among entries complete for their keys."""
    combined, at = _unknown_rows(schema, parts)
    epochs = np.array([epoch for _, epoch in parts], dtype=np.int64)
    keys = combined.take(schema.keys, at)
    # A combined row came with the newest of these entries.
    newest = int(epochs.max(initial=0))
    came = [*epochs.tolist(), newest]
    part_epochs = np.array(came, dtype=np.int64)[np.minimum(combined.part_of(at), len(epochs))]
    nothing = pa.nulls(len(at), pa.binary())
    reasons = _unknown_reasons(combined, at)
    columns = [*keys, reasons, pa.array(part_epochs), nothing, nothing]
    return pa.RecordBatch.from_arrays(columns, schema=quarantine_schema(schema))


def _unknown_reasons(rows: Rows, at: Positions) -> pa.Array:
    """Return why rows are hidden: ``the source never sent 'x', 'y' of this row``."""
    texts = [
        pc.if_else(pa.array(unknown_in(rows, name, at)), f"'{name}'", pa.scalar(None, pa.string()))
        for name in rows.schema.unchanged
    ]
    names = pc.binary_join_element_wise(*texts, ", ", null_handling="skip")
    return pc.binary_join_element_wise("the source never sent ", names, " of this row", "")


def _standing(snapshot: Snapshot, rows: Rows, errors: Positions) -> pa.RecordBatch:
    """Return the error entries not replaced by another entry, sorted by hash."""
    schema = snapshot.manifest.schema
    hashes = rows.hashes[errors]
    state = snapshot.parts(HashRange.spanning(hashes[0], hashes[-1])) if len(errors) else []
    stored_rows = find(schema, state, hashes, rows.take(schema.identity, errors))
    # An identity may have error entries in several runs: they all lead to the current one.
    at = np.unique(stored_rows.at[stored_rows.present])
    at = at[stored_rows.rows.take([DIFF], at)[0].to_numpy() == ERROR]
    names = [*schema.keys, REASON, EPOCH, RAW_KEY, RAW_VALUE]
    columns = dict(zip(names, stored_rows.rows.take(names, at), strict=True))
    run_epochs = np.array([epoch for _, epoch in state], dtype=np.uint64)
    came = pc.coalesce(columns[EPOCH], pa.array(run_epochs[stored_rows.rows.part_of(at)]))
    columns[EPOCH] = came.cast(pa.int64())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=quarantine_schema(schema))
