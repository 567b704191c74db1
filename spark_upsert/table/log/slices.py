"""A manifest's slices (`SliceList`): objects for small tables, columns in leaves for large ones.

A *leaf* has up to `LEAF_SLICES` slices as one numpy array, sorted by epoch, file index and hash, so
it covers a part of one level and a hash range. A change copies only the leaves that it touches.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.table.run.file import RunFile

LEAF_SLICES = 4096
"""Maximum slices per leaf, and in a list of objects: a leaf is copied in 0.1 ms."""


OBJECTS_MAX = 8 * LEAF_SLICES
"""Maximum slices in a list whose leaves keep the objects made for an iteration, which takes 8 µs per
object: 32 MiB. Lists after a commit share most leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The live part of a run file."""

    file: RunFile
    live: HashRange = ALL_HASHES
    epochs: Interval
    index: int = 0
    """Position among the files with the same epochs."""
    is_held: bool = False
    """Whether newer runs hold the keys for all its remaining deletes, so no delete can be forgotten
    before it is merged with those runs."""

    @property
    def occupied(self) -> HashRange:
        """The live hashes with possible entries."""
        return self.live.intersect(self.file.hash_range)

    def overlaps(self, hash_range: HashRange) -> bool:
        """Return whether a range may contain the hash of a live entry."""
        # Computed from bounds, without a range in between: planning asks each slice per split.
        live, stored = self.live, self.file.hash_range
        first = max(live.first, stored.first, hash_range.first)
        return first < min(live.end, stored.end, hash_range.end)

    def rows_within(self, hash_range: HashRange) -> int:
        """Estimate the live entries in a hash range."""
        return self._share(self.file.rows, hash_range)

    def bytes_within(self, hash_range: HashRange) -> int:
        """Estimate the live entries' bytes in a hash range."""
        return self._share(self.file.bytes, hash_range)

    def _share(self, amount: int, hash_range: HashRange) -> int:
        """Return an amount's live share in a hash range; all entries in a file weigh the same."""
        read = self.occupied.intersect(hash_range)
        return sum(
            amount * rows * part.intersect(read).width // (part.width * self.file.rows)
            for part, rows in self.file.spread()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRange:
    """A hash range removed from a file by a compaction."""

    path: str
    hash_range: HashRange


Probes: TypeAlias = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Ascending disjoint ranges of hashes: their first and last hashes."""

SliceRows: TypeAlias = npt.NDArray[np.void]
"""Slices as records with the fields of `ROW`."""

ROW = np.dtype(
    [
        *((name, "<u8") for name in ("path_high", "path_low", "rows", "bytes")),
        *((name, "<u8") for name in ("hash_first", "hash_last", "live_first", "live_last")),
        *((name, "<u8") for name in ("lower", "upper", "index")),
        *((name, "<u4") for name in ("tombstones", "errors", "tail_bytes", "tail_crc", "is_held")),
    ],
    align=True,
)
"""One slice. The path is ``data/<high><low>.arrow``; both ranges end with their last hash."""

LEAF_FIELDS = ROW.names or ()

_ORDER = ("live_first", "hash_first", "index", "lower")
"""Sort fields, the most significant one last. Slices with the same epochs and index are disjoint,
so their order is free; the file's first hash keeps its place when a range is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFile:
    """A stored leaf's entry in a checkpoint."""

    path: str
    """Contains the leaf's version and a hash of its bytes, so all processes use the same name."""
    slices: int
    bytes: int
    crc: int
    """CRC-32 of the file."""
    span: HashRange

    @property
    def version(self) -> int:
        """The table version that made the leaf."""
        return int(self.path.rpartition("/")[2].partition("-")[0])


class Leaf:
    """Slices as an immutable array.

    Parameters
    ----------
    rows : numpy array of `ROW`
    irregular : numpy array of objects, optional
        Per slice a `Slice` not representable as a record, otherwise None; absent if none is.
    """

    def __init__(self, rows: SliceRows, irregular: npt.NDArray[np.object_] | None = None) -> None:
        rows.setflags(write=False)
        if irregular is not None and all(slice_ is None for slice_ in irregular):
            irregular = None
        self.rows = rows
        self.irregular = irregular
        self._objects: list[Slice] | None = None
        self.version: int | None = None
        """The table version that made this leaf; None if it is not part of a version yet."""
        self.file: LeafFile | None = None
        """Set once it was read or encoded."""

    @classmethod
    def of(cls, slices: Sequence[Slice]) -> Leaf:
        """Return a leaf with slices in the given order."""
        records = [_record(slice_) for slice_ in slices]
        irregular = None
        if any(odd for _, odd in records):
            irregular = np.empty(len(slices), np.object_)
            irregular[:] = [s if r[1] else None for s, r in zip(slices, records, strict=True)]
        return cls(np.array([record for record, _ in records], ROW), irregular)

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_leaf, (self.rows.tobytes(), self.irregular)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Leaf):
            return NotImplemented
        return self is other or (
            np.array_equal(self.rows, other.rows)
            and self.irregular_slices == other.irregular_slices
        )

    @property
    def irregular_slices(self) -> tuple[Slice | None, ...]:
        """The slices not representable as records, by position; empty if there are none."""
        return () if self.irregular is None else tuple(self.irregular)

    @cached_property
    def span(self) -> HashRange:
        """The smallest range with all live hashes."""
        first, last = self.bounds
        is_occupied = first <= last
        if not is_occupied.any():
            return HashRange(0, 0)
        return HashRange.spanning(int(first[is_occupied].min()), int(last[is_occupied].max()))

    @property
    def bounds(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """First and last live hash per slice; a slice is empty if the last precedes the first."""
        rows = self.rows
        return (
            np.maximum(rows["hash_first"], rows["live_first"]),
            np.minimum(rows["hash_last"], rows["live_last"]),
        )

    def key(self, position: int) -> tuple[int, ...]:
        """Return a slice's sort key."""
        return tuple(int(self.rows[name][position]) for name in reversed(_ORDER))

    @property
    def memory_bytes(self) -> int:
        odd = sum(slice_ is not None for slice_ in self.irregular_slices)
        return int(self.rows.nbytes) + OBJECT_BYTES * odd

    def slices(self, *, keep: bool = False) -> list[Slice]:
        """Return the slices as objects, and keep them for the next call if requested."""
        if self._objects is not None:
            return self._objects
        intervals: dict[tuple[int, int], Interval] = {}
        slices = [_slice(record, intervals) for record in self.rows.tolist()]
        for position, slice_ in enumerate(self.irregular_slices):
            if slice_ is not None:
                slices[position] = slice_
        self._objects = slices if keep else None
        return slices

    def take(self, positions: npt.NDArray[Any]) -> Leaf:
        """Return the slices at positions, or where a mask is True."""
        irregular = None if self.irregular is None else self.irregular[positions]
        return Leaf(self.rows[positions], irregular)

    def within(self, hash_range: HashRange, probes: Probes | None = None) -> Leaf | None:
        """Return the slices that overlap a range; None if there are none, itself if all do."""
        if not self.span.overlaps(hash_range):
            return None
        first, last = self.bounds
        first = np.maximum(first, np.uint64(hash_range.first))
        last = np.minimum(last, np.uint64(hash_range.last))
        is_in = first <= last
        if probes is not None:
            firsts, lasts = probes
            is_in &= np.searchsorted(firsts, last, "right") > np.searchsorted(lasts, first, "left")
        count = int(np.count_nonzero(is_in))
        if count == len(self):
            return self
        return self.take(is_in) if count else None

    @classmethod
    def concatenated(cls, leaves: Sequence[Leaf]) -> Leaf:
        """Return one leaf with all slices."""
        if len(leaves) == 1:
            return leaves[0]
        irregular = None
        if any(leaf.irregular is not None for leaf in leaves):
            missing = [np.full(len(leaf), None, np.object_) for leaf in leaves]
            irregular = np.concatenate(
                [
                    empty if leaf.irregular is None else leaf.irregular
                    for leaf, empty in zip(leaves, missing, strict=True)
                ]
            )
        return cls(np.concatenate([leaf.rows for leaf in leaves]), irregular)

    def sorted(self) -> Leaf:
        """Return the slices in order; equal keys keep their order."""
        order = np.lexsort([self.rows[name] for name in _ORDER])
        return self if (np.diff(order) == 1).all() else self.take(order)

    def cut(self) -> list[Leaf]:
        """Return leaves with at most `LEAF_SLICES`, of similar size."""
        if len(self) <= LEAF_SLICES:
            return [self]
        pieces = np.array_split(np.arange(len(self)), -(-len(self) // LEAF_SLICES))
        return [self.take(piece) for piece in pieces]

    def positions_of(self, paths: Mapping[tuple[int, int], Any]) -> list[int]:
        """Return the positions of files by the keys of their paths (`path_key`)."""
        high = np.fromiter((key[0] for key in paths), np.uint64, len(paths))
        found = np.flatnonzero(np.isin(self.rows["path_high"], high))
        low = self.rows["path_low"][found].tolist()
        highs = self.rows["path_high"][found].tolist()
        return [
            p for p, *key in zip(found.tolist(), highs, low, strict=True) if tuple(key) in paths
        ]


def _unpickled_leaf(data: bytes, irregular: npt.NDArray[np.object_] | None) -> Leaf:
    return Leaf(np.frombuffer(data, ROW), irregular)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceColumns:
    """Slices as arrays for compaction plans, in manifest order."""

    first: npt.NDArray[np.uint64]
    """The least live hash with a possible entry (`Slice.occupied`)."""
    last: npt.NDArray[np.uint64]
    """The greatest one, inclusive; smaller than ``first`` if there is none."""
    is_cut: npt.NDArray[np.bool_]
    """Whether a part of the file is not live."""
    bytes: npt.NDArray[np.float64]
    """Estimated live bytes."""
    run: npt.NDArray[np.int64]
    """The run's number: slices with equal epochs are one run, numbered in manifest order."""
    is_layered: npt.NDArray[np.bool_]
    """By run number: whether its files have common hashes."""
    lower: npt.NDArray[np.int64]
    upper: npt.NDArray[np.int64]
    """The slice's epochs."""
    index: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    tombstones: npt.NDArray[np.int64]
    """The file's entries, and the tombstones among them."""
    part_slice: npt.NDArray[np.int64]
    """Uniform parts of slices (`RunFile.spread`): the slice's number, ascending."""
    part_first: npt.NDArray[np.uint64]
    part_last: npt.NDArray[np.uint64]
    part_bytes: npt.NDArray[np.float64]
    """A part's estimated live bytes."""

    @classmethod
    def of(cls, leaf: Leaf) -> SliceColumns:
        """Return the arrays of a leaf with all slices."""
        rows, count = leaf.rows, len(leaf)
        first, last = leaf.bounds
        stored_first, stored_last = rows["hash_first"], rows["hash_last"]
        share = widths(first, last) / np.maximum(widths(stored_first, stored_last), 1.0)
        size = rows["bytes"] * share
        part_slice, part_first, part_last, part_bytes = np.arange(count), first, last, size
        tombstones = rows["tombstones"].astype(np.int64)
        for at, slice_ in enumerate(leaf.irregular_slices):
            if slice_ is not None:
                tombstones[at] = slice_.file.tombstones
        crowded = [
            (at, slice_)
            for at, slice_ in enumerate(leaf.irregular_slices)
            if slice_ is not None and slice_.file.crowds
        ]
        if crowded:
            parts = [
                (
                    at,
                    part.first,
                    part.last,
                    file.bytes * entries / file.rows * part.width / spread.width,
                )
                for at, slice_ in crowded
                for file in (slice_.file,)
                for spread, entries in file.spread()
                if not (part := spread.intersect(slice_.live)).is_empty
            ]
            uniform = np.ones(count, dtype=np.bool_)
            uniform[[at for at, _ in crowded]] = False
            owners, part_firsts, part_lasts, sizes = zip(*parts, strict=True) if parts else [()] * 4
            part_slice = np.concatenate([part_slice[uniform], np.array(owners, np.int64)])
            part_first = np.concatenate([first[uniform], np.array(part_firsts, np.uint64)])
            part_last = np.concatenate([last[uniform], np.array(part_lasts, np.uint64)])
            part_bytes = np.concatenate([size[uniform], np.array(sizes, np.float64)])
            order = np.argsort(part_slice, kind="stable")
            part_slice, part_first = part_slice[order], part_first[order]
            part_last, part_bytes = part_last[order], part_bytes[order]
            size = _sums(part_slice, part_bytes, count)
        lower, upper = (rows[name].astype(np.int64) for name in ("lower", "upper"))
        begins = np.flatnonzero(
            (np.diff(lower, prepend=-1) != 0) | (np.diff(upper, prepend=-1) != 0)
        )
        runs: dict[tuple[int, int], int] = {}
        pairs = zip(lower[begins].tolist(), upper[begins].tolist(), strict=True)
        numbers = np.array([runs.setdefault(pair, len(runs)) for pair in pairs], dtype=np.int64)
        run = np.repeat(numbers, np.diff(begins, append=count))
        order = np.lexsort((first, run))
        shared = (run[order][1:] == run[order][:-1]) & (first[order][1:] <= last[order][:-1])
        return cls(
            first=first,
            last=last,
            is_cut=(first != stored_first) | (last != stored_last),
            bytes=size,
            run=run,
            is_layered=np.bincount(run[order][1:][shared], minlength=len(runs)) > 0,
            lower=lower,
            upper=upper,
            index=rows["index"].astype(np.int64),
            rows=rows["rows"].astype(np.int64),
            tombstones=tombstones,
            part_slice=part_slice,
            part_first=part_first,
            part_last=part_last,
            part_bytes=part_bytes,
        )

    @property
    def run_count(self) -> int:
        """Maximum number of runs searched by a look-up.

        Disjoint files with equal epochs are one run; files with a common hash are several.
        """
        layered = np.flatnonzero(self.is_layered)
        depths = (self.depth(np.flatnonzero(self.run == run)) for run in layered)
        return len(self.is_layered) - len(layered) + sum(depths)

    def overlaps(self, members: Positions, hash_range: HashRange) -> npt.NDArray[np.bool_]:
        """Return which members overlap a non-empty range."""
        first, last = np.uint64(hash_range.first), np.uint64(hash_range.last)
        begins, ends = self.first[members], self.last[members]
        return (begins <= last) & (ends >= first) & (begins <= ends)

    def bytes_within(self, members: Positions, hash_range: HashRange) -> npt.NDArray[np.float64]:
        """Return the members' estimated live bytes in a non-empty range they overlap."""
        parts, owners = members, np.arange(len(members))
        if len(self.part_slice) != len(self.run):
            starts = np.searchsorted(self.part_slice, members)
            counts = np.searchsorted(self.part_slice, members, side="right") - starts
            owners = np.repeat(np.arange(len(members)), counts)
            offsets = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
            parts = starts[owners] + offsets
        begins, ends = self.part_first[parts], self.part_last[parts]
        first = np.maximum(begins, np.uint64(hash_range.first))
        last = np.minimum(ends, np.uint64(hash_range.last))
        sizes = self.part_bytes[parts] * widths(first, last) / widths(begins, ends)
        return _sums(owners, sizes, len(members))

    def depth(self, members: Positions) -> int:
        """Return the greatest number of members with possible entries at one hash."""
        if len(members) < 2:
            return len(members)
        begins, ends = np.sort(self.first[members]), np.sort(self.last[members])
        open_counts = np.arange(1, len(members) + 1) - np.searchsorted(ends, begins, side="left")
        return int(open_counts.max())


def _sums(
    numbers: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], count: int
) -> npt.NDArray[np.float64]:
    return np.bincount(numbers, weights, minlength=count).astype(np.float64)


def widths(first: npt.NDArray[np.uint64], last: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return the widths of ranges with inclusive bounds; 0 where ``last`` precedes ``first``."""
    return np.where(last < first, 0.0, (last - first).astype(np.float64) + 1.0)


_PREFIX, _SUFFIX, _DIGITS = "data/", ".arrow", 32


def path_key(path: str) -> tuple[int, int]:
    """Return a path's 128 bits: its digits or, if it has another form, its BLAKE2b hash."""
    return _path_key(path)[0]


def _path_key(path: str) -> tuple[tuple[int, int], bool]:
    """Return a path's key, and whether the key is made from its digits."""
    digits = path[len(_PREFIX) : -len(_SUFFIX)]
    if len(digits) == _DIGITS and path == f"{_PREFIX}{digits}{_SUFFIX}":
        try:
            number = int(digits, 16)
        except ValueError:
            number = 0
        if f"{number:032x}" == digits:
            return (number >> 64, number & (2**64 - 1)), True
    number = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=16).digest())
    return (number >> 64, number & (2**64 - 1)), False


def _record(slice_: Slice) -> tuple[tuple[int, ...], bool]:
    """Return a slice's record, and whether it does not represent the slice."""
    file = slice_.file
    key, is_regular = _path_key(file.path)
    small = (file.tombstones, file.errors, file.bytes - file.body_bytes)
    is_odd = not is_regular or bool(file.crowds) or not all(0 <= n < 2**32 for n in small)
    ranges = []
    for hash_range in (file.hash_range, slice_.live):
        is_odd |= hash_range.is_empty
        ranges += [1, 0] if hash_range.is_empty else [hash_range.first, hash_range.last]
    if is_odd:
        small = (0, 0, 0)
    epochs = slice_.epochs
    sizes = (file.rows, file.bytes, *ranges, epochs.lower, epochs.upper, slice_.index)
    return (*key, *sizes, *small, file.tail_crc, slice_.is_held), is_odd


def _slice(record: tuple[int, ...], intervals: dict[tuple[int, int], Interval]) -> Slice:
    high, low, rows, size, hash_first, hash_last, live_first, live_last, *epochs = record[:10]
    index, tombstones, errors, tail_bytes, tail_crc, is_held = record[10:]
    lower, upper = epochs
    interval = intervals.get((lower, upper))
    if interval is None:
        interval = Interval(lower=Epoch(lower), upper=Epoch(upper))
        intervals[lower, upper] = interval
    hash_range = HashRange(hash_first, max(hash_first, hash_last + 1))
    is_whole = live_first == ALL_HASHES.first and live_last == ALL_HASHES.last
    live = ALL_HASHES if is_whole else HashRange(live_first, max(live_first, live_last + 1))
    file = RunFile(
        path=f"{_PREFIX}{high:016x}{low:016x}{_SUFFIX}",
        rows=rows,
        tombstones=tombstones,
        bytes=size,
        body_bytes=size - tail_bytes,
        tail_crc=tail_crc,
        hash_range=hash_range,
        errors=errors,
    )
    return Slice(file=file, live=live, epochs=interval, index=index, is_held=bool(is_held))


OBJECT_BYTES = 1 << 10
"""Estimated bytes per `Slice` with its file, ranges and epochs; 611 were measured."""


class SliceList(Sequence[Slice]):
    """Slices in order, immutable. Equal to every sequence with the same slices.

    A list with at most `LEAF_SLICES` slices has them as objects. A larger list has leaves, and
    makes objects only for an iteration; it becomes a list of objects again at half that size.
    """

    __slots__ = ("_columns", "_leaves", "_objects")

    def __init__(self, leaves: tuple[Leaf, ...], objects: tuple[Slice, ...] | None = None) -> None:
        self._leaves = leaves
        self._objects = objects
        self._columns: SliceColumns | None = None

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> SliceList:
        """Return a list with slices in their order; sorted if there are many."""
        if isinstance(slices, SliceList):
            return slices
        objects = tuple(slices)
        if len(objects) <= LEAF_SLICES:
            return cls((), objects)
        return cls.of_leaves(Leaf.of(objects).sorted().cut())

    @classmethod
    def of_leaves(cls, leaves: Iterable[Leaf]) -> SliceList:
        """Return a list with the leaves' slices; small neighbours are joined."""
        joined: list[Leaf] = []
        for leaf in leaves:
            if joined and len(joined[-1]) + len(leaf) <= LEAF_SLICES // 2:
                joined[-1] = Leaf.concatenated([joined[-1], leaf])
            elif len(leaf):
                joined.append(leaf)
        if sum(map(len, joined)) <= LEAF_SLICES // 2:
            return cls((), tuple(slice_ for leaf in joined for slice_ in leaf.slices()))
        return cls(tuple(joined))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves; empty for a list of objects."""
        return self._leaves

    def stamped(self, version: int) -> SliceList:
        """Set the version for new leaves, which the caller has just made; return the list."""
        for leaf in self._leaves:
            if leaf.version is None:
                leaf.version = version
        return self

    @property
    def memory_bytes(self) -> int:
        """Approximate bytes in memory, with the objects that may be made."""
        objects = len(self) if len(self) <= OBJECTS_MAX else 0
        return sum(leaf.memory_bytes for leaf in self._leaves) + OBJECT_BYTES * objects

    def __len__(self) -> int:
        return sum(map(len, self._leaves)) if self._objects is None else len(self._objects)

    def __iter__(self) -> Iterator[Slice]:
        if self._objects is not None:
            return iter(self._objects)
        if len(self) <= LEAF_SLICES:
            self._objects = tuple(slice_ for leaf in self._leaves for slice_ in leaf.slices())
            return iter(self._objects)
        keep = len(self) <= OBJECTS_MAX
        return (slice_ for leaf in self._leaves for slice_ in leaf.slices(keep=keep))

    @overload
    def __getitem__(self, item: int) -> Slice: ...
    @overload
    def __getitem__(self, item: slice) -> tuple[Slice, ...]: ...
    def __getitem__(self, item: int | slice) -> Slice | tuple[Slice, ...]:
        if self._objects is not None or isinstance(item, slice):
            return tuple(self)[item]
        position = range(len(self))[item]
        ends = list(accumulate(map(len, self._leaves)))
        number = bisect_right(ends, position)
        leaf = self._leaves[number]
        return leaf.take(np.array([position - ends[number] + len(leaf)])).slices()[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SliceList) and self._leaves and other._leaves:
            if len(self) != len(other):
                return False
            if self._leaves == other._leaves:
                return True
            return Leaf.concatenated(self._leaves) == Leaf.concatenated(other._leaves)
        if isinstance(other, SliceList | tuple):
            return self is other or (len(self) == len(other) and tuple(self) == tuple(other))
        return NotImplemented

    def __repr__(self) -> str:
        return repr(tuple(self)) if len(self) <= LEAF_SLICES else f"SliceList({len(self):_})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SliceList, (self._leaves, None if self._leaves else self._objects)

    # -- questions -------------------------------------------------------------------

    @property
    def columns(self) -> SliceColumns:
        """The slices as arrays for compaction plans, made once."""
        if self._columns is None:
            leaves = self._leaves or (Leaf.of(self._objects or ()),)
            self._columns = SliceColumns.of(Leaf.concatenated(leaves))
        return self._columns

    def at(self, positions: npt.NDArray[np.int64]) -> list[Slice]:
        """Return the slices at ascending positions."""
        if self._objects is not None:
            return [self._objects[position] for position in positions]
        ends = np.cumsum([len(leaf) for leaf in self._leaves])
        borders = np.searchsorted(positions, ends)
        slices: list[Slice] = []
        for leaf, end, group in zip(
            self._leaves, ends, np.split(positions, borders[:-1]), strict=True
        ):
            if len(group):
                slices += leaf.take(group - (end - len(leaf))).slices()
        return slices

    def within(self, hash_range: HashRange, probes: Probes | None = None) -> SliceList:
        """Return the slices that overlap a range.

        ``probes``: ranges of wanted hashes. Slices without one are left out, if there are many.
        """
        if not self._leaves:
            return SliceList((), tuple(s for s in self._objects or () if s.overlaps(hash_range)))
        parts = (leaf.within(hash_range, probes) for leaf in self._leaves)
        leaves = [leaf for leaf in parts if leaf is not None]
        if not leaves:
            return SliceList((), ())
        is_small = sum(map(len, leaves)) <= LEAF_SLICES
        return SliceList((Leaf.concatenated(leaves),) if is_small else tuple(leaves))

    def of_paths(self, paths: Iterable[str]) -> Iterator[Slice]:
        """Yield the slices of files."""
        wanted = {path_key(path): path for path in paths}
        if not self._leaves:
            names = set(wanted.values())
            yield from (s for s in self._objects or () if s.file.path in names)
            return
        for leaf in self._leaves:
            positions = leaf.positions_of(wanted)
            if positions:
                yield from leaf.take(np.array(positions)).slices()

    @property
    def rows(self) -> int:
        """Total entries in the files; a file counts once per slice."""
        if not self._leaves:
            return sum(slice_.file.rows for slice_ in self._objects or ())
        return sum(int(leaf.rows["rows"].sum()) for leaf in self._leaves)

    @property
    def file_bytes(self) -> int:
        """Total bytes in the files; each file counts once."""
        if not self._leaves:
            return sum({s.file.path: s.file.bytes for s in self._objects or ()}.values())
        # The pieces of a file are neighbours.
        high, low, size = (
            np.concatenate([leaf.rows[name] for leaf in self._leaves])
            for name in ("path_high", "path_low", "bytes")
        )
        is_first = np.ones(len(high), np.bool_)
        is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return int(size[is_first].sum())

    @property
    def has_tombstones(self) -> bool:
        """Whether any file has tombstones."""
        if not self._leaves:
            return any(slice_.file.tombstones for slice_ in self._objects or ())
        odd = (s for leaf in self._leaves for s in leaf.irregular_slices if s is not None)
        regular = (leaf.rows["tombstones"].any() for leaf in self._leaves)
        return any(regular) or any(slice_.file.tombstones for slice_ in odd)

    # -- changes -----------------------------------------------------------------------

    def with_added(self, slices: Sequence[Slice]) -> SliceList:
        """Return a list with more slices, in order."""
        if not slices:
            return self
        if not self._leaves:
            return SliceList.of(_merge_in_order(self._objects or (), tuple(slices)))
        added = Leaf.of(slices).sorted()
        firsts = [leaf.key(0) for leaf in self._leaves]
        fields = [added.rows[name].tolist() for name in reversed(_ORDER)]
        by_leaf: dict[int, list[int]] = {}
        for position, key in enumerate(zip(*fields, strict=True)):
            by_leaf.setdefault(max(0, bisect_right(firsts, key) - 1), []).append(position)
        leaves: list[Leaf] = []
        for number, leaf in enumerate(self._leaves):
            positions = by_leaf.get(number)
            if positions is None:
                leaves.append(leaf)
                continue
            new = added.take(np.array(positions))
            is_last = number == len(self._leaves) - 1 and leaf.key(-1) <= new.key(0)
            if is_last and len(leaf) + len(new) > LEAF_SLICES:
                leaves += [leaf, *new.cut()]
            else:
                leaves += Leaf.concatenated([leaf, new]).sorted().cut()
        return SliceList.of_leaves(leaves)

    def without(self, removed: Sequence[RemovedRange]) -> SliceList:
        """Return a list without hash ranges; a slice may leave two pieces at its position."""
        if not removed:
            return self
        by_path: dict[str, list[HashRange]] = {}
        for removal in removed:
            by_path.setdefault(removal.path, []).append(removal.hash_range)
        if not self._leaves:
            pieces = (_cut_all(s, by_path.get(s.file.path, ())) for s in self._objects or ())
            return SliceList.of(piece for left in pieces for piece in left)
        ranges = {path_key(path): gone for path, gone in by_path.items()}
        return SliceList.of_leaves(
            left for leaf in self._leaves for left in _without(leaf, by_path, ranges)
        )


def _without(
    leaf: Leaf,
    by_path: Mapping[str, Sequence[HashRange]],
    ranges: Mapping[tuple[int, int], Sequence[HashRange]],
) -> list[Leaf]:
    """Return a leaf's remaining slices."""
    positions = leaf.positions_of(ranges)
    if not positions:
        return [leaf]
    found = leaf.take(np.array(positions)).slices()
    lefts = [_cut_all(s, by_path.get(s.file.path, ())) for s in found]
    if all(left == [s] for s, left in zip(found, lefts, strict=True)):
        return [leaf]
    is_kept = np.ones(len(leaf), np.bool_)
    is_kept[positions] = False
    order = np.concatenate(
        [np.flatnonzero(is_kept), np.repeat(positions, [len(left) for left in lefts])]
    )
    pieces = [piece for left in lefts for piece in left]
    parts = [leaf.take(is_kept), *([Leaf.of(pieces)] if pieces else [])]
    return Leaf.concatenated(parts).take(np.argsort(order, kind="stable")).cut()


def _cut_all(slice_: Slice, gone: Iterable[HashRange]) -> list[Slice]:
    """Return a slice's pieces outside of hash ranges."""
    pieces = [slice_]
    for hash_range in gone:
        pieces = [left for piece in pieces for left in _cut(piece, hash_range)]
    return pieces


def _cut(slice_: Slice, gone: HashRange) -> list[Slice]:
    if not slice_.live.overlaps(gone):
        return [slice_]
    pieces = (replace(slice_, live=range_left) for range_left in slice_.live.without(gone))
    return [piece for piece in pieces if not piece.occupied.is_empty]


def _slice_order(slice_: Slice) -> tuple[int, int, int]:
    return slice_.epochs.lower, slice_.index, slice_.live.first


def _merge_in_order(kept: tuple[Slice, ...], new: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Return all slices in order; ``kept`` is sorted already, and new epochs usually come last."""
    new = tuple(sorted(new, key=_slice_order))
    if not (kept and new) or _slice_order(kept[-1]) <= _slice_order(new[0]):
        return kept + new
    return tuple(sorted(kept + new, key=_slice_order))
