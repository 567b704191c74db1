"""Records: small JSON objects with a checksum, and how much of them is believed.

The log, its checkpoints, its hint and the leases are records. A checksum tells what was
damaged from what was written, not what was written wrongly or with intent. So a record is
read within bounds, and each of its fields is held against what it can be; whatever does not
fit is `CorruptionError` with the name of the file, and nothing else; a record that says to be
of another format is none of these.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from spark_upsert.errors import (
    CorruptionError,
    EarlierFormatError,
    NewerFormatError,
    UpsertFlowError,
)
from spark_upsert.store import Store
from spark_upsert.store.protocol import OBJECT_BYTES_MAX

T = TypeVar("T")

FORMAT_VERSION = 2
"""Version of the table's format; a record of another one is refused."""

RECORD_BYTES_MAX = OBJECT_BYTES_MAX

_TEXT_MAX = 1 << 20
_WHOLE_MAX = 2**63 - 1

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
)
"""Errors that reading a record of another form may raise, for every reader of records."""

UNREADABLE = (CorruptionError, NewerFormatError, EarlierFormatError)
"""The errors of a record that this version cannot read, for callers that can do without it."""


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON; its last field is the CRC-32 of all before it."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return body[:-1] + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


_CHECKSUM_BYTES = len(_checksum(b""))


def read_record(
    store: Store,
    path: str,
    build: Callable[[dict[str, Any]], T],
    *,
    bytes_max: int | None = None,
) -> T | None:
    """Return what ``build`` makes of a record, or None if there is no such object.

    Raises
    ------
    CorruptionError
        It is no record, too large, or ``build`` cannot make sense of it.
    NewerFormatError, EarlierFormatError
        It, or something in it, is of a format that this version does not read.
    """
    try:
        data = store.read(path, bytes_max=RECORD_BYTES_MAX if bytes_max is None else bytes_max)
    except FileNotFoundError:
        return None
    where = f"{store.url}/{path}"
    body = data[:-_CHECKSUM_BYTES] + b"}"
    if data[-_CHECKSUM_BYTES:] != _checksum(body):
        raise CorruptionError.in_file(
            where,
            "a JSON record that ends with its checksum",
            f"{len(data)} bytes with another end",
        )
    try:
        record = json.loads(body)
        found = whole(record.get("format", FORMAT_VERSION))
        if found == FORMAT_VERSION:
            return build(record)
    except NewerFormatError:
        raise
    except (*MALFORMED, UpsertFlowError) as error:
        said = error.message if isinstance(error, UpsertFlowError) else str(error)
        raise CorruptionError.in_file(
            where, "fields as docs/format.md tells", f"{type(error).__name__}: {said[:200]}"
        ) from error
    kind = NewerFormatError if found > FORMAT_VERSION else EarlierFormatError
    raise kind.of(f"'{where}'", found, FORMAT_VERSION)


# -- values: each returns what it is given, or raises ValueError -------------------------


def whole(value: Any, *, least: int = 0, most: int = _WHOLE_MAX) -> int:
    """Return a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def counted(value: Any) -> int:
    """Return a whole number of either sign."""
    return whole(value, least=-_WHOLE_MAX)


def text(value: Any) -> str:
    """Return a text of bounded length."""
    if type(value) is not str or len(value) > _TEXT_MAX:
        raise ValueError(f"{_shown(value)} is no text")
    return value


def texts(value: Any) -> dict[str, str]:
    """Return texts by name."""
    return {text(name): text(each) for name, each in value.items()}


def numbers(value: Any) -> dict[str, int]:
    """Return whole numbers by name."""
    return {text(name): counted(each) for name, each in value.items()}


def optional(build: Callable[[Any], T], value: Any) -> T | None:
    """Return what ``build`` makes of a value, unless that is null."""
    return None if value is None else build(value)


def _shown(value: Any) -> str:
    if type(value) is int and value.bit_length() > 256:
        return "a number of many digits"
    return repr(value)[:80]
