"""Payloads that are values themselves: bytes, or text in UTF-8."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_upsert.errors import SchemaError
from spark_upsert.upsert.payloads.decoder import Payloads, Undecodable, decode_blocks


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

    def _as_text(self, payloads: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([as_text(payloads)], fields=list(self.fields))


def as_text(payloads: pa.Array) -> pa.Array:
    """Return binary payloads as text.

    Raises
    ------
    Undecodable
        One of them is not UTF-8.
    """
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise Undecodable("not UTF-8") from error
