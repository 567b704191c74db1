"""The decoder protocol (`Decoder`), blocks and pieces of payloads, and schema bounds (`Parts`).

Result and reason depend on a payload alone, so that a replay in other batches gives the same rows.
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
"""Payload bytes that are decoded at once. One payload may be larger: then it is alone.

In smaller blocks the fixed cost of a block is seen (a third more at 512 KiB)."""

REASON_CHARS = 200
"""Bound of a reason's text: a library may quote the whole payload."""

Bad = dict[int, str]
"""Why payloads are bad, by their place in what was given."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """Decoded payloads; all arrays of the same length."""

    columns: tuple[pa.Array, ...]
    """One per field of the decoder; null where the payload is absent or bad."""
    reasons: pa.Array | None
    """Why a payload is bad, as text; null where it is good or absent, None if none is bad."""


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A field of payloads that no column can hold. Its decoder passes over it."""

    path: tuple[str, ...]
    """The names that lead to it."""
    error: SchemaError
    """The error of a write that is to store it."""

    def within(self, name: str) -> RefusedField:
        """Return it as a field below a name."""
        return RefusedField((name, *self.path), self.error)


IMAGES = ("before", "after")
"""The fields of a change event that hold a row: their fields are columns."""


def column_at(where: str) -> str:
    """Return the column that a field belongs to: ``value.after.x.y`` is in ``x``."""
    _, *path = where.split(".")
    depth = 1 if len(path) > 1 and path[0] in IMAGES else 0
    return path[depth] if path else where


def refused_columns(refused: Iterable[RefusedField], images: bool) -> dict[str, SchemaError]:
    """Return the columns that rows have and no table can hold, with the error of each."""
    errors: dict[str, SchemaError] = {}
    for refusal in refused:
        path = refusal.path
        if images and (path[0] not in IMAGES or len(path) == 1):
            continue
        errors.setdefault(path[1] if images else path[0], refusal.error)
    return errors


def refused_fields(decoder: object) -> tuple[RefusedField, ...]:
    """Return the fields that a decoder passes over, because no column can hold them."""
    refusals: tuple[RefusedField, ...] = getattr(decoder, "refused", ())
    return refusals


class Decoder(Protocol):
    """Turns payloads into columns. Pure; travels to the tasks by pickle."""

    @property
    def fields(self) -> pa.Schema:
        """The columns, in storage types."""
        ...

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode binary payloads; null is absent, empty is a payload like any other."""
        ...


def decode_blocks(
    fields: pa.Schema, payloads: pa.Array, decode: Callable[[pa.Array], tuple[pa.Array, Bad]]
) -> Payloads:
    """Decode payloads block by block."""
    present = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    present_payloads = payloads if len(present) == len(payloads) else payloads.drop_null()
    pieces: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for start, stop in _blocks(present_payloads):
        decoded_rows, bad = decode(present_payloads.slice(start, stop - start))
        pieces.append(decoded_rows)
        for row, reason in bad.items():
            reasons[int(present[start + row])] = shortened(reason)
    decoded_rows = pa.concat_arrays(pieces) if pieces else pa.nulls(0, row_type(fields))
    if len(present) < len(payloads):
        row_indices = np.zeros(len(payloads), dtype=np.int64)
        absent = np.ones(len(payloads), dtype=np.bool_)
        row_indices[present], absent[present] = np.arange(len(present)), False
        decoded_rows = decoded_rows.take(pa.array(row_indices, mask=absent))
    columns = tuple(decoded_rows.flatten())
    return Payloads(columns, _spread(reasons, len(payloads)) if reasons else None)


def _spread(texts: dict[int, str], count: int) -> pa.Array:
    """Return texts at their places, and null elsewhere."""
    row_indices = np.full(count, -1, dtype=np.int64)
    row_indices[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(
        pa.array(row_indices, mask=row_indices < 0)
    )


def row_type(fields: pa.Schema) -> pa.DataType:
    """Return the type of the rows that a decoder makes; a bad one is null, whatever is declared."""
    return pa.struct([field.with_nullable(True) for field in fields])


def with_faults(
    columns: Sequence[pa.Array],
    reasons: pa.Array | None,
    faults: Iterable[tuple[str, npt.NDArray[np.bool_]]],
) -> Payloads:
    """Return payloads of which some turned out bad after they were decoded."""
    for reason, bad in faults:
        because = pc.if_else(pa.array(bad), reason, None)
        reasons = because if reasons is None else pc.coalesce(reasons, because)
    if reasons is None:
        return Payloads(tuple(columns), None)
    good = reasons.is_null()
    return Payloads(tuple(pc.if_else(good, column, None) for column in columns), reasons)


def built_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that is built of values in Python; times are numbers of their unit.

    Python's own dates and times would take longer, and make zones of their own.
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
    """Cut payloads into blocks of about `BLOCK_BYTES`."""
    ends = np.cumsum(np.asarray(pc.binary_length(payloads)), dtype=np.int64)
    start = 0
    while start < len(payloads):
        limit = (int(ends[start - 1]) if start else 0) + BLOCK_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        yield start, stop
        start = stop


def shortened(reason: str) -> str:
    """Return a reason within its bound, on one line."""
    text = re.sub(r"\s+", " ", reason[: 2 * REASON_CHARS]).strip().rstrip(".")
    text = text.encode(errors="backslashreplace").decode()  # Half a surrogate pair is no text.
    return text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]}..."


SCHEMA_BYTES_MAX = 1 << 20
"""Bytes of a schema's text, with the texts that it refers to.

A registry keeps schemas in a topic, where messages have at most a MiB unless its owner says
otherwise.
"""

SCHEMA_CACHE_BYTES_MAX = 64 << 20
"""Most bytes of one cache of schemas in a process: some thousand schemas of usual tables, or six of
the largest ones that are allowed."""

PARTS_MAX = 10_000
"""Types in a schema, each counted as often as it is named. The widest tables that Debezium reads
have some 4 000 columns (MySQL's bound), each of which is a union of two types."""

DEPTH_MAX = 64
"""Types within types. Deeper ones are a mistake, or an attack on the stack."""

VALUES_PER_BYTE = 16
"""Values that a payload may mean for each of its bytes, beyond those of one row. In columns an item
of an array has a place for each part of its type, also where the payload says nothing: a payload of
a megabyte of empty items with 10 000 members each would take 30 GB. With this it takes 0.2 GB, and
an item that gives one short member of 200 is still good."""

TOO_SPARSE = f"its arrays mean more than {VALUES_PER_BYTE} values for each byte"

_PART_BYTES = 1 << 10
"""Bytes that are kept of a part: its name, type and reader."""


class Unreadable(Exception):
    """A schema is none, is too large, or says what the declared type cannot hold."""


class Parts:
    """Counts the parts of one schema while it is read.

    A name counts as all that it refers to: 2 kB of text may mean a million fields. Later work is
    proportional to the parts.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def enter(self, depth: int) -> None:
        """Count a part at a depth; raises `Unreadable`."""
        self.count += 1
        require(parts=self.count, depth=depth)


def require(*, parts: int = 0, depth: int = 0) -> None:
    """Raise `Unreadable` if there are too many parts, or they lie too deep."""
    if depth > DEPTH_MAX:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep")
    if parts > PARTS_MAX:
        raise Unreadable(
            f"it has more than {PARTS_MAX} parts, each type counted as often as it is named"
        )


def read_json(text: str | bytes) -> Any:
    """Return what the text of a schema holds."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"it is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep") from error
    except ValueError as error:
        raise Unreadable(f"it is no JSON ({error})") from error


def values_max(payload_bytes: int) -> int:
    """Return how many values the arrays of a payload may mean."""
    return PARTS_MAX + VALUES_PER_BYTE * payload_bytes


def bytes_kept(text_bytes: int, parts: int) -> int:
    """Return about how much memory is kept for a schema that is ready to decode with."""
    return text_bytes + parts * _PART_BYTES


def parts_of(type_: pa.DataType) -> int:
    """Return how many parts a type has, which are known to be within their budget."""
    if pa.types.is_nested(type_):
        return 1 + sum(parts_of(type_.field(index).type) for index in range(type_.num_fields))
    return 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the payloads, decoded."""

    rows: Positions
    """Their places among all; each place is in one piece."""
    columns: Mapping[str, pa.Array]
    """By field; one that is lacking is null."""
    reasons: pa.Array | None
    """As `Payloads.reasons`."""

    @classmethod
    def of(cls, rows: Positions, fields: pa.Schema, found: Payloads) -> Piece:
        """Return decoded payloads with their places."""
        return cls(rows, dict(zip(fields.names, found.columns, strict=True)), found.reasons)


def taken(payloads: Payloads, rows: Positions) -> Payloads:
    """Return some of the decoded payloads."""
    row_indices = pa.array(rows)
    reasons = None if payloads.reasons is None else payloads.reasons.take(row_indices)
    return Payloads(tuple(column.take(row_indices) for column in payloads.columns), reasons)


def gathered(fields: pa.Schema, pieces: Iterable[Piece]) -> Payloads:
    """Return payloads that were decoded in pieces, in the order in which they were given.

    Notes
    -----
    O(columns times payloads), which is what is returned, and O(1) for each piece and column that it
    holds: a batch in which each payload has a schema of its own costs no more.
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
    """The parts of one column, and their places in the whole."""

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
        """Return the column; ``known`` keeps the places of parts for the columns that share them.

        The rows of all pieces are alive until the last column is made, and so are their ids.
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
        """Return where each row of the whole stands in the parts; None if all stand in order."""
        rows = np.concatenate(self._rows)
        if len(rows) == count and bool((np.diff(rows) > 0).all()):
            return None
        row_indices = np.full(count, -1, dtype=np.int64)
        row_indices[rows] = np.arange(len(rows))
        return pa.array(row_indices, mask=row_indices < 0)


def decoded(decoder: Decoder, payloads: pa.Array) -> Payloads:
    """Decode payloads, whatever a decoder meets in them: the door that envelopes go through.

    A payload may be made for an error that no decoder foresees: of Python's stack, of a library, of
    the memory that a value takes. Such an error is the reason of the payload for which it comes
    when that is decoded alone, with the error's type, and not one of its neighbours.

    Notes
    -----
    Halves what fails until single payloads are left: for one of n, log2(n) more attempts.
    """
    try:
        return decoder.decode(payloads)
    except UpsertFlowError:
        raise
    except Exception as error:  # noqa: BLE001 - it becomes the reason of the payload
        if len(payloads) > 1:
            return gathered(decoder.fields, _halves(decoder, payloads))
        nulls = tuple(pa.nulls(len(payloads), field.type) for field in decoder.fields)
        return Payloads(nulls, pa.array([unforeseen(error)] * len(payloads), pa.string()))


def _halves(decoder: Decoder, payloads: pa.Array) -> Iterator[Piece]:
    middle = len(payloads) // 2
    for first, half in ((0, payloads.slice(0, middle)), (middle, payloads.slice(middle))):
        rows = np.arange(first, first + len(half))
        yield Piece.of(rows, decoder.fields, decoded(decoder, half))


def unforeseen(error: Exception) -> str:
    """Return the reason of a bad value by a foreign error: its type, and what it says."""
    return shortened(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class RawDecoder:
    """Takes each payload as the value of one column of type STRING or BINARY."""

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
        """Return the payloads; only text can be bad."""
        if self.fields.types[0] == pa.binary():
            return Payloads((payloads.cast(pa.binary()),), None)
        return decode_blocks(self.fields, payloads, self._as_text)

    def _as_text(self, payloads: pa.Array) -> tuple[pa.Array, Bad]:
        texts, is_text = as_texts(payloads)
        bad = {int(i): NOT_UTF8 for i in np.flatnonzero(~is_text)}
        return pa.StructArray.from_arrays([texts], fields=list(row_type(self.fields))), bad


NOT_UTF8 = "not UTF-8"


def as_texts(payloads: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return binary payloads as text, and which of them are UTF-8; the others are null."""
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
