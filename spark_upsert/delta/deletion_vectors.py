"""Deletion vectors: their encoding (`Vector`), and a version's superseded entries.

A vector is a function of the manifest. `vectors_of_manifest` computes it from all entries, `vectors_after_changes` from
changed keys, `vectors_after_superseding` from writers' notes.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.schema import DIFF, HASH, TableSchema, is_live
from spark_upsert.delta.actions import DeltaAction
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Commit, Kind, Manifest
from spark_upsert.table.run.file import RUNS, RunFile, Span
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.lookup import iter_matches
from spark_upsert.table.state.prepared import Deaths
from spark_upsert.table.state.reduce import KeyMatches, merge_function_for
from spark_upsert.table.state.registers import are_rows
from spark_upsert.table.state.resolve import arrange, epochs_by_part
from spark_upsert.table.state.snapshot import CHUNK_ROWS, Snapshot

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]
_Counts: TypeAlias = npt.NDArray[np.int64]

_MAGIC = 1681511377
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_CONTAINER_ROWS = 1 << 16
_CONTAINER_BYTES = _CONTAINER_ROWS // 8
_CONTAINER_WORDS = _CONTAINER_BYTES // 8
_ARRAY_MAX = 4096
"""Maximum values in an array container; with more, a bitmap is smaller."""
_OFFSETS_FROM = 4
"""From this container count on, offsets are stored; fewer containers have none if any has runs."""
_GROUP = 256
"""Containers unpacked together: 16 MiB at one byte per row."""
_DENSE = 16
"""If more than one row in 16 is marked, a mask over all rows is cheaper than sorting positions."""
_HEAD = struct.Struct("<IQI")
ROWS_MAX = 1 << 32
"""Exclusive row limit per file: positions fit one bucket; runs have fewer rows."""

_POPCOUNT = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_DIGITS = {digit: value for value, digit in enumerate(_Z85)}


class Vector:
    """A deletion vector: one bit per row in a file, set for deleted rows.

    Parameters
    ----------
    rows : int
        The file's row count. No row is marked initially.
    """

    def __init__(self, rows: int) -> None:
        if not 0 <= rows < ROWS_MAX:
            raise ValueError(f"a vector of {rows} rows")
        self.rows = rows
        self._bits: _Bytes = np.zeros(-(-rows // 64) * 8, dtype=np.uint8)

    def __repr__(self) -> str:
        return f"Vector({self.count:_} of {self.rows:_} dead)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        return self.rows == other.rows and bool(np.array_equal(self._bits, other._bits))

    __hash__ = None  # type: ignore[assignment]

    @property
    def count(self) -> int:
        """Number of deleted rows."""
        return int(_popcount(self._bits.view(np.uint64)).sum())

    @property
    def is_all(self) -> bool:
        """Whether all rows are deleted."""
        return self.count == self.rows

    def copy(self) -> Vector:
        """Return an independent copy."""
        copied = Vector(self.rows)
        copied._bits[:] = self._bits
        return copied

    def mark(self, positions: Positions) -> None:
        """Mark rows as deleted; positions may be unsorted and repeated."""
        if not len(positions):
            return
        if int(positions.min()) < 0 or int(positions.max()) >= self.rows:
            raise ValueError(f"a position beyond {self.rows} rows")
        if len(positions) * _DENSE > self.rows:
            mask = np.zeros(8 * len(self._bits), dtype=np.bool_)
            mask[positions] = True
            self._bits |= np.packbits(mask, bitorder="little")
            return
        positions = np.sort(positions)
        byte_indices = positions >> 3
        bits = np.left_shift(1, positions & 7).astype(np.uint8)
        begins = np.flatnonzero(np.append(True, byte_indices[1:] != byte_indices[:-1]))
        self._bits[byte_indices[begins]] |= np.bitwise_or.reduceat(bits, begins)

    def mark_range(self, start: int, stop: int) -> None:
        """Mark the rows ``start <= i < stop`` as deleted."""
        if not 0 <= start <= stop <= self.rows:
            raise ValueError(f"rows {start} to {stop} of {self.rows}")
        whole_start, whole_stop = -(-start // 8), stop // 8
        if whole_start >= whole_stop:
            self.mark(np.arange(start, stop, dtype=np.int64))
            return
        self._bits[whole_start:whole_stop] = 255
        edges = (np.arange(start, whole_start * 8), np.arange(whole_stop * 8, stop))
        self.mark(np.concatenate(edges).astype(np.int64))

    def deleted_mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Return a mask, true for deleted rows, over ``start <= i < stop``."""
        first = start // 8
        bits = np.unpackbits(self._bits[first : -(-stop // 8)], bitorder="little")
        return bits[start - first * 8 : stop - first * 8].astype(np.bool_)

    def positions(self) -> Positions:
        """Return the deleted rows' positions, ascending."""
        step = _GROUP * _CONTAINER_ROWS
        position_parts = [
            np.flatnonzero(self.deleted_mask(start, min(start + step, self.rows))) + start
            for start in range(0, self.rows, step)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *position_parts])

    def _mark_bitmap(self, first: int, bits: _Bytes) -> None:
        """Mark the rows set in a bitmap beginning at byte `first`."""
        target_bits = self._bits[first : first + len(bits)]
        beyond = np.unpackbits(bits, bitorder="little")[max(0, self.rows - 8 * first) :]
        if bool(beyond.any()):
            raise ValueError(f"a position beyond {self.rows} rows")
        target_bits |= bits[: len(target_bits)]

    # -- bytes ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the encoding used in deletion-vector files and in the log."""
        count = -(-self.rows // _CONTAINER_ROWS)
        padded = np.zeros(count * _CONTAINER_BYTES, dtype=np.uint8)
        padded[: len(self._bits)] = self._bits
        words = padded.view("<u8").reshape(count, _CONTAINER_WORDS)
        begins, ends = _run_ends(words)
        cardinality = _popcount(words).sum(axis=1, dtype=np.int64)
        run_counts = _popcount(begins).sum(axis=1, dtype=np.int64)
        keys = np.flatnonzero(cardinality)
        if not len(keys):
            return _HEAD.pack(_MAGIC, 0, 0)[:12]
        held, run_counts = cardinality[keys], run_counts[keys]
        plain_bytes = np.where(held <= _ARRAY_MAX, 2 * held, _CONTAINER_BYTES)
        is_run = 2 + 4 * run_counts < plain_bytes
        is_array = ~is_run & (held <= _ARRAY_MAX)
        pieces: dict[int, bytes] = {}
        for at in np.flatnonzero(~is_run & ~is_array).tolist():
            pieces[at] = words[keys[at]].tobytes()
        _fill(pieces, np.flatnonzero(is_array), keys, words)
        _fill_runs(pieces, np.flatnonzero(is_run), keys, begins, ends)
        body = [pieces[at] for at in range(len(keys))]
        header = _header(keys, held, is_run, [len(piece) for piece in body])
        return b"".join((_HEAD.pack(_MAGIC, 1, 0), header, *body))

    @classmethod
    def decode(cls, data: bytes, rows: int) -> Vector:
        """Decode a vector for a file with `rows` rows; raises ValueError."""
        vector = cls(rows)
        try:
            magic, buckets = struct.unpack_from("<IQ", data)
            if magic != _MAGIC or buckets > 1:
                raise ValueError(f"a vector begins with {data[:12].hex()}")
            if buckets:
                for key, kind, values in _containers(memoryview(data)[12:]):
                    base = key * _CONTAINER_ROWS
                    if kind == "runs":
                        for begin, more in values.reshape(-1, 2).tolist():
                            vector.mark_range(base + begin, base + begin + more + 1)
                    elif kind == "bitmap":
                        vector._mark_bitmap(base // 8, values)
                    else:
                        vector.mark(values.astype(np.int64) + base)
        except struct.error as error:
            raise ValueError(f"a vector that ends after {len(data)} bytes") from error
        return vector


def _popcount(words: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return set-bit counts per word, or per byte if NumPy lacks `bitwise_count`."""
    counted = getattr(np, "bitwise_count", None)
    if counted is not None:
        return np.asarray(counted(words))
    return _POPCOUNT[words.view(np.uint8)]


def _run_ends(words: _Words) -> tuple[_Words, _Words]:
    """Return words with only each deleted run's first bit, and words with only its last bit."""
    one = np.uint64(1)
    top = np.uint64(63)
    before = words << one
    before[:, 1:] |= words[:, :-1] >> top
    after_run = words >> one
    after_run[:, :-1] |= words[:, 1:] << top
    return words & ~before, words & ~after_run


def _offsets_in_container(words: _Words) -> npt.NDArray[np.uint16]:
    """Return all set-bit positions, container by container, as offsets within their container."""
    data = words.view(np.uint8).reshape(-1)
    # Most bytes of such containers are zero: only the others are unpacked.
    byte_indices = np.flatnonzero(data.view(np.bool_))
    at = np.flatnonzero(np.unpackbits(data[byte_indices], bitorder="little").view(np.bool_))
    # The low 16 bits are the offset within a container; higher bits overflow.
    return (byte_indices.astype("<u2")[at >> 3] << 3 | (at & 7).astype("<u2")).astype("<u2")


def _fill(pieces: dict[int, bytes], chosen: Positions, keys: Positions, words: _Words) -> None:
    """Encode the chosen containers as arrays."""
    for first in range(0, len(chosen), _GROUP):
        some = chosen[first : first + _GROUP]
        selected = words[keys[some]]
        ends = np.cumsum(_popcount(selected).sum(axis=1, dtype=np.int64)).tolist()
        values = _offsets_in_container(selected)
        for at, start, stop in zip(some.tolist(), [0, *ends], ends, strict=False):
            pieces[at] = values[start:stop].tobytes()


def _fill_runs(
    pieces: dict[int, bytes], chosen: Positions, keys: Positions, begins: _Words, ends: _Words
) -> None:
    """Encode the chosen containers as runs: run count, then start and length minus one per run."""
    for first in range(0, len(chosen), _GROUP):
        some = chosen[first : first + _GROUP]
        run_starts = begins[keys[some]]
        stops = np.cumsum(_popcount(run_starts).sum(axis=1, dtype=np.int64)).tolist()
        low, high = _offsets_in_container(run_starts), _offsets_in_container(ends[keys[some]])
        runs = np.column_stack([low, high - low]).astype("<u2")
        for at, start, stop in zip(some.tolist(), [0, *stops], stops, strict=False):
            pieces[at] = struct.pack("<H", stop - start) + runs[start:stop].tobytes()


def _header(
    keys: Positions, held: _Counts, is_run: npt.NDArray[np.bool_], sizes: list[int]
) -> bytes:
    """Return the bitmap's header: cookie, run flags, container descriptions and offsets."""
    count, has_runs = len(keys), bool(is_run.any())
    described = np.column_stack([keys, held - 1]).astype("<u2").tobytes()
    if has_runs:
        flags = np.packbits(is_run, bitorder="little").tobytes()
        start = struct.pack("<I", _COOKIE_WITH_RUNS | (count - 1) << 16) + flags
    else:
        start = struct.pack("<II", _COOKIE, count)
    if has_runs and count < _OFFSETS_FROM:
        return start + described
    begin = len(start) + len(described) + 4 * count
    offsets = begin + np.cumsum([0, *sizes[:-1]])
    return start + described + offsets.astype("<u4").tobytes()


def _containers(data: memoryview) -> Iterator[tuple[int, str, npt.NDArray[Any]]]:
    """Yield each container's key, type and contents from a bitmap with one bucket."""
    _, cookie = struct.unpack_from("<II", data)
    at, flags = 8, b""
    if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = bytes(data[at : at + -(-count // 8)])
        at += len(flags)
    elif cookie == _COOKIE:
        [count] = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"a roaring bitmap begins with {cookie}")
    described = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2)
    at += 4 * count
    if not flags or count >= _OFFSETS_FROM:
        at += 4 * count
    for index, (key, less_one) in enumerate(described.tolist()):
        if flags and flags[index // 8] >> index % 8 & 1:
            [runs] = struct.unpack_from("<H", data, at)
            yield key, "runs", np.frombuffer(data, "<u2", 2 * runs, at + 2).astype(np.int64)
            at += 2 + 4 * runs
        elif less_one < _ARRAY_MAX:
            yield key, "array", np.frombuffer(data, "<u2", less_one + 1, at)
            at += 2 * (less_one + 1)
        else:
            yield key, "bitmap", np.frombuffer(data, np.uint8, _CONTAINER_BYTES, at)
            at += _CONTAINER_BYTES


# -- files of vectors, and texts ---------------------------------------------------------------


def encode_file(vectors: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """Return a file with encoded vectors, and each vector's offset: its length field.

        file   = 01, (length: 4 bytes, vector, crc: 4 bytes)*
        vector = d1d33964, buckets: 8 bytes, (bucket: 4 bytes, roaring bitmap)*

    Length and CRC-32 are big-endian, the vector little-endian. Source: Delta's protocol, "Deletion
    Vector Format"; RoaringFormatSpec, "portable serialization".
    """
    pieces, offsets, at = [b"\1"], [], 1
    for vector in vectors:
        offsets.append(at)
        framed = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        pieces.append(framed)
        at += len(framed)
    return b"".join(pieces), offsets


def read_from_file(data: bytes, offset: int, size: int) -> bytes:
    """Return the encoded vector at a file offset; raises ValueError if it is invalid."""
    vector = data[offset + 4 : offset + 4 + size]
    framed = struct.pack(">I", size) + vector + struct.pack(">I", zlib.crc32(vector))
    if data[:1] != b"\1" or data[offset : offset + size + 8] != framed:
        raise ValueError(f"no vector of {size} bytes with its checksum stands at byte {offset}")
    return vector


def encode_z85(data: bytes) -> str:
    """Return bytes as Z85, zero-padded to a multiple of 4 bytes."""
    padded = data + bytes(-len(data) % 4)
    powers = (85**4, 85**3, 85**2, 85, 1)
    words = struct.iter_unpack(">I", padded)
    return "".join(_Z85[word // power % 85] for [word] in words for power in powers)


def decode_z85(text: str, size: int) -> bytes:
    """Return the first `size` bytes encoded by a Z85 text; raises ValueError."""
    if len(text) % 5 or not set(text) <= _Z85_DIGITS.keys():
        raise ValueError(f"{text!r:.80} is no Z85")
    packed = b""
    for at in range(0, len(text), 5):
        word = 0
        for digit in text[at : at + 5]:
            word = word * 85 + _Z85_DIGITS[digit]
        if word >= 1 << 32:
            raise ValueError(f"{text!r:.80} is no Z85")
        packed += struct.pack(">I", word)
    if not 0 <= size <= len(packed):
        raise ValueError(f"{size} bytes of {len(packed)}")
    return packed[:size]


def vector_file_name(id_: uuid.UUID) -> str:
    """Return the name for a deletion-vector file."""
    return f"deletion_vector_{id_}.bin"


Vectors = dict[str, Vector]
"""Deletion vectors by run path."""


class _AlignedEntries(NamedTuple):
    """A hash range's entries as parts, with each part's span and epoch."""

    rows: Rows
    spans: list[Span]
    epochs: list[int]

    def mark(self, vectors: Vectors, dead: Positions) -> None:
        """Mark rows as deleted; runs without a vector are skipped."""
        owners = self.rows.part_of(dead)
        for index in np.unique(owners).tolist():
            span = self.spans[index]
            vector = vectors.get(span.run.file.path)
            if vector is not None:
                positions = dead[owners == index]
                vector.mark(positions - self.rows.starts[index] + span.start)


def run_files(manifest: Manifest) -> dict[str, RunFile]:
    """Return a version's run files by path."""
    return {slice_.file.path: slice_.file for slice_ in manifest.slices}


def vectors_of_manifest(store: Store, manifest: Manifest) -> Vectors:
    """Compute every run's deletion vector from the manifest alone.

    Deleted are tombstones, errors, entries outside the live ranges, and entries superseded by
    `core.precedence`. If rows are combined from several entries, a key's newest one carries its
    row.
    """
    files = run_files(manifest)
    vectors = {path: Vector(file.rows) for path, file in files.items()}
    _mark_outside_live_ranges(store, manifest, vectors)
    snapshot = Snapshot(store, manifest)
    for chunk in snapshot.chunks():
        lined = _align_entries(store, manifest, chunk)
        lined.mark(vectors, np.flatnonzero(_find_deleted(manifest.schema, lined)))
        RUNS.trim(len(lined.rows))
    return vectors


def vectors_after_changes(
    store: Store, manifest: Manifest, known: Mapping[str, Vector], new: Collection[str]
) -> Vectors:
    """Compute deletion vectors from known vectors and the keys in new runs."""
    vectors = _initial_vectors(store, manifest, known, new)
    for path in new:
        for span in _spans_of(store, manifest, path):
            for start in range(span.start, span.stop, CHUNK_ROWS):
                chunk = Span(span.run, start, min(start + CHUNK_ROWS, span.stop))
                _mark_by_keys(store, manifest, chunk, vectors)
                RUNS.trim(len(chunk))
    return vectors


def vectors_after_superseding(
    store: Store,
    manifest: Manifest,
    known: Mapping[str, Vector],
    new: Collection[str],
    deaths: Sequence[Deaths],
) -> Vectors | None:
    """Compute deletion vectors from known vectors and the superseded rows recorded by writers.

    None if the live row count differs from the table's: some superseded rows were not recorded
    (`delta.prepared_files`).
    """
    vectors = _initial_vectors(store, manifest, known, new)
    for superseded in deaths:
        for path in superseded.keys() & vectors.keys():
            vectors[path].mark(superseded[path].astype(np.int64))
    live = sum(vector.rows - vector.count for vector in vectors.values())
    return vectors if live == manifest.live_rows else None


def _initial_vectors(
    store: Store, manifest: Manifest, known: Mapping[str, Vector], new: Collection[str]
) -> Vectors:
    """Return known vectors, copied, and new runs' vectors; rows outside live ranges are marked."""
    files = run_files(manifest)
    vectors = {path: known[path].copy() for path in known if path in files}
    vectors |= {path: Vector(files[path].rows) for path in new}
    _mark_outside_live_ranges(store, manifest, vectors)
    return vectors


def _mark_outside_live_ranges(store: Store, manifest: Manifest, vectors: Vectors) -> None:
    """Mark the rows outside their runs' live ranges as deleted."""
    for path, vector in vectors.items():
        reached = 0
        for span in _spans_of(store, manifest, path):
            vector.mark_range(reached, max(reached, span.start))
            reached = max(reached, span.stop)
        vector.mark_range(reached, vector.rows)


def _spans_of(store: Store, manifest: Manifest, path: str) -> list[Span]:
    """Return a run's live spans, ascending."""
    slices = [slice_ for slice_ in manifest.slices if slice_.file.path == path]
    spans = [
        Span.within(RUNS.open(store, owned_slice.file), owned_slice.live) for owned_slice in slices
    ]
    return sorted((span for span in spans if len(span)), key=lambda span: span.start)


def _align_entries(
    store: Store, manifest: Manifest, hash_range: HashRange = ALL_HASHES
) -> _AlignedEntries:
    """Return the entries in a hash range, as `Snapshot.parts` does."""
    spans: list[Span] = []
    epochs: list[int] = []
    for slice_, run in Snapshot(store, manifest).opened(hash_range):
        span = Span.within(run, slice_.live.intersect(hash_range))
        if len(span):
            spans.append(span)
            epochs.append(slice_.epochs.lower)
    return _AlignedEntries(Rows(manifest.schema, list(map(RunPart, spans))), spans, epochs)


def _find_deleted(schema: TableSchema, lined: _AlignedEntries) -> Mask:
    """Return which rows are deleted; the rows must include all entries for their keys."""
    rows, dead = lined.rows, np.ones(len(lined.rows), dtype=np.bool_)
    if not len(rows):
        return dead
    merge = merge_function_for(schema)
    if schema.shows_combined_rows:
        order, begins = arrange(rows, None, lambda _: [])
        lasts = order[np.flatnonzero(np.append(begins[1:], True))]
        reduced = merge.reduce(rows, epochs=epochs_by_part(rows, lined.epochs))
        dead[lasts[are_rows(reduced.rows, reduced.at)]] = False
        return dead
    _, wins = merge.mark_winners(rows, lined.epochs)
    return ~(is_live(_diffs(rows)) & wins)


def _diffs(rows: Rows) -> pa.Array:
    pieces = [rows.slice(i, [DIFF], 0, len(part))[0] for i, part in enumerate(rows.parts)]
    return pa.concat_arrays(pieces)


def _mark_by_keys(store: Store, manifest: Manifest, chunk: Span, vectors: Vectors) -> None:
    """Mark all entries for a chunk's keys as deleted, except each key's current row."""
    schema = manifest.schema
    key_rows = Rows(schema, [RunPart(chunk)])
    [hashes, *keys] = key_rows.slice(0, [HASH, *schema.identity], 0, len(chunk))
    probes = hashes.to_numpy()
    lined = _align_entries(store, manifest, HashRange.spanning(probes[0], probes[-1]))
    hits = list(iter_matches(lined.rows, probes, keys))
    gathered = merge_function_for(schema).gather(lined.rows, lined.epochs, hits, len(probes))
    is_combined = schema.shows_combined_rows
    row_of_key = newest_entries(hits, len(probes)) if is_combined else gathered.at.copy()
    row_of_key[~are_rows(gathered.rows, gathered.at)] = -1
    for hit in hits:
        lined.mark(vectors, hit.rows[hit.rows != row_of_key[hit.probes]])


def newest_entries(hits: Iterable[KeyMatches], count: int) -> Positions:
    """Return each key's newest entry, or -1 if there is none; parts must be in epoch order."""
    newest = np.full(count, -1, dtype=np.int64)
    for hit in hits:
        newest[hit.probes] = np.maximum(newest[hit.probes], hit.rows)
    return newest


@dataclass(frozen=True, slots=True)
class PendingRows:
    """Rows written in the versions after a mirror's shown version."""

    shown: int
    upper: int
    """The first version that is not counted yet."""
    written: int = 0
    superseded: int = 0
    """Written rows with an earlier row of their key."""
    is_countable: bool = True
    """Whether the deletion vectors grow by the superseded rows only."""

    def including(self, commit: Commit) -> PendingRows:
        """Return the rows with those of the next version."""
        counters = commit.counters
        return PendingRows(
            shown=self.shown,
            upper=commit.version + 1,
            written=self.written + sum(file.rows for file in commit.added),
            superseded=self.superseded + counters.get("updates", 0) + counters.get("deletes", 0),
            is_countable=self.is_countable
            and commit.kind is not Kind.OVERWRITE
            and commit.schema is None,
        )

    def vector_bytes(self, live: Iterable[DeltaAction]) -> int:
        """Estimate the bytes of all deletion vectors if these rows are published.

        Rows are deleted at random: two bytes each, up to a bit per row in whole containers.
        """
        counts = [
            (json.loads(add["stats"])["numRecords"], add.get("deletionVector") or {})
            for add in live
        ]
        files = [(rows, vector.get("cardinality", 0)) for rows, vector in counts]
        share = self.superseded / max(1, sum(rows - dead for rows, dead in files))
        dead_rows = [(rows, dead + min(1.0, share) * (rows - dead)) for rows, dead in files]
        return round(sum(min(2 * dead, -(-rows >> 16) * 8192) for rows, dead in dead_rows))
