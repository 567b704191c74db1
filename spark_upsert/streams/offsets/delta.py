"""Offsets of many inputs (`CompactOffsets`): a *base* with all positions, and a delta.

A base is durable before an offset names it. It is removed once no offset of the last `BATCHES_KEPT`
batches names it, as in Spark's retention (docs/adr/0021).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from spark_upsert.core.lru import LruMap
from spark_upsert.errors import CorruptionError, setting
from spark_upsert.store import Store
from spark_upsert.store.records import (
    MALFORMED,
    RECORD_BYTES_MAX,
    checked_data,
    require_readable,
    whole,
)
from spark_upsert.streams.offsets.offset import (
    VERSION_OF_MANY,
    Json,
    Offset,
    Position,
    canonical,
    checked_offset,
    no_offset,
)

FOLDER = "_offsets"
"""Folder for bases below an ``inputsPattern`` root."""

_CACHED = 2
"""Bases kept in memory: a batch's start base and its end base."""

_LEVEL = 1
"""Compression level. Ids and tokens are random: higher levels hardly help."""

_STREAM = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"(\d{10,18})-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True, order=True)
class BaseName:
    """A base's name: ``<stream>/<number>-<digest>``.

    ``number`` is the batch for which it was written, ``digest`` 32 hexadecimal digits from the
    SHA-256 over its uncompressed JSON text. ``stream`` is the id drawn for a stream's first compact
    offset.
    """

    number: int
    """The batch for which it was written, counted within the stream."""
    digest: str

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.digest}"

    @classmethod
    def parse(cls, name: Any) -> BaseName:
        """Parse a name; raises `ValueError`."""
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise ValueError(f"{name!r} is no name of a base")
        return cls(int(match[1]), match[2])


def stream_id(value: Any) -> str:
    """Return a valid stream id, which names a folder; raises `ValueError`."""
    if not isinstance(value, str) or _STREAM.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no id of a stream")
    return value


class Bases:
    """All streams' bases below one root.

    Parameters
    ----------
    store : Store
        At the root.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: LruMap[tuple[str, BaseName], Mapping[str, Position]] = LruMap(_CACHED)
        self._checked: Mapping[str, Position] = {}
        """The positions in the last written base."""

    def write(self, stream: str, number: int, positions: Mapping[str, Position]) -> BaseName:
        """Write positions durably; return the base's name."""
        content = _content(positions)
        base = BaseName(number, _digest(content))
        path = _path(stream, base)
        # Most positions are the same objects as in the base before, and were decoded for that one.
        changed = {
            n: position for n, position in positions.items() if self._checked.get(n) is not position
        }
        record = checked_data(
            path,
            changed,
            lambda: zlib.compress(content, _LEVEL),
            lambda _: _positions(_content(changed)),
        )
        self._store.prepare(stream)
        if not record.put_if_absent(self._store):
            # Left by a process killed before it, or its folder, was durable.
            self._fetch(path, base)
            self._store.sync(path)
        self._cache.put((stream, base), positions)
        self._checked = positions
        return base

    def read(self, stream: str, base: BaseName) -> Mapping[str, Position]:
        """Return a base's positions; callers must not change them."""
        return self._cache.get_or_create(
            (stream, base), lambda: self._fetch(_path(stream, base), base)
        )

    def remove_all_but(self, stream: str, kept: Collection[BaseName], *, number: int) -> None:
        """Remove a stream's bases up to a batch number, except ``kept``."""
        for info in self._store.list(stream):
            try:
                base = BaseName.parse(info.path.rpartition("/")[2])
            except ValueError:
                continue  # Whatever it is, it is not ours.
            if base.number <= number and base not in kept:
                self._store.delete(info.path)

    def _fetch(self, path: str, base: BaseName) -> Mapping[str, Position]:
        where = f"{self._store.url}/{path}"
        try:
            data = self._store.read(path, bytes_max=RECORD_BYTES_MAX)
        except FileNotFoundError:
            raise _unusable(where, "it is missing") from None
        try:
            inflater = zlib.decompressobj()
            content = inflater.decompress(data, RECORD_BYTES_MAX)
            if _digest(content) != base.digest:
                raise ValueError("its content is not the one that its name tells")
            return _positions(content)
        except (zlib.error, *MALFORMED) as error:
            raise _unusable(where, f"it is damaged ({error})") from error


def _path(stream: str, base: BaseName) -> str:
    return f"{stream}/{base}"


def _content(positions: Mapping[str, Position]) -> bytes:
    """Return the canonical text for positions: JSON, sorted by name."""
    entries = (f"{json.dumps(name)}:{positions[name].text}" for name in sorted(positions))
    return f"{{{','.join(entries)}}}".encode()


def _positions(content: bytes) -> dict[str, Position]:
    """Parse positions from a text (`_content`)."""
    records: dict[str, dict[str, Any]] = json.loads(content)
    return {name: Position.of(record) for name, record in records.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _unusable(where: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"the offset in the checkpoint names '{where}', which holds the positions of the query's "
        f"inputs, but {why}.",
        hint="restore that file from a copy. If the folder was moved, name it by "
        f"{setting('offsetsPath')}. If it is gone for good, give the query a new "
        "checkpointLocation: it delivers all inputs from their beginning, so let what it feeds "
        "begin anew, too. Nobody but the query may remove files there.",
        path=where,
    )


INPUTS_MAX = 300
"""Maximum inputs in the plain form: less than 50 kB, and 3 ms per batch."""

DELTA_MAX = 1_000
"""A new base is written if more inputs than this differ from the last one."""

BATCHES_KEPT = 110
"""Spark keeps 100 batches' offsets; a batch needs the one before it, and Spark cleans up late."""

_RECENT = 3
"""Spark passes a batch's end for the next batch, the splits and the commit."""

_FIELDS = frozenset({"bases", "delta", "number", "state", "stream", "version"})


def _new_stream() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compact:
    """A compact offset (version 3).

    ``bases`` are the ones named by recent batches, oldest first; the last one belongs to this
    offset. ``number`` counts batches in this form. ``delta`` has the positions differing from the
    base; null: removed.
    """

    stream: str
    number: int
    bases: tuple[BaseName, ...]
    delta: Mapping[str, Position | None]
    state: Mapping[str, Json]

    def to_json(self, records: Mapping[str, Any]) -> dict[str, Any]:
        """Return the canonical form, its keys in order."""
        return {
            "bases": [str(base) for base in self.bases],
            "delta": {name: records[name] for name in sorted(self.delta)},
            "number": self.number,
            "state": json.loads(canonical(dict(self.state))),
            "stream": self.stream,
            "version": VERSION_OF_MANY,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> _Compact:
        if record.keys() != _FIELDS:
            raise no_offset(record)
        try:
            bases = tuple(map(BaseName.parse, record["bases"]))
            if not bases or sorted(bases) != list(bases):
                raise ValueError("the bases are not in order")
            return cls(
                stream=stream_id(record["stream"]),
                number=whole(record["number"], least=1),
                bases=bases,
                delta={
                    name: None if position is None else Position.of(position)
                    for name, position in record["delta"].items()
                },
                state={name: json.loads(canonical(e)) for name, e in record["state"].items()},
            )
        except MALFORMED as error:
            raise no_offset(record) from error


@dataclass(frozen=True, slots=True)
class _KnownOffset:
    """An offset in its stored and parsed forms."""

    record: Mapping[str, Any]
    compact: _Compact
    offset: Offset


class CompactOffsets:
    """Offset form storing most positions in bases (`Offsets`).

    A batch's end keeps its start's base until more than `DELTA_MAX` inputs differ, hence its text
    is a function of start, positions and state. A stream never leaves this form.

    Parameters
    ----------
    bases : Bases
        The base store.
    new_stream : callable, optional
        Creates an id for a stream changing to this form.
    """

    def __init__(self, bases: Bases, *, new_stream: Callable[[], str] = _new_stream) -> None:
        self._bases = bases
        self._new_stream = new_stream
        self._drawn: str | None = None
        self._cleaned: tuple[BaseName, ...] | None = None
        self._recent: deque[_KnownOffset] = deque(maxlen=_RECENT)
        self._records: dict[str, tuple[Position | None, Any]] = {}
        """Stored records in the last written delta, by input."""

    def read(self, record: Mapping[str, Any]) -> Offset:
        """Parse an offset in either form; may read its base.

        Recent offsets are cached and return the identical object.
        """
        known_offset = self._parse(record)
        return Offset.from_json(record) if known_offset is None else known_offset.offset

    def _parse(self, record: Mapping[str, Any]) -> _KnownOffset | None:
        """Return an offset in compact form, None if it is in plain form."""
        for known_offset in self._recent:
            if known_offset.record == record:
                return known_offset
        compact = _compact(record)
        if compact is None:
            return None
        known_offset = _KnownOffset(record, compact, self._offset(compact))
        self._recent.appendleft(known_offset)
        return known_offset

    def _offset(self, compact: _Compact) -> Offset:
        positions = dict(self._bases.read(compact.stream, compact.bases[-1]))
        for name, position in compact.delta.items():
            if position is None:
                positions.pop(name, None)
            else:
                positions[name] = position
        return Offset(positions=positions, state=compact.state)

    def write(
        self,
        offset: Offset,
        start: Mapping[str, Any],
        *,
        moved: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return a batch's end in stored form, after writing a new base if needed."""
        known_offset = self._parse(start)
        before = None if known_offset is None else known_offset.compact
        if before is None and len(offset.positions) <= INPUTS_MAX:
            return checked_offset(offset)
        stream = self._stream() if before is None else before.stream
        number = 1 if before is None else before.number + 1
        bases = () if before is None else before.bases
        delta: Mapping[str, Position | None] | None = None
        if before is not None and bases:
            base = self._bases.read(stream, bases[-1])
            delta = _next_delta(before.delta, moved, base, offset.positions)
        if delta is None or len(delta) > DELTA_MAX:
            delta = {}
            bases = (*bases, self._bases.write(stream, number, offset.positions))
        end = _Compact(
            stream=stream,
            number=number,
            bases=still_needed(bases, number),
            delta=delta,
            state=offset.state,
        )
        known_before = self._records
        record = end.to_json(self._records_of(delta))
        changed = {
            n: position
            for n, position in self._records.items()
            if known_before.get(n) is not position
        }
        part = {**record, "delta": {name: position for name, (_, position) in changed.items()}}
        require_readable(
            "the offset of the batch",
            replace(end, delta={name: position for name, (position, _) in changed.items()}),
            lambda: _Compact.from_json(part),
        )
        self._recent.appendleft(_KnownOffset(record, end, offset))
        return record

    def _records_of(self, delta: Mapping[str, Position | None]) -> dict[str, Any]:
        before = self._records
        self._records = {
            name: recorded
            if (recorded := before.get(name)) is not None and recorded[0] is position
            else (position, None if position is None else position.record)
            for name, position in delta.items()
        }
        return {name: record for name, (_, record) in self._records.items()}

    def commit(self, end: Mapping[str, Any]) -> None:
        """Remove the bases no longer needed by any batch."""
        known_offset = self._parse(end)
        if known_offset is None or known_offset.compact.bases == self._cleaned:
            return
        compact = known_offset.compact
        self._bases.remove_all_but(compact.stream, compact.bases, number=compact.number)
        self._cleaned = compact.bases

    def _stream(self) -> str:
        # Drawn once: two questions for the first offset get the same text.
        if self._drawn is None:
            self._drawn = self._new_stream()
        return self._drawn


def difference(
    base: Mapping[str, Position], positions: Mapping[str, Position]
) -> dict[str, Position | None]:
    """Return the entries turning a base's positions into these; None: removed."""
    delta: dict[str, Position | None] = {
        name: position
        for name, position in positions.items()
        # Most are the very objects of the base, which is much faster to see.
        if (base_position := base.get(name)) is not position and base_position != position
    }
    delta.update(dict.fromkeys(base.keys() - positions.keys()))
    return delta


def _next_delta(
    delta: Mapping[str, Position | None],
    moved: Collection[str] | None,
    base: Mapping[str, Position],
    positions: Mapping[str, Position],
) -> dict[str, Position | None]:
    """Return the delta for new positions, from the start's delta and the moved inputs."""
    if moved is None:
        return difference(base, positions)
    new_delta = dict(delta)
    for name in moved:
        position = positions.get(name)
        if position == base.get(name):
            new_delta.pop(name, None)
        else:
            new_delta[name] = position
    return new_delta


def still_needed(bases: tuple[BaseName, ...], number: int) -> tuple[BaseName, ...]:
    """Return the bases named by recent batches, and the last one."""
    recent = (base for base, after in pairwise(bases) if after.number > number - BATCHES_KEPT)
    return (*recent, bases[-1])


def _compact(record: Mapping[str, Any]) -> _Compact | None:
    is_compact = record.get("version") == VERSION_OF_MANY
    return _Compact.from_json(record) if is_compact else None
