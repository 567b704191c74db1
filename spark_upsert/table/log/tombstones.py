"""How long deletes are remembered, and what forgetting them costs.

With `Scope.TABLE` a tombstone keeps an older command that comes late from bringing its key
back. It cannot be kept for ever. When compaction drops tombstones, the table's **low-water
mark** rises to the greatest order key among them: from then on a command at or below the
mark, for a key that the table does not know, is rejected and counted, not applied (unless
`LateRows` says otherwise). So forgetting costs visibility of very late rows, never a wrong row.

Entries that are folded by an order keep their tombstones for ever: after a newer put the key is
known, and the mark would let an older value of another column through.

A tombstone may go only if it is past the retention, nothing older lies below it, and no
newer run holds an entry of its key (which might be stale against it).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product

import pyarrow as pa

from spark_upsert.errors import CorruptionError, OptionError
from spark_upsert.model.durations import EXPECTED, try_parse_ms
from spark_upsert.model.schema import ORDER_KNOWN, TableSchema, widens
from spark_upsert.model.words import compare

PROPERTY = "tombstoneRetention"
"""Name of the write option and of the table's property."""

DEFAULT = "7 days"

_NARROWER = (pa.int32(), pa.int16(), pa.int8(), pa.float32())
"""The types of which a wider one takes more bytes, the widest first."""

_EPOCHS = re.compile(r"\s*(\d{1,18})\s*epochs?\s*", re.ASCII)

_EXPECTED = f"'forever', a number of epochs, {EXPECTED}, or both as in '7 days and 100 epochs'"


class LateRows(Enum):
    """The policy for a put at or below the low-water mark, for a key that the table does not know.

    It is not known whether the key never existed, or was deleted and the delete is forgotten. A
    delete that is so late is left out, counted as rejected and no reason to fail; `APPLY`
    remembers it, so that an older row of its key is stale.
    """

    REJECT = "reject"
    """The put is counted, and left out."""

    APPLY = "apply"
    """The put becomes a row; where a delete was forgotten, that brings the key back."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""


@dataclass(frozen=True, slots=True)
class TombstoneRetention:
    """How long a tombstone is kept: by epochs, by time, by both, or for ever."""

    epochs: int | None
    milliseconds: int | None

    @property
    def is_for_ever(self) -> bool:
        return self.epochs is None and self.milliseconds is None

    @classmethod
    def parse(cls, text: str) -> TombstoneRetention:
        """Read ``7 days``, ``100 epochs``, ``1 hour and 50 epochs`` or ``forever``.

        With both, a tombstone is kept until both have passed.
        """
        if text.strip().lower() == "forever":
            return cls(None, None)
        epochs = milliseconds = None
        for part in re.split(r",|\band\b", text.lower()):
            count, duration = _EPOCHS.fullmatch(part), try_parse_ms(part)
            if count is not None and epochs is None:
                epochs = int(count[1])
            elif duration is not None and milliseconds is None:
                milliseconds = duration
            else:
                raise OptionError.invalid(PROPERTY, text, _EXPECTED)
        return cls(epochs, milliseconds)


def encode_mark(order: Sequence[pa.Array], schema: TableSchema) -> str:
    """Return the text of one order key (arrays of length 1) as it stands in the log."""
    names = schema.order_columns
    batch = pa.RecordBatch.from_arrays(list(order), names=list(names))
    return base64.b64encode(batch.serialize().to_pybytes()).decode("ascii")


def decode_mark(text: str, schema: TableSchema) -> list[pa.Array]:
    """Return the order key of a low-water mark, arrays of length 1."""
    layout = pa.schema([pa.field(field.name, field.type) for field in schema.order_fields])
    try:
        data = pa.py_buffer(base64.b64decode(text, validate=True))
        batch = _read_wide_mark(data, layout)
        if batch.num_rows != 1:
            raise ValueError(f"{batch.num_rows} rows")
    except (ValueError, EOFError, MemoryError, OSError, pa.ArrowException) as error:
        raise CorruptionError.in_file("_log", "a low-water mark, one order key", f"{error}") from (
            error
        )
    return [column.cast(field.type) for column, field in zip(batch.columns, layout, strict=True)]


def _read_wide_mark(data: pa.Buffer, layout: pa.Schema) -> pa.RecordBatch:
    """Return a mark that may be from before the types of the order were widened.

    A type that is wider than that of the mark asks for more bytes than the mark has, so that the
    widest types that it can be read as are its own.
    """
    types = ([f.type, *(t for t in _NARROWER if widens(t, f.type) and t != f.type)] for f in layout)
    problems: list[Exception] = []
    for own in product(*types):
        fields = [field.with_type(type_) for field, type_ in zip(layout, own, strict=True)]
        try:
            batch = _read_mark(data, pa.schema(fields))
            batch.validate(full=True)
        except (ValueError, OSError, pa.ArrowException) as error:
            problems.append(error)
        else:
            return batch
    raise problems[0]


def _read_mark(data: pa.Buffer, layout: pa.Schema) -> pa.RecordBatch:
    try:
        return pa.ipc.read_record_batch(data, layout)
    except (ValueError, OSError):
        if layout.names[:1] != [ORDER_KNOWN]:
            raise
    # From before the table had a quarantine: all orders were known.
    batch = pa.ipc.read_record_batch(data, layout.remove(0))
    return batch.add_column(0, layout.field(0), pa.repeat(pa.scalar(True), batch.num_rows))


def is_at_or_below(order: Sequence[pa.Array], mark: str, schema: TableSchema) -> pa.Array:
    """Return which order keys are not above a low-water mark, as a numpy array of bool."""
    rows = pa.nulls(len(order[0]), pa.int64()).fill_null(0)
    limit = [column.take(rows) for column in decode_mark(mark, schema)]
    return compare(order, limit) <= 0


def higher_mark(one: str | None, other: str | None, schema: TableSchema) -> str | None:
    """Return the greater of two low-water marks."""
    if one is None or other is None:
        return one or other
    order = compare(decode_mark(one, schema), decode_mark(other, schema))
    return one if order[0] >= 0 else other
