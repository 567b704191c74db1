"""The header that Confluent's serialisers put before a payload: a zero byte and a schema id.

The id is that of a schema in a registry. We are given one schema and ask no registry: with
``schema_id`` payloads of other ids are bad; without it all ids are taken to mean that schema.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.payloads.decoder import Decoder, Payloads

HEADER_BYTES = 5


@dataclass(frozen=True)
class ConfluentDecoder:
    """Takes the header off and leaves the rest to another decoder."""

    inner: Decoder
    schema_id: int | None = None

    @property
    def fields(self) -> pa.Schema:
        """The columns of the other decoder."""
        return self.inner.fields

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode payloads whose header is right."""
        heads = pc.binary_slice(payloads, 0, HEADER_BYTES)
        has_header = pc.and_(
            pc.equal(pc.binary_length(heads), HEADER_BYTES),
            pc.equal(pc.binary_slice(payloads, 0, 1), b"\0"),
        )
        reasons = pc.if_else(has_header, None, "it lacks the header of Confluent's wire format")
        if self.schema_id is not None:
            reasons = pc.coalesce(reasons, self._other_ids(heads, has_header))
        # Not `binary_slice`, which fails where a value ends before its start.
        bodies = pc.binary_replace_slice(payloads, 0, HEADER_BYTES, b"")
        decoded = self.inner.decode(pc.if_else(reasons.is_null(), bodies, None))
        if decoded.reasons is not None:
            reasons = pc.coalesce(reasons, decoded.reasons)
        return Payloads(decoded.columns, reasons if reasons.null_count < len(reasons) else None)

    def _other_ids(self, heads: pa.Array, has_header: pa.Array) -> pa.Array:
        """Return what is wrong with the schema ids."""
        empty = bytes(HEADER_BYTES)
        whole = pc.if_else(has_header, heads, empty).fill_null(empty).cast(pa.binary(HEADER_BYTES))
        table = np.frombuffer(whole.buffers()[1], np.uint8, count=len(whole) * HEADER_BYTES)
        digits = np.ascontiguousarray(table.reshape(-1, HEADER_BYTES)[:, 1:])
        ids = digits.view(">u4").reshape(-1).astype(np.int64)
        text = pc.binary_join_element_wise(
            "schema id ", pa.array(ids).cast(pa.string()), f", expected {self.schema_id}", ""
        )
        return pc.if_else(pc.and_(has_header, pa.array(ids != self.schema_id)), text, None)
