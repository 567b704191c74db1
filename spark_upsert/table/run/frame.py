"""The one batch of a run file, from bytes that may say anything.

Checksums find accidents. Any user with write access to the table's folder can write a file with
right checksums and wrong contents, and Arrow believes what it reads: an offset that leads out of a
buffer ends the process. So files are parsed here and nowhere else:

- the parser reads the messages at the beginning of the file, in verified blocks, and never
  the footer, which could point elsewhere;
- a batch that says it is compressed is refused before anything is unpacked: our writers never
  compress, and a kilobyte may unpack to terabytes;
- a type that our writers never store is refused: dictionaries, views, ...; one that an earlier
  release stored is converted to its storage type, or its column is passed over;
- the lengths of all buffers are compared with the number of rows, which the log knows;
- the columns that the engine computes with, the hash and the diff, have their types and no
  null.

What the buffers hold is examined when it is touched (`layout`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_upsert.model.names import has_column
from spark_upsert.model.schema import (
    DIFF,
    HASH,
    find_unstorable_part,
    storage_type,
    walk_type,
)

MAGIC_BYTES = 8
"""``ARROW1`` and padding, at the beginning of a file."""

PREFIX_BYTES = 8
"""Mark and length, before each message of a file."""

_ALIGNMENT = 8
_COMPRESSION_FIELD = 3
_HEADER_FIELD = 2
"""Places of a field in the tables ``RecordBatch`` and ``Message`` of Arrow's ``Message.fbs``."""


class ParsedRun(NamedTuple):
    """The batch of a file."""

    batch: pa.RecordBatch
    unreadable: Mapping[str, pa.DataType]
    """Columns of the file that are not in the batch: an earlier release stored their types."""


def parse(body: pa.Buffer, *, rows: int) -> ParsedRun:
    """Return the batch of a file without copying it.

    Parameters
    ----------
    body : pyarrow.Buffer
        The file up to the end of its batch. The blocks of its two messages are verified.
    rows : int
        How many rows it should have.

    Raises
    ------
    ValueError, OSError, EOFError, pyarrow.ArrowException
        It is not the file of a run.
    """
    reader = pa.BufferReader(body.slice(MAGIC_BYTES))
    schema = pa.ipc.read_schema(pa.ipc.read_message(reader))
    unreadable = {field.name: field.type for field in schema if not _is_read(field)}
    if len(set(schema.names)) != len(schema):
        raise ValueError("columns of the same name")
    message = pa.ipc.read_message(reader)
    if _is_compressed(message.metadata):
        raise ValueError("a compressed batch")
    if unreadable:
        batch = _batch_without(unreadable, schema, body)
    else:
        batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows} rows")
    for name, type_ in ((HASH, pa.uint64()), (DIFF, pa.int8())):
        if not has_column(schema, name) or schema.field(name).type != type_:
            raise ValueError(f"no column '{name}' of {type_}")
        if batch.column(name).null_count:
            raise ValueError(f"nulls in column '{name}'")
    _require_within(batch, body)
    return ParsedRun(batch, unreadable)


def _is_read(field: pa.Field) -> bool:
    """Return whether a column of a file is read, in its own type or in the storage type of it.

    Raises
    ------
    ValueError
        No release stored such a type.
    """
    if find_unstorable_part(field.name, field.type) is None:
        return True
    if not any(_is_earlier(part.type) for part, _ in walk_type(field.name, field.type)):
        raise ValueError(f"column '{field.name}' of type {field.type}, which is never stored")
    return find_unstorable_part(field.name, storage_type(field.type)) is None


def _is_earlier(type_: pa.DataType) -> bool:
    """Return whether an earlier release stored a type that is stored in another one today."""
    types = pa.types
    return bool(
        types.is_fixed_size_list(type_)
        or types.is_list_view(type_)
        or types.is_large_list_view(type_)
        or types.is_union(type_)
        or types.is_decimal256(type_)
        or types.is_null(type_)
        or isinstance(type_, pa.BaseExtensionType)
    )


def _batch_without(names: Iterable[str], schema: pa.Schema, body: pa.Buffer) -> pa.RecordBatch:
    """Return the batch of a file without some columns, whose buffers are passed over."""
    kept = [index for index, name in enumerate(schema.names) if name not in names]
    options = pa.ipc.IpcReadOptions(included_fields=kept)
    with pa.ipc.open_stream(body.slice(MAGIC_BYTES), options=options) as reader:
        return reader.read_next_batch()


def _require_within(batch: pa.RecordBatch, body: pa.Buffer) -> None:
    """Raise if Arrow has copied a buffer because of its place: it could not be verified there."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                low = buffer.address - body.address
                if low % _ALIGNMENT or not 0 <= low <= low + buffer.size <= body.size:
                    raise ValueError(f"a buffer of {buffer.size} bytes at {low}")


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return whether a message holds a compressed batch; Arrow has verified its flatbuffer."""
    data = memoryview(metadata)
    try:
        message = _number("<I", data, 0)
        header = _field(data, message, _HEADER_FIELD)
        if header is None:
            raise ValueError("a message without a header")
        batch = header + _number("<I", data, header)
        return _field(data, batch, _COMPRESSION_FIELD) is not None
    except struct.error as error:
        raise ValueError(f"a message that ends early: {error}") from error


def _field(data: memoryview, table: int, field: int) -> int | None:
    """Return where a field of a flatbuffer's table is, or None if it is absent."""
    vtable = table - _number("<i", data, table)
    slot = 4 + 2 * field
    if slot >= _number("<H", data, vtable):
        return None
    offset = _number("<H", data, vtable + slot)
    return table + offset if offset else None


def _number(form: str, data: memoryview, at: int) -> int:
    if at < 0:
        raise ValueError("a message whose parts lie outside of it")
    number: int = struct.unpack_from(form, data, at)[0]
    return number
