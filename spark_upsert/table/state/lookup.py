"""Look-ups by key (`find`) and key prefix (`Prefixes`) in a version's runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.casts import convert
from spark_upsert.core.key_hash import HashRange, prefix_ends
from spark_upsert.core.keys import Positions, Words, equal_rows
from spark_upsert.core.schema import HASH, TableSchema
from spark_upsert.errors import CorruptionError, OptionError, SchemaError
from spark_upsert.plan.join_keys import is_among
from spark_upsert.table.run.file import RUNS, Run
from spark_upsert.table.run.format import BLOCK_BYTES
from spark_upsert.table.run.remote import Access, is_remote_part
from spark_upsert.table.run.rows import Part, Rows
from spark_upsert.table.state.reduce import EntryMatches, KeyMatches, merge_function_for

HASHES_PER_BLOCK = BLOCK_BYTES // 8

_FEW_PROBES = 4
"""Up to this many probes only their blocks are fetched, however small the part of a remote run."""

_RARE = 0.3
"""The match share below which filtering out absent probes first pays off."""


def find(
    schema: TableSchema,
    state: Sequence[tuple[Part, int]],
    hashes: npt.NDArray[np.uint64],
    keys: Sequence[pa.Array],
) -> EntryMatches:
    """Look keys up in a state."""
    rows = Rows(schema, [part for part, _ in state])
    epochs = [epoch for _, epoch in state]
    return merge_function_for(schema).gather(
        rows, epochs, iter_matches(rows, hashes, keys), len(hashes)
    )


def iter_matches(
    rows: Rows, hashes: npt.NDArray[np.uint64], keys: Sequence[pa.Array]
) -> Iterator[KeyMatches]:
    """Yield each part's matches, losers included; keys and hashes as in `find`."""
    for index, part in enumerate(rows.parts):
        probes, positions = _search(rows, index, part, hashes, keys)
        RUNS.trim(len(hashes))
        if len(probes):
            yield KeyMatches(index, probes, positions + rows.starts[index])


def _search(
    rows: Rows,
    index: int,
    part: Part,
    hashes: npt.NDArray[np.uint64],
    keys: Sequence[pa.Array],
) -> tuple[Positions, Positions]:
    """Return which keys a part holds, and where."""
    candidates, positions = _same_hashes(part, hashes)
    if rows.schema.hash_is_identity:
        return candidates, positions
    part_hashes = part.unverified_hashes
    found_keys, found_positions = [], []
    names = rows.schema.identity
    while len(candidates):
        stored = rows.take_from(index, names, positions)
        row_indices = pa.array(candidates)
        equal = equal_rows(stored, [key.take(row_indices) for key in keys])
        found_keys.append(candidates[equal])
        found_positions.append(positions[equal])
        # Another key may share the hash: its entry follows directly.
        candidates, positions = candidates[~equal], positions[~equal] + 1
        inside = positions < len(part_hashes)
        candidates, positions = candidates[inside], positions[inside]
        if len(candidates):
            shared = part.hashes_at(positions) == hashes[candidates]
            candidates, positions = candidates[shared], positions[shared]
    empty = np.empty(0, dtype=np.int64)
    return np.concatenate([empty, *found_keys]), np.concatenate([empty, *found_positions])


def is_sparse(probes: int, entries: int) -> bool:
    """Return whether so few hashes are sought among entries that most blocks stay unread."""
    return probes * HASHES_PER_BLOCK < entries


def _same_hashes(part: Part, hashes: npt.NDArray[np.uint64]) -> tuple[Positions, Positions]:
    """Return the indices of hashes found in a part, and the first entry position for each."""
    part_hashes = part.unverified_hashes
    if not len(part_hashes) or not len(hashes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, last = part.first_and_last_hash
    low = int(np.searchsorted(hashes, np.uint64(first), side="left"))
    high = int(np.searchsorted(hashes, np.uint64(last), side="right"))
    probes = hashes[low:high]
    is_few = len(probes) <= _FEW_PROBES and is_remote_part(part)
    if is_few or is_sparse(len(probes), len(part_hashes)):
        hit, indices = _search_few(part, probes)
        return hit + low, indices
    # Nearly every block would be touched: all are verified, once, and nothing is left to prove.
    part_hashes = part.hashes
    likely = None
    if _share_found(probes[:: 1 + len(probes) // 64], part_hashes) < _RARE:
        likely = part.candidates(probes)
        probes = probes[likely]
    indices = part.insertion_points(probes)
    hit = np.flatnonzero(part_hashes[np.minimum(indices, len(part_hashes) - 1)] == probes)
    return low + (hit if likely is None else likely[hit]), indices[hit]


def _share_found(probes: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64]) -> float:
    """Return the share of probes in a sequence."""
    indices = np.minimum(np.searchsorted(own, probes), len(own) - 1)
    return float((own[indices] == probes).mean())


def _search_few(part: Part, probes: npt.NDArray[np.uint64]) -> tuple[Positions, Positions]:
    """Return the probes in a part, and their positions, confirmed by verified entries.

    For each probe it verifies both neighbours of the resulting position. As the run is sorted,
    they prove the search result correct, even if the search read unverified data.
    """
    if not len(probes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    indices = part.insertion_points(probes)
    count = len(part)
    around = np.concatenate([np.maximum(indices - 1, 0), np.minimum(indices, count - 1)])
    hashes_around = part.hashes_at(around)
    hashes_below, above = hashes_around[: len(probes)], hashes_around[len(probes) :]
    inside = indices < count
    misled = ((indices > 0) & (hashes_below >= probes)) | (inside & (above < probes))
    if bool(misled.any()):
        raise CorruptionError.in_file(part.path, "hashes in ascending order", "others")
    hit = np.flatnonzero(inside & (above == probes))
    return hit, indices[hit]


_LOWER = np.uint64((1 << 32) - 1)

_VALUES = 1 << 14
"""Values per search: their positions in a thousand runs take 256 MiB."""


@dataclass(frozen=True)
class RunRanges:
    """Row positions for hash ranges in a run: ``starts <= i < stops``."""

    starts: Positions
    stops: Positions

    @property
    def counts(self) -> Positions:
        """The row count in each range."""
        return self.stops - self.starts

    def positions(self, low: int, high: int) -> Positions:
        """Return the row positions in ranges ``low <= r < high``, ascending."""
        starts, counts = self.starts[low:high], self.counts[low:high]
        before = np.cumsum(counts) - counts
        return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


@dataclass(frozen=True)
class Prefixes:
    """Requested values for the leading key columns, in hash range order.

    Other prefixes may share a hash range, so the rows found are compared with the values.
    """

    names: tuple[str, ...]
    """The columns."""
    values: tuple[pa.Array, ...]
    ranges: Words
    """For each value, the first hash in its hash range, ascending.

    A key prefix determines the hash's upper half; its hash range has all hashes with that half.
    """

    @classmethod
    def of(cls, schema: TableSchema, values: Sequence[pa.Array]) -> Prefixes:
        """Check wanted values (`Snapshot.having_prefix`)."""
        prefix, names = schema.hash_prefix, schema.keys[: len(values)]
        if not prefix or not prefix <= len(values) <= len(schema.keys):
            description = (
                f"by {', '.join(schema.keys[:prefix])}" if prefix else "of whole keys alone"
            )
            raise OptionError(
                "a read by prefix expects values of the leading key columns by which the table is "
                f"hashed, found {len(values)} columns of values, and a table hashed {description}.",
                hint="make the table with 'hashPrefix', and give values of all those columns.",
                option="hashPrefix",
            )
        stored = [as_stored(v, schema, name) for v, name in zip(values, names, strict=True)]
        ranges, _ = prefix_ends(stored[:prefix], seed=schema.hash_seed)
        order = pa.array(np.argsort(ranges, kind="stable"))
        return cls(
            names=names,
            values=tuple(column.take(order) for column in stored),
            ranges=np.sort(ranges),
        )

    def split_by_hash_range(self) -> Iterator[Prefixes]:
        """Yield the values in pieces of about `_VALUES`; two pieces share no hash range.

        So each hash range, and each row found in it, belongs to one piece.
        """
        first = 0
        while first < len(self.ranges):
            last_range = self.ranges[min(first + _VALUES, len(self.ranges)) - 1]
            end = int(np.searchsorted(self.ranges, last_range, side="right"))
            yield replace(
                self,
                values=tuple(column.slice(first, end - first) for column in self.values),
                ranges=self.ranges[first:end],
            )
            first = end

    @cached_property
    def firsts(self) -> Words:
        """Each range's first hash, ascending."""
        return np.unique(self.ranges)

    @property
    def lasts(self) -> Words:
        """Each range's last hash."""
        return self.firsts | _LOWER

    @property
    def spanning(self) -> HashRange:
        """The ranges and all between them."""
        return HashRange.spanning(self.firsts[0], self.lasts[-1])

    def access(self, columns: Sequence[str]) -> Access:
        """Return what a read of some columns by these prefixes reads of the runs."""
        return Access(columns=columns, probes=self.firsts, probe_ends=self.lasts)

    def positions_in(self, run: Run, live: HashRange) -> RunRanges:
        """Return each hash range's rows in a run's live part, confirmed by verified entries."""
        low, high = live.rows_of(run.hashes)
        starts = np.searchsorted(run.hashes, self.firsts, side="left").astype(np.int64)
        stops = np.searchsorted(run.hashes, self.lasts, side="right").astype(np.int64)
        count, ends = len(run.hashes), np.concatenate([starts, stops])
        run.verify_at([HASH], np.unique(np.clip([ends - 1, ends], 0, count - 1)))
        # Each end is between an entry before it and one after it.
        bounds = np.concatenate([self.firsts, self.lasts])
        is_last = np.arange(len(ends)) >= len(starts)
        before, after = run.hashes[np.maximum(ends - 1, 0)], run.hashes[np.minimum(ends, count - 1)]
        misled = (ends > 0) & np.where(is_last, before > bounds, before >= bounds)
        misled |= (ends < count) & np.where(is_last, after <= bounds, after < bounds)
        if bool(misled.any()):
            raise CorruptionError.in_file(run.file.path, "hashes in ascending order", "others")
        return RunRanges(np.clip(starts, low, high), np.clip(stops, low, high))

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with one of the values."""
        columns = [rows.column(name) for name in self.names]
        chosen = is_among(columns, self.values)
        return rows if bool(chosen.all()) else rows.filter(pa.array(chosen))


def neighbours_within(counts: Positions, most: int) -> Iterator[tuple[int, int]]:
    """Yield index ranges ``[low, high)`` whose counts sum to at most ``most``, or single indices."""
    reached = np.cumsum(counts)
    low = 0
    while low < len(counts):
        before = int(reached[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(reached, before + most, side="right")))
        yield low, high
        low = high


def as_stored(values: pa.Array, schema: TableSchema, name: str) -> pa.Array:
    """Return wanted values in the type in which a table has a column."""
    type_ = schema.columns.field(name).type
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return convert(values, type_)
    except pa.ArrowException as error:
        raise SchemaError(
            f"the column '{name}' is {type_} in the table, and a wanted value is not: {error}.",
            hint=f"give values of type {type_}.",
            column=name,
        ) from error
