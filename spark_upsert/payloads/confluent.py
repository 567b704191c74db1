"""The header that Confluent's serialisers put before a payload: a zero byte and a schema id.

The id is that of a schema in a registry (`payloads.registry`). A decoder that is given one schema
asks none: with ``schema_id`` payloads of other ids are bad; without it all ids are taken to mean
that schema.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.payloads.decoder import Decoder, Payloads, RefusedField, refused_fields

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

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The fields that the other decoder passes over."""
        return refused_fields(self.inner)

    def decode(self, payloads: pa.Array) -> Payloads:
        """Decode payloads with a right header."""
        ids = header_ids(payloads)
        lacks = pc.and_(payloads.is_valid(), ids.is_null())
        reasons = pc.if_else(lacks, "it lacks the header of Confluent's wire format", None)
        if self.schema_id is not None:
            reasons = pc.coalesce(reasons, self._other_ids(ids))
        # Not `binary_slice`, which fails where a value ends before its start.
        bodies = pc.binary_replace_slice(payloads, 0, HEADER_BYTES, b"")
        decoded = self.inner.decode(pc.if_else(reasons.is_null(), bodies, None))
        if decoded.reasons is not None:
            reasons = pc.coalesce(reasons, decoded.reasons)
        return Payloads(decoded.columns, reasons if reasons.null_count < len(reasons) else None)

    def _other_ids(self, ids: pa.Array) -> pa.Array:
        """Return what is wrong with the schema ids."""
        expected = f", expected {self.schema_id}"
        text = pc.binary_join_element_wise("schema id ", ids.cast(pa.string()), expected, "")
        return pc.if_else(pc.not_equal(ids, self.schema_id), text, None)


def header_ids(payloads: pa.Array) -> pa.Array:
    """Return the schema ids in the headers of payloads; null where there is none.

    Parameters
    ----------
    payloads : pyarrow.Array of binary, shape (n,)

    Returns
    -------
    pyarrow.Array of int64, shape (n,)
    """
    heads = pc.binary_slice(payloads, 0, HEADER_BYTES)
    has_header = pc.and_(
        pc.equal(pc.binary_length(heads), HEADER_BYTES),
        pc.equal(pc.binary_slice(payloads, 0, 1), b"\0"),
    ).fill_null(False)
    empty = bytes(HEADER_BYTES)
    whole = pc.if_else(has_header, heads, empty).fill_null(empty).cast(pa.binary(HEADER_BYTES))
    table = np.frombuffer(whole.buffers()[1], np.uint8, count=len(whole) * HEADER_BYTES)
    digits = np.ascontiguousarray(table.reshape(-1, HEADER_BYTES)[:, 1:])
    ids = digits.view(">u4").reshape(-1).astype(np.int64)
    return pc.if_else(has_header, pa.array(ids), None)
