"""The two formats of files that hold texts: JSON, an object in each line, and CSV.

A text is exactly of the declared type, or the reader refuses the file with the number of the line
or row. JSON is decoded as payloads are (`payloads.json.text`). In CSV, Arrow only finds the values:
its own readings of numbers take ``0x10``, ``N/A`` and ``1e999`` for values that their writer did
not mean.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from spark_upsert.conversions import try_convert
from spark_upsert.conversions.reasons import shown
from spark_upsert.model.portions import portions
from spark_upsert.model.schema import storage_type
from spark_upsert.payloads.files.formats import (
    PART_BYTES,
    BadFile,
    FileRange,
    OpenFile,
    WantedColumns,
    fitted,
    require_fits,
)
from spark_upsert.payloads.json.text import JsonDecoder

_BLOCK_BYTES = 1 << 20
_LINE_BYTES_MAX = 256 << 20
"""A longer line is no line of JSON but another format; memory has a bound."""

_VALUES_AT_ONCE = 1 << 16
"""Values read at once, of all columns: a short line may have many, each of 16 bytes and a text."""

_FEED = 0x0A
_BOM = b"\xef\xbb\xbf"
_BLANK = r"\A[ \t\r\n]*\z"

_INTEGER = r"\A-?[0-9]{1,19}\z"
_FLOAT = r"\A(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|[+-]?(?i:inf|infinity))\z"
_TRUE, _FALSE = r"(?i)\Atrue\z", r"(?i)\Afalse\z"
_TIMES = (pa.timestamp("us"), pa.timestamp("us", "UTC"))


# -- JSON ---------------------------------------------------------------------------------


class JsonReader:
    """JSON lines, cut at line feeds, which no JSON text holds; empty lines are passed by."""

    def columns(self, open_: OpenFile) -> pa.Schema:
        """Return what the first lines seem to hold; dates and times stay texts."""
        with open_() as file:
            data = file.read(_BLOCK_BYTES)
        whole = data[: data.rfind(b"\n") + 1] or data
        if not whole.strip():
            raise BadFile("it is empty, so that its columns are not known", hint=_GIVE_SCHEMA)
        found = pyarrow.json.read_json(
            io.BytesIO(whole),
            pyarrow.json.ReadOptions(use_threads=False, block_size=2 * len(whole)),
        )
        fields = []
        for field in found.schema:
            if _holds_null(field.type):
                raise BadFile(
                    f"its column '{field.name}' is null in all lines that were looked at",
                    column=field.name,
                    hint=_GIVE_SCHEMA,
                )
            fields.append(pa.field(field.name, _without_times(storage_type(field.type))))
        return pa.schema(fields)

    def parts(self, open_: OpenFile, size: int) -> list[FileRange]:
        """Cut by bytes: a line belongs to the part in which it begins."""
        return [
            FileRange(first, min(first + PART_BYTES, size), min(PART_BYTES, size - first))
            for first in range(0, size, PART_BYTES)
        ] or [FileRange()]

    def count(self, open_: OpenFile) -> int | None:
        return None

    def behind(self, open_: OpenFile, part: FileRange, rows: int) -> tuple[FileRange, int]:
        """Return the part: where a row begins is known once all before it are read."""
        return part, rows

    def read(
        self, open_: OpenFile, part: FileRange, columns: WantedColumns
    ) -> Iterator[pa.RecordBatch]:
        decoder, at_once = JsonDecoder(columns.fields), rows_at_once(columns.fields)
        line = 1
        for lines in _lines(open_, part):
            is_blank = pc.match_substring_regex(lines, _BLANK)
            payloads = lines.filter(pc.invert(is_blank))
            for start in range(0, len(payloads), at_once):
                found = decoder.decode(payloads.slice(start, at_once))
                if found.reasons is None:
                    rows = pa.RecordBatch.from_arrays(list(found.columns), schema=columns.fields)
                    yield from portions(rows)
                    continue
                bad = start + int(np.flatnonzero(found.reasons.is_valid())[0])
                place = line + int(np.flatnonzero(~np.asarray(is_blank))[bad])
                where = f" behind byte {part.first}" if part.first else ""
                raise BadFile(
                    f"line {place}{where} is not as declared: {found.reasons[bad - start].as_py()}",
                    hint="JSON is read line by line, one object in each.",
                )
            line += len(lines)


def rows_at_once(columns: pa.Schema) -> int:
    """Return how many rows of texts become values at once."""
    return max(1, _VALUES_AT_ONCE // max(1, len(columns)))


_GIVE_SCHEMA = "give the option 'schema', for example \"id BIGINT, name STRING\"."


def _lines(open_: OpenFile, part: FileRange) -> Iterator[pa.Array]:
    """Yield the lines that begin in a part, some at a time, as binary."""
    with open_() as file:
        at = part.first
        held = b""
        if at:
            # The line that begins before belongs to the part before, unless it ends just here.
            file.seek(at - 1)
            at -= 1
            while b"\n" not in (block := file.read(_BLOCK_BYTES)):
                if not block:
                    return
                at += len(block)
            skipped = block.index(b"\n") + 1
            held, at = block[skipped:], at + skipped
        mark = _BOM if at == 0 else b""
        while part.end is None or at < part.end:
            block = file.read(_BLOCK_BYTES)
            held += block
            end = held.rfind(b"\n") + 1 if block else len(held)
            if end:
                limit = None if part.end is None else part.end - at
                lines, taken = _cut(held[:end], mark, limit)
                if len(lines):
                    yield lines
                if taken < end:
                    return
                held, at, mark = held[end:], at + end, b""
            if not block:
                return
            if len(held) > _LINE_BYTES_MAX:
                raise BadFile(f"a line is longer than {_LINE_BYTES_MAX >> 20} MiB")


def _cut(data: bytes, mark: bytes, limit: int | None) -> tuple[pa.Array, int]:
    """Return the lines that begin before a limit, without a mark, and how many bytes they take."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _FEED) + 1
    if not len(ends) or ends[-1] < len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    if limit is not None:
        count = int(np.searchsorted(offsets[:-1], limit, side="left"))
        offsets = offsets[: count + 1]
    if data.startswith(mark):
        offsets[0] = len(mark)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers), int(offsets[-1])


def _holds_null(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_holds_null(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_null(type_))


def _without_times(type_: pa.DataType) -> pa.DataType:
    """Return a type without what Arrow guessed to be times."""
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_without_times(f.type)) for f in type_.fields])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_without_times(type_.value_type)))
    return pa.string() if pa.types.is_temporal(type_) else type_


# -- CSV ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CsvReader:
    """CSV; values may hold line feeds, so that a file is never cut."""

    header: bool
    separator: str
    quote: str
    escape: str | None
    null_value: str

    def columns(self, open_: OpenFile) -> pa.Schema:
        """Return the columns, all of them texts."""
        with open_() as file:
            if not file.read(1):
                raise BadFile("it is empty, so that its columns are not known", hint=_GIVE_SCHEMA)
        return pa.schema([pa.field(name, pa.string()) for name in self._names(open_)])

    def parts(self, open_: OpenFile, size: int) -> list[FileRange]:
        return [FileRange(bytes=size)]

    def count(self, open_: OpenFile) -> int | None:
        return None

    def behind(self, open_: OpenFile, part: FileRange, rows: int) -> tuple[FileRange, int]:
        """Return the part: where a row begins is known once all before it are read."""
        return part, rows

    def read(
        self, open_: OpenFile, part: FileRange, columns: WantedColumns
    ) -> Iterator[pa.RecordBatch]:
        with open_() as file:
            if not file.read(1):
                return
        names = self._own_names(self._names(open_), columns)
        texts = WantedColumns(
            pa.schema([field.with_type(pa.string()) for field in columns.fields]),
            columns.is_chosen,
            columns.is_merged,
        )
        require_fits(pa.schema([(name, pa.string()) for name in names]), texts)
        row = 1 + self.header
        fields = pa.schema([field.with_nullable(True) for field in columns.fields])
        at_once = rows_at_once(columns.fields)
        for block in self._batches(open_, names):
            for batch in portions(block, rows_max=at_once):
                found = [
                    _column(batch.column(field.name), field, row)
                    if field.name in names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in columns.fields
                ]
                row += batch.num_rows
                rows = pa.RecordBatch.from_arrays(found, schema=fields)
                yield from (fitted(part, columns) for part in portions(rows))

    def _names(self, open_: OpenFile) -> list[str]:
        """Return the names in the header, or those that stand for columns without names."""
        with open_() as file, self._opened(file, None) as reader:
            names: list[str] = reader.schema.names
        return names if self.header else [f"_c{i}" for i in range(len(names))]

    def _own_names(self, names: list[str], columns: WantedColumns) -> list[str]:
        if self.header or names == columns.fields.names or not columns.is_chosen:
            return names
        if len(names) != len(columns.fields):
            raise BadFile(
                f"it has {len(names)} columns, and 'schema' declares {len(columns.fields)}",
                hint="without a header columns are told apart by their order: declare all of them.",
            )
        return list(columns.fields.names)

    def _batches(self, open_: OpenFile, names: list[str]) -> Iterator[pa.RecordBatch]:
        with open_() as file:
            tap = _Quotes(file, self.quote.encode())
            with self._opened(tap, names) as reader:
                yield from reader
        if self.escape is None and tap.count % 2:
            raise BadFile("a quote is not closed: it ends within a value, or is half-written")

    def _opened(self, file: object, names: list[str] | None) -> pyarrow.csv.CSVStreamingReader:
        """Open a file; with names, all of its values are texts."""
        held = names if names is not None and not self.header else None
        return pyarrow.csv.open_csv(
            file,
            pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=held,
                autogenerate_column_names=held is None and not self.header,
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self.separator,
                quote_char=self.quote,
                double_quote=self.escape is None,
                escape_char=self.escape or False,
                newlines_in_values=True,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names or (), pa.string()),
                null_values=[self.null_value],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


class _Quotes(io.RawIOBase):
    """A file that counts quotes on the way."""

    def __init__(self, file: pa.NativeFile, quote: bytes) -> None:
        self._file = file
        self._quote = quote
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = self._file.read(None if size is None or size < 0 else size)
        self.count += data.count(self._quote)
        return data


def _column(texts: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
    """Return texts as values; ``first_row`` is the number of the first of them in its file."""
    found, bad = parsed(texts, field.type)
    rows = np.flatnonzero(bad)
    if len(rows):
        text = shown(texts[int(rows[0])].as_py())
        raise BadFile(
            f"row {first_row + int(rows[0])}, column '{field.name}': '{text}' is no {field.type}",
            column=field.name,
        )
    return found


def parsed(texts: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Return texts as values of a type, and which of them are bad.

    Raises
    ------
    BadFile
        No text is a value of the type.
    """
    good = np.zeros(len(texts), dtype=np.bool_)
    if pa.types.is_string(type_):
        return texts, good
    if pa.types.is_binary(type_):
        return texts.cast(type_), good
    if pa.types.is_decimal128(type_) or pa.types.is_date32(type_) or type_ in _TIMES:
        return try_convert(texts, type_)
    if pa.types.is_boolean(type_):
        is_true, is_false = (pc.match_substring_regex(texts, form) for form in (_TRUE, _FALSE))
        return is_true, _mask(pc.invert(pc.or_(is_true, is_false)))
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        form = _INTEGER if pa.types.is_integer(type_) else _FLOAT
        is_number = pc.match_substring_regex(texts, form)
        found, bad = try_convert(pc.if_else(is_number, texts, None), type_)
        return found, bad | _mask(pc.invert(is_number))
    raise BadFile(f"CSV has no form for a column of type {type_}")


def _mask(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def compression_of(name: str) -> str | None:
    """Return how a file of texts is compressed, by the end of its name."""
    match = re.search(r"\.(gz|bz2|zst|lz4)\Z", name)
    return None if match is None else {"gz": "gzip", "zst": "zstd"}.get(match[1], match[1])
