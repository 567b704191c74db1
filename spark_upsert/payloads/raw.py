"""Payloads that are values themselves: bytes, or text in UTF-8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import SchemaError
from spark_upsert.payloads.decoder import Bad, Payloads, decode_blocks, row_type


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
        kept = pc.if_else(pa.array(is_text), payloads, None)
        return kept.cast(pa.string()), is_text


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
