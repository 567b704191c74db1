"""The decoder protocol (`Decoder`), blocks and pieces of payloads, and schema bounds (`Parts`).

Results and reasons depend on one payload alone, so a replay in other batches gives the same rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Positions
from spark_upsert.errors import SchemaError, UpsertFlowError

BLOCK_BYTES = 4 << 20
"""Payload bytes per decoded block; a larger payload is decoded alone.

Smaller blocks cost more per payload (a third more at 512 KiB)."""

REASON_CHARS = 200
"""Maximum characters per reason, because a library may quote the complete payload."""

Bad = dict[int, str]
"""Reasons for bad payloads, by index in the decoded array."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Decoded payloads; all arrays have the same length."""

    columns: tuple[pa.Array, ...]
    """One column per decoder field; null for absent and bad payloads."""
    reasons: pa.Array | None
    """One reason per bad payload, as text; null for other payloads, None if no payload is bad."""


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A payload field without a column type; the decoder skips it."""

    path: tuple[str, ...]
    """Field names from the root to the field."""
    error: SchemaError
    """The error for a write that would store the field."""

    def within(self, name: str) -> RefusedField:
        """Return the field nested under a name."""
        return RefusedField((name, *self.path), self.error)


IMAGES = ("before", "after")
"""A change event's fields that hold a row; their members are columns."""


def column_at(where: str) -> str:
    """Return a field's column, such as ``x`` for ``value.after.x.y``."""
    _, *path = where.split(".")
    depth = 1 if len(path) > 1 and path[0] in IMAGES else 0
    return path[depth] if path else where


def refused_columns(refused: Iterable[RefusedField], images: bool) -> dict[str, SchemaError]:
    """Return the errors by column for fields that no table can store.

    With ``images`` only members of `IMAGES` are columns.
    """
    errors: dict[str, SchemaError] = {}
    for refusal in refused:
        path = refusal.path
        if images and (path[0] not in IMAGES or len(path) == 1):
            continue
        errors.setdefault(path[1] if images else path[0], refusal.error)
    return errors


def refused_fields(decoder: object) -> tuple[RefusedField, ...]:
    """Return the fields that a decoder skips because no column can hold them."""
    refusals: tuple[RefusedField, ...] = getattr(decoder, "refused", ())
    return refusals


class Decoder(Protocol):
    """Decodes payloads into columns. Pure; pickled to the tasks."""

    @property
    def fields(self) -> pa.Schema:
        """The columns, in storage types."""
        ...

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode binary payloads; null is an absent payload, an empty value is a present one."""
        ...


def decode_blocks(
    fields: pa.Schema, payloads: pa.Array, decode: Callable[[pa.Array], tuple[pa.Array, Bad]]
) -> Payloads:
    """Decode payloads block by block; absent payloads are not passed to ``decode``."""
    present = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    present_payloads = payloads if len(present) == len(payloads) else payloads.drop_null()
    pieces: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for start, stop in _blocks(present_payloads):
        decoded_rows, bad = decode(present_payloads.slice(start, stop - start))
        pieces.append(decoded_rows)
        for row, reason in bad.items():
            reasons[int(present[start + row])] = shorten_reason(reason)
    decoded_rows = pa.concat_arrays(pieces) if pieces else pa.nulls(0, row_type(fields))
    if len(present) < len(payloads):
        row_indices = np.zeros(len(payloads), dtype=np.int64)
        absent = np.ones(len(payloads), dtype=np.bool_)
        row_indices[present], absent[present] = np.arange(len(present)), False
        decoded_rows = decoded_rows.take(pa.array(row_indices, mask=absent))
    columns = tuple(decoded_rows.flatten())
    return Payloads(columns, _spread(reasons, len(payloads)) if reasons else None)


def _spread(texts: dict[int, str], count: int) -> pa.Array:
    """Return an array with texts at their indices, null elsewhere."""
    row_indices = np.full(count, -1, dtype=np.int64)
    row_indices[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(
        pa.array(row_indices, mask=row_indices < 0)
    )


def row_type(fields: pa.Schema) -> pa.DataType:
    """Return a decoder's row type; all fields are nullable, because a bad row is null."""
    return pa.struct([field.with_nullable(True) for field in fields])


def with_faults(
    columns: Sequence[pa.Array],
    reasons: pa.Array | None,
    faults: Iterable[tuple[str, npt.NDArray[np.bool_]]],
) -> Payloads:
    """Mark payloads as bad for faults found after decoding."""
    for reason, bad in faults:
        because = pc.if_else(pa.array(bad), reason, None)
        reasons = because if reasons is None else pc.coalesce(reasons, because)
    if reasons is None:
        return Payloads(tuple(columns), None)
    good = reasons.is_null()
    return Payloads(tuple(pc.if_else(good, column, None) for column in columns), reasons)


def built_type(type_: pa.DataType) -> pa.DataType:
    """Return the type for arrays built from Python values; dates and times become integers.

    Python's own dates and times would be slower, and would add time zones.
    """
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_map(type_):
        return pa.map_(built_type(type_.key_type), built_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(built_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(built_type(field.type)) for field in type_.fields])
    return type_


def _blocks(payloads: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield index ranges with about `BLOCK_BYTES` each."""
    ends = np.cumsum(np.asarray(pc.binary_length(payloads)), dtype=np.int64)
    start = 0
    while start < len(payloads):
        limit = (int(ends[start - 1]) if start else 0) + BLOCK_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        yield start, stop
        start = stop


def shorten_reason(reason: str) -> str:
    """Return a reason on one line, cut to `REASON_CHARS`."""
    text = re.sub(r"\s+", " ", reason[: 2 * REASON_CHARS]).strip().rstrip(".")
    text = text.encode(errors="backslashreplace").decode()  # Half a surrogate pair is no text.
    return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]}..."


SCHEMA_BYTES_MAX = 1 << 20
"""Maximum bytes per schema text, including referenced schemas.

A registry stores schemas in a topic, with at most 1 MiB per message by default."""

SCHEMA_CACHE_BYTES_MAX = 64 << 20
"""Maximum bytes per schema cache in a process: some thousand ordinary schemas, or six schemas with
the largest allowed size."""

PARTS_MAX = 10_000
"""Maximum types per schema, each counted at every use. The widest tables that Debezium reads have
some 4 000 columns (MySQL's limit), each a union of two types."""

DEPTH_MAX = 64
"""Maximum type nesting. Deeper schemas are a mistake, or an attack on the stack."""

VALUES_PER_BYTE = 16
"""Maximum decoded array values per payload byte, beyond those of one row.

An array item takes a slot for each part of its type, even for missing members. A megabyte with
empty items of 10 000 members each would take 30 GB; with this bound it takes 0.2 GB. An item with
one short member out of 200 is still accepted."""

TOO_SPARSE = f"its arrays mean more than {VALUES_PER_BYTE} values for each byte"

_PART_BYTES = 1 << 10
"""Estimated memory per cached schema part: name, type and reader."""


class Unreadable(Exception):
    """A schema is invalid, too large, or incompatible with the declared type."""


class Parts:
    """Counts one schema's parts while it is parsed.

    Each use of a named type counts all its parts, because 2 kB of text can describe a million
    fields. Later work is proportional to the count.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def enter(self, depth: int) -> None:
        """Count a part at a nesting depth; raises `Unreadable` beyond the limits."""
        self.count += 1
        require_limits(parts=self.count, depth=depth)


def require_limits(*, parts: int = 0, depth: int = 0) -> None:
    """Raise `Unreadable` for too many parts or too deep nesting."""
    if depth > DEPTH_MAX:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep")
    if parts > PARTS_MAX:
        raise Unreadable(
            f"it has more than {PARTS_MAX} parts, each type counted as often as it is named"
        )


def read_json(text: str | bytes) -> Any:
    """Parse a schema text as JSON; raises `Unreadable`."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"it is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep") from error
    except ValueError as error:
        raise Unreadable(f"it is no JSON ({error})") from error


def values_max(payload_bytes: int) -> int:
    """Return the maximum count of array values for a payload size."""
    return PARTS_MAX + VALUES_PER_BYTE * payload_bytes


def estimate_cached_bytes(text_bytes: int, parts: int) -> int:
    """Estimate a cached schema's memory in bytes."""
    return text_bytes + parts * _PART_BYTES


def count_parts(type_: pa.DataType) -> int:
    """Count a type's parts, including nested types."""
    if pa.types.is_nested(type_):
        return 1 + sum(count_parts(type_.field(index).type) for index in range(type_.num_fields))
    return 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A decoded subset of the payloads."""

    rows: Positions
    """Row indices in the input; each index is in exactly one piece."""
    columns: Mapping[str, pa.Array]
    """Columns by field name; a missing column is null."""
    reasons: pa.Array | None
    """See `Payloads.reasons`."""

    @classmethod
    def of(cls, rows: Positions, fields: pa.Schema, found: Payloads) -> Piece:
        """Combine decoded payloads with their row indices."""
        return cls(rows, dict(zip(fields.names, found.columns, strict=True)), found.reasons)


def take_rows(payloads: Payloads, rows: Positions) -> Payloads:
    """Select rows from decoded payloads."""
    row_indices = pa.array(rows)
    reasons = None if payloads.reasons is None else payloads.reasons.take(row_indices)
    return Payloads(tuple(column.take(row_indices) for column in payloads.columns), reasons)


def combine_pieces(fields: pa.Schema, pieces: Iterable[Piece]) -> Payloads:
    """Combine decoded pieces into payloads in input order.

    Notes
    -----
    O(columns times payloads), the output size, plus O(1) per piece and column. A batch with a separate
    schema for each payload costs no more.
    """
    parts_by_name: dict[str, _Parts] = {field.name: _Parts() for field in fields}
    why = _Parts()
    count = 0
    for piece in pieces:
        count += len(piece.rows)
        for name, column in piece.columns.items():
            parts_by_name[name].add(piece.rows, column)
        if piece.reasons is not None:
            why.add(piece.rows, piece.reasons)
    taken_by_path: dict[tuple[int, ...], pa.Array | None] = {}
    reasons = why.whole(pa.string(), count, taken_by_path)
    return Payloads(
        tuple(
            parts_by_name[field.name].whole(field.type, count, taken_by_path) for field in fields
        ),
        reasons if reasons.null_count < count else None,
    )


class _Parts:
    """One column's pieces and their row indices in the output."""

    __slots__ = ("_parts", "_rows")

    def __init__(self) -> None:
        self._rows: list[Positions] = []
        self._parts: list[pa.Array] = []

    def add(self, rows: Positions, part: pa.Array) -> None:
        self._rows.append(rows)
        self._parts.append(part)

    def whole(
        self, type_: pa.DataType, count: int, known: dict[tuple[int, ...], pa.Array | None]
    ) -> pa.Array:
        """Return the column; ``known`` caches take indices for columns from the same pieces.

        The cache key is the ids of the row arrays, which stay alive until the last column is built.
        """
        if not self._parts:
            return pa.nulls(count, type_)
        key = tuple(map(id, self._rows))
        if key not in known:
            known[key] = self._places(count)
        combined = self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)
        row_indices = known[key]
        return combined if row_indices is None else combined.take(row_indices)

    def _places(self, count: int) -> pa.Array | None:
        """Return each output row's index in the pieces; None if the pieces are already in order."""
        rows = np.concatenate(self._rows)
        if len(rows) == count and bool((np.diff(rows) > 0).all()):
            return None
        row_indices = np.full(count, -1, dtype=np.int64)
        row_indices[rows] = np.arange(len(rows))
        return pa.array(row_indices, mask=row_indices < 0)


def decode_safely(decoder: Decoder, payloads: pa.Array) -> Payloads:
    """Decode payloads; an unforeseen exception becomes the reason for one bad payload.

    Envelopes call this function instead of `Decoder.decode`, because a hostile payload may cause a
    stack, library or memory error. After an error the payloads are halved and decoded again, until
    the failing payload is alone. `UpsertFlowError` is not caught.

    Notes
    -----
    log2(n) more rounds for one failing payload among n.
    """
    try:
        return decoder.decode(payloads)
    except UpsertFlowError:
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the reason of the payload
        if len(payloads) > 1:
            return combine_pieces(decoder.fields, _halves(decoder, payloads))
        nulls = tuple(pa.nulls(len(payloads), field.type) for field in decoder.fields)
        return Payloads(nulls, pa.array([describe_exception(error)] * len(payloads), pa.string()))


def _halves(decoder: Decoder, payloads: pa.Array) -> Iterator[Piece]:
    middle = len(payloads) // 2
    for first, half in ((0, payloads.slice(0, middle)), (middle, payloads.slice(middle))):
        rows = np.arange(first, first + len(half))
        yield Piece.of(rows, decoder.fields, decode_safely(decoder, half))


def describe_exception(error: Exception) -> str:
    """Format a foreign exception as a reason: type and message."""
    return shorten_reason(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class RawDecoder:
    """Returns each payload as one STRING or BINARY column."""

    fields: pa.Schema

    def __post_init__(self) -> None:
        types = [field.type for field in self.fields]
        if len(types) != 1 or types[0] not in (pa.string(), pa.binary()):
            shown = ", ".join(f"{field.name} {field.type}" for field in self.fields)
            raise SchemaError(
                f"the format 'raw' gives one column of type STRING or BINARY, found: {shown}.",
                hint="declare for example \"id STRING\", or use the format 'json' or 'avro'.",
            )

    def decode(self, payloads: pa.Array) -> Payloads:
        """Return the payloads; for STRING, a payload that is not UTF-8 is bad."""
        if self.fields.types[0] == pa.binary():
            return Payloads((payloads.cast(pa.binary()),), None)
        return decode_blocks(self.fields, payloads, self._as_text)

    def _as_text(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        texts, is_text = as_texts(payloads)
        bad = {int(i): NOT_UTF8 for i in np.flatnonzero(~is_text)}
        return pa.StructArray.from_arrays([texts], fields=list(row_type(self.fields))), bad


NOT_UTF8 = "not UTF-8"


def as_texts(payloads: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Cast binary payloads to text; the mask marks valid UTF-8, other payloads are null."""
    try:
        return payloads.cast(pa.string()), np.ones(len(payloads), dtype=np.bool_)
    except pa.ArrowInvalid:
        # Arrow does not say which; a block is small.
        is_text = np.array([_is_utf8(payload) for payload in payloads.to_pylist()], dtype=np.bool_)
        texts = pc.if_else(pa.array(is_text), payloads, None)
        return texts.cast(pa.string()), is_text


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
