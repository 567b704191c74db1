"""Search for a value in all files below a path (`sightings`), by content and not by file name.

Arrow and Parquet are read by column, JSON by leaf, other files by byte. Texts match within longer
texts, other values by equality.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_upsert.core.casts import UnfitError
from spark_upsert.core.python_values import array_of
from spark_upsert.store import Store
from spark_upsert.store.cache import whole_copy

_BATCH_ROWS = 1 << 16
"""Parquet rows per read batch."""

_ENCODED = re.compile(rb"[A-Za-z0-9+/]{24,}={0,2}")
"""Possibly Base64 text."""

_BYTES_CHARS_MIN = 4
"""Minimum length for byte searches; shorter texts match by chance."""

BYTES = "(bytes)"
"""Column name for matches in files without columns."""

PARTS = "(parts of a file: not searched by column)"
"""Column name for an Arrow file that cannot be opened, listed because it may hold the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A file column containing the value."""

    path: str
    column: str
    values: int
    """Match count."""


def sightings(
    store: Store,
    value: str,
    *,
    column: str | None = None,
    on_progress: Callable[[str], object] | None = None,
) -> Iterator[Sighting]:
    """Search all files for a value; yields matches per file and column."""
    searched = _SearchedValue(value, column)
    for number, path in enumerate(paths(store), start=1):
        if on_progress is not None:
            on_progress(f"file {number:,}, {path}")
        try:
            data = store.map(path)
        except FileNotFoundError:
            continue  # A temporary file renamed meanwhile, or removed by a vacuum.
        counts: Counter[str] = Counter()
        for name, number in _iter_matches(data, searched):
            counts[name] += number
        for name, number in sorted(counts.items()):
            if number:
                yield Sighting(path=path, column=name, values=number)


def paths(store: Store, folder: str = "") -> Iterator[str]:
    """Yield all file paths below a folder."""
    for info in (*store.list(folder), *store.temporaries(folder)):
        yield info.path
    for name in store.folders(folder):
        yield from paths(store, f"{folder}/{name}" if folder else name)


class _SearchedValue:
    """The searched value, converted per type on demand."""

    def __init__(self, value: str, column: str | None) -> None:
        self.text = value
        self.column = None if column is None else column.lower()
        self.has_bytes = column is None and len(value) >= _BYTES_CHARS_MIN
        self._by_type: dict[pa.DataType, pa.Scalar | None] = {}

    def is_of(self, column: str) -> bool:
        """Return whether a column is searched."""
        return self.column is None or self.column == column.lower()

    def of_type(self, type_: pa.DataType) -> pa.Scalar | None:
        """Convert the value to a type; None if it has no such value."""
        if type_ not in self._by_type:
            try:
                self._by_type[type_] = array_of(pa.array([self.text]), type_)[0]
            except (UnfitError, pa.ArrowException, TypeError, ValueError, OverflowError):
                self._by_type[type_] = None
        return self._by_type[type_]


def _iter_matches(data: pa.Buffer, wanted: _SearchedValue) -> Iterator[tuple[str, int]]:
    """Yield columns with their match counts; a column may repeat."""
    begin = data.slice(0, min(8, data.size)).to_pybytes()
    if begin.startswith(b"ARROW1"):
        batches = _arrow_batches(whole_copy(data))
        if batches is None:
            yield PARTS, 1
            yield from _search_text(data.to_pybytes(), wanted)
        else:
            yield from _search_batches(batches, wanted)
    elif begin.startswith(b"PAR1"):
        file = pq.ParquetFile(pa.BufferReader(data))
        yield from _search_batches(file.iter_batches(batch_size=_BATCH_ROWS), wanted)
        yield from _search_statistics(file.metadata, wanted)
    else:
        yield from _search_text(data.to_pybytes(), wanted)


def _arrow_batches(data: pa.Buffer) -> Iterator[pa.RecordBatch] | None:
    """Return a file's batches; None if it is damaged, or has only some blocks (`store.cache`)."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
    except pa.ArrowInvalid:
        return None
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


def _search_batches(
    batches: Iterable[pa.RecordBatch], wanted: _SearchedValue
) -> Iterator[tuple[str, int]]:
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            yield from _search_column(name, column, wanted)


def _search_column(
    name: str, column: pa.Array, wanted: _SearchedValue
) -> Iterator[tuple[str, int]]:
    type_ = column.type
    if pa.types.is_dictionary(type_):
        yield from _search_column(name, column.dictionary_decode(), wanted)
    elif pa.types.is_struct(type_):
        for field, child in zip(type_, column.flatten(), strict=True):
            inner = name if wanted.is_of(name) and wanted.column else field.name
            yield from _search_column(inner, child, wanted)
    elif pa.types.is_map(type_):
        yield from _search_column(name, column.keys, wanted)
        yield from _search_column(name, column.items, wanted)
    elif pa.types.is_nested(type_):
        yield from _search_column(name, column.flatten(), wanted)
    elif wanted.is_of(name):
        yield name, _count_hits(column, wanted)


def _count_hits(column: pa.Array, wanted: _SearchedValue) -> int:
    """Count values equal to the searched value, or texts containing it."""
    type_ = column.type
    if (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    ):
        hit = pc.match_substring(column, wanted.text)
    elif (value := wanted.of_type(type_)) is not None and value.is_valid:
        hit = pc.equal(column, value)
    else:
        return 0
    return int(pc.sum(hit).as_py() or 0)


def _search_statistics(
    metadata: pq.FileMetaData, wanted: _SearchedValue
) -> Iterator[tuple[str, int]]:
    """Search Parquet statistics; they may describe superseded rows in a mirror."""
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            bounds = chunk.statistics
            if bounds is None or not bounds.has_min_max:
                continue
            name = chunk.path_in_schema.rpartition(".")[2]
            for bound in (bounds.min, bounds.max):
                if wanted.is_of(name) and _is_match(bound, wanted):
                    yield name, 1


def _is_match(leaf: object, wanted: _SearchedValue) -> bool:
    if isinstance(leaf, bytes):
        return wanted.text.encode() in leaf
    return wanted.text in leaf if isinstance(leaf, str) else str(leaf) == wanted.text


def _search_text(data: bytes, wanted: _SearchedValue) -> Iterator[tuple[str, int]]:
    if wanted.has_bytes and _is_in_bytes(data, wanted.text):
        yield BYTES, 1
    for line in (data, *data.splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        yield from _search_json("", record, wanted)
        if line is data:
            return  # It is one record.


def _search_json(name: str, record: Any, wanted: _SearchedValue) -> Iterator[tuple[str, int]]:
    if isinstance(record, dict):
        for key, item in record.items():
            if wanted.column is None and wanted.text == key:
                yield key, 1
            yield from _search_json(key, item, wanted)
    elif isinstance(record, list):
        for item in record:
            yield from _search_json(name, item, wanted)
    elif isinstance(record, str) and record[:1] in "{[" and record:
        try:  # Delta's log has the statistics of a file as JSON within JSON.
            inner = json.loads(record)
        except ValueError:
            inner = None
        if inner is not None:
            yield from _search_json(name, inner, wanted)
    elif record is not None and wanted.is_of(name) and _is_match(record, wanted):
        yield name, 1


def _is_in_bytes(data: bytes, text: str) -> bool:
    """Return whether bytes contain a text as UTF-8, JSON-escaped, or in Base64."""
    forms = {
        text.encode(),
        *(json.dumps(text, ensure_ascii=a)[1:-1].encode() for a in (True, False)),
    }
    if any(form in data for form in forms):
        return True
    for encoded in _ENCODED.finditer(data):
        try:
            inner = base64.b64decode(encoded[0], validate=True)
        except (binascii.Error, ValueError):
            continue
        if any(form in inner for form in forms):
            return True
    return False
