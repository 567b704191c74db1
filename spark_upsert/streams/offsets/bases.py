"""Bases: the positions of very many inputs, kept beside the checkpoint and named by their content.

An offset of many inputs names a base and says what differs from it (`compact_offsets`). A base is
an immutable object ``<stream>/<number>-<digest>``: the number of the batch that it was written for,
and the first 32 hexadecimal digits of the SHA-256 of its JSON text before that is compressed, since
compressors differ between versions. Each query has a folder of its own, named by its first offset:
two queries over the same tables neither meet nor remove what the other needs.

The order of durable writes: a base is durable before its name is given to any caller. So the base
of every offset that Spark has noted is there; a base that no offset names is removed later.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import CorruptionError, setting
from spark_upsert.model.bounded import LruMap
from spark_upsert.store import Store
from spark_upsert.store.records import MALFORMED, RECORD_BYTES_MAX, checked_data
from spark_upsert.streams.offsets.position import Position

FOLDER = "_offsets"
"""The folder of bases below the root of an ``inputsPattern``."""

_CACHED = 2
"""Bases kept in memory: that of a batch's start and that of its end."""

_LEVEL = 1
"""The level of compression. Ids and tokens are random: more effort hardly helps."""

_STREAM = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"(\d{10,18})-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True, order=True)
class BaseName:
    """The name of a base."""

    number: int
    """The number of the batch that it was written for, counted within the stream."""
    digest: str

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.digest}"

    @classmethod
    def parse(cls, name: Any) -> BaseName:
        """Rebuild a name; raises ValueError."""
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"{name!r} is no name of a base")
        return cls(int(found[1]), found[2])


def stream_id(value: Any) -> str:
    """Return the id of a stream, which names a folder; raises ValueError."""
    if not isinstance(value, str) or _STREAM.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no id of a stream")
    return value


class Bases:
    """The bases below one root, of any number of streams.

    Parameters
    ----------
    store : Store
        At the root.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: LruMap[tuple[str, BaseName], Mapping[str, Position]] = LruMap(_CACHED)
        self._checked: Mapping[str, Position] = {}
        """The positions in the base that was written last."""

    def write(self, stream: str, number: int, positions: Mapping[str, Position]) -> BaseName:
        """Keep positions durably; return the name under which they are found."""
        content = _content(positions)
        base = BaseName(number, _digest(content))
        path = _path(stream, base)
        # Most positions are the same objects as in the base before, and were decoded for that one.
        changed = {n: each for n, each in positions.items() if self._checked.get(n) is not each}
        record = checked_data(
            path,
            changed,
            lambda: zlib.compress(content, _LEVEL),
            lambda _: _positions(_content(changed)),
        )
        self._store.prepare(stream)
        if not record.put_if_absent(self._store):
            # Left by a process that was killed before it, or its folder, was durable.
            self._fetch(path, base)
            self._store.sync(path)
        self._cache.put((stream, base), positions)
        self._checked = positions
        return base

    def read(self, stream: str, base: BaseName) -> Mapping[str, Position]:
        """Return what a base holds; not to be changed.

        Raises
        ------
        CorruptionError
            It is lost or damaged.
        """
        return self._cache.of((stream, base), lambda: self._fetch(_path(stream, base), base))

    def remove_all_but(self, stream: str, kept: Collection[BaseName], *, number: int) -> None:
        """Remove the bases of a stream up to a number, except for some."""
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
    """Return the one text of some positions: JSON, sorted by name."""
    each = (f"{json.dumps(name)}:{positions[name].text}" for name in sorted(positions))
    return f"{{{','.join(each)}}}".encode()


def _positions(content: bytes) -> dict[str, Position]:
    """Return the positions in a text (`_content`)."""
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
