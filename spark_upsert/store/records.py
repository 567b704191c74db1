"""Records: JSON objects with a checksum, read within bounds and checked before each put.

Each record is decoded by its reader's rule and compared before the put (`CheckedRecord`;
docs/adr/0160). A malformed record is a `CorruptionError` naming the file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from spark_upsert.errors import (
    CorruptionError,
    EarlierFormatError,
    NewerFormatError,
    OptionError,
    UpsertFlowError,
)
from spark_upsert.store import Store
from spark_upsert.store.protocol import OBJECT_BYTES_MAX

T = TypeVar("T")

FORMAT_VERSION = 2
"""The table format's version; records with another one are refused."""

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
"""Possible errors from decoding a malformed record, for every record reader."""

UNREADABLE = (CorruptionError, NewerFormatError, EarlierFormatError)
"""Errors for a record unreadable in this release, for callers able to do without it."""


@dataclass(frozen=True, slots=True)
class CheckedRecord:
    """A record decoded by its reader's rule (`checked_record`, `checked_data`)."""

    path: str
    data: bytes

    def put(self, store: Store) -> None:
        """Create or replace the object (`Store.put`)."""
        store.put(self.path, self.data)

    def put_if_absent(self, store: Store) -> bool:
        """Create the object; False if there is one (`Store.put_if_absent`)."""
        return store.put_if_absent(self.path, self.data)


def checked_record(
    where: str,
    value: T,
    record: Mapping[str, Any],
    build: Callable[[dict[str, Any]], T],
    *,
    bytes_max: int | None = None,
) -> CheckedRecord:
    """Return a JSON record with its checksum, decoded once by its reader's rule."""
    return checked_data(
        where,
        value,
        lambda: encode(record),
        lambda data: build(json.loads(_body(data))),
        bytes_max=bytes_max,
    )


def checked_data(
    where: str,
    value: T,
    encode: Callable[[], bytes],
    decode: Callable[[bytes], T],
    *,
    bytes_max: int | None = None,
) -> CheckedRecord:
    """Return a record in any format, decoded once by its reader's rule."""
    limit = RECORD_BYTES_MAX if bytes_max is None else bytes_max
    data = b""

    def encode_and_decode() -> T:
        nonlocal data
        data = encode()
        if len(data) > limit:
            raise ValueError(f"it has {len(data)} bytes, and a reader takes {limit} at most")
        return decode(data)

    require_readable(where, value, encode_and_decode)
    return CheckedRecord(where, data)


def require_readable(where: str, value: T, decode: Callable[[], T]) -> None:
    """Refuse a record unless its reader decodes it to the encoded value.

    For records written by another system, such as offsets in a Spark checkpoint.
    """
    try:
        decoded = decode()
    except (*MALFORMED, UpsertFlowError) as error:
        raise _unreadable(where, _reason(error)) from error
    if decoded != value:
        raise _unreadable(where, f"a reader gets {decoded!r:.200} for {value!r:.200}")


def _unreadable(where: str, reason: str) -> OptionError:
    return OptionError(
        f"the record '{where}' was not written, because no process could read it: {reason}.",
        hint="correct the value that the message shows. If no value of yours is in it, report the "
        "message as a bug; the table is unchanged.",
        path=where,
    )


def encode(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON; its last field is the CRC-32 over all previous bytes."""
    body = json.dumps(record, separators=(",", ":")).encode()
    return body[:-1] + _checksum(body)


def _checksum(body: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(body)


_CHECKSUM_BYTES = len(_checksum(b""))


def _body(data: bytes) -> bytes:
    """Return a record without its checksum."""
    return data[:-_CHECKSUM_BYTES] + b"}"


def _reason(error: Exception) -> str:
    """Return a short text for a decoding error."""
    text = error.message if isinstance(error, UpsertFlowError) else str(error)
    return f"{type(error).__name__}: {text[:200]}"


def read_record(
    store: Store,
    path: str,
    build: Callable[[dict[str, Any]], T],
    *,
    bytes_max: int | None = None,
    format_max: int = FORMAT_VERSION,
) -> T | None:
    """Return a record decoded by ``build``, or None if there is no such object.

    ``format_max``: the newest format that ``build`` decodes.
    """
    try:
        data = store.read(path, bytes_max=RECORD_BYTES_MAX if bytes_max is None else bytes_max)
    except FileNotFoundError:
        return None
    where = f"{store.url}/{path}"
    body = _body(data)
    if data[-_CHECKSUM_BYTES:] != _checksum(body):
        raise CorruptionError.in_file(
            where,
            "a JSON record that ends with its checksum",
            f"{len(data)} bytes with another end",
        )
    try:
        record = json.loads(body)
        version = whole(record.get("format", FORMAT_VERSION))
        if FORMAT_VERSION <= version <= format_max:
            return build(record)
    except NewerFormatError:
        raise
    except (*MALFORMED, UpsertFlowError) as error:
        damage = CorruptionError.in_file(where, "fields as docs/format.md tells", _reason(error))
        damage.advise(
            "If an earlier release wrote the value that it names, run 'upsertflow repair' with the "
            "path of the table."
        )
        raise damage from error
    kind = NewerFormatError if version > FORMAT_VERSION else EarlierFormatError
    raise kind.of(f"'{where}'", version, format_max)


# -- values: each returns its argument, or raises ValueError -----------------------------


def whole(value: Any, *, least: int = 0, most: int = _WHOLE_MAX) -> int:
    """Return a whole number within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def counted(value: Any) -> int:
    """Return a whole number with either sign."""
    return whole(value, least=-_WHOLE_MAX)


def text(value: Any) -> str:
    """Return a text with bounded length."""
    if type(value) is not str or len(value) > _TEXT_MAX:
        raise ValueError(f"{_shown(value)} is no text")
    return value


def texts(value: Any) -> dict[str, str]:
    """Return texts by name."""
    return {text(name): text(item) for name, item in value.items()}


def numbers(value: Any) -> dict[str, int]:
    """Return whole numbers by name."""
    return {text(name): counted(item) for name, item in value.items()}


def optional(build: Callable[[Any], T], value: Any) -> T | None:
    """Decode a value by ``build``; None for null."""
    return None if value is None else build(value)


def _shown(value: Any) -> str:
    if type(value) is int and value.bit_length() > 256:
        return "a number of many digits"
    return repr(value)[:80]
