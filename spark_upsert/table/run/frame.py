"""The one batch of a run file, from bytes that may say anything.

Checksums find accidents. Any user with write access to the table's folder can write a file with
right checksums and wrong contents, and Arrow believes what it reads: an offset that leads out of a
buffer ends the process. So files are parsed here and nowhere else:

- the parser reads the messages at the beginning of the file, in verified blocks, and never
  the footer, which could point elsewhere;
- a batch that says it is compressed is refused before anything is unpacked: our writers never
  compress, and a kilobyte may unpack to terabytes;
- a type that our writers never store is refused: dictionaries, unions, extensions, ...;
- the lengths of all buffers are compared with the number of rows, which the log knows;
- the columns that the engine computes with, the hash and the diff, have their types and no
  null.

What the buffers hold is examined when it is touched (`layout`).
"""

from __future__ import annotations

import struct

import pyarrow as pa

from spark_upsert.model.schema import DIFF, HASH
from spark_upsert.table.run.soundness import is_plain

MAGIC_BYTES = 8
"""``ARROW1`` and padding, at the beginning of a file."""

PREFIX_BYTES = 8
"""Mark and length, before each message of a file."""

_ALIGNMENT = 8
_COMPRESSION_FIELD = 3
_HEADER_FIELD = 2
"""Places of a field in the tables ``RecordBatch`` and ``Message`` of Arrow's ``Message.fbs``."""


def parse(body: pa.Buffer, *, rows: int) -> pa.RecordBatch:
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
    for field in schema:
        _require_storable(field.name, field.type)
    if len(set(schema.names)) != len(schema):
        raise ValueError("columns of the same name")
    message = pa.ipc.read_message(reader)
    if _is_compressed(message.metadata):
        raise ValueError("a compressed batch")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows} rows")
    for name, type_ in ((HASH, pa.uint64()), (DIFF, pa.int8())):
        if name not in schema.names or schema.field(name).type != type_:
            raise ValueError(f"no column '{name}' of {type_}")
        if batch.column(name).null_count:
            raise ValueError(f"nulls in column '{name}'")
    _require_within(batch, body)
    return batch


def _require_storable(name: str, type_: pa.DataType) -> None:
    """Raise unless our writers store such values (`schema.storage_type`)."""
    types = pa.types
    if types.is_struct(type_) or types.is_map(type_) or types.is_list(type_):
        for index in range(type_.num_fields):
            _require_storable(name, type_.field(index).type)
        return
    if not (
        is_plain(type_)
        or types.is_string(type_)
        or types.is_binary(type_)
        or types.is_decimal128(type_)
        or types.is_time(type_)
        or types.is_interval(type_)
    ):
        raise ValueError(f"column '{name}' of type {type_}, which is never stored")


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
