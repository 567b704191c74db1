"""New keys of rows whose key changed, in the headers of Debezium's records (`MovedKeys`).

An update of a key becomes two records: a delete of the old key with the header `NEW_KEY`, and a
create at the new key. Spark returns headers with the option ``includeHeaders``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.casts import convert, to_readable
from spark_upsert.core.keys import Mask, is_text
from spark_upsert.core.names import has_column
from spark_upsert.payloads.decoder import Decoder, decode_safely

NEW_KEY = "__debezium.newkey"
_HEADERS = "headers"


@dataclass(frozen=True)
class MovedKeys:
    """Reads the new keys of moved rows from their records' headers. Pickled to the tasks.

    Parameters
    ----------
    decoder : Decoder
        Decodes a header into the fields of a key. Kafka Connect writes headers as JSON by default,
        whatever the format of keys.
    names : tuple of str
        The field for each key column in the table.
    """

    decoder: Decoder
    names: tuple[str, ...]

    def read(self, batch: pa.RecordBatch, where: Mask) -> list[pa.Array] | None:
        """Return the new keys by key column, null outside ``where``; None without a new key.

        A header that cannot be decoded is ignored: then the row at the new key lacks the values
        that its create did not send.
        """
        headers = batch.column(_HEADERS)
        rows = np.flatnonzero(where & _mask(headers.is_valid()))
        lists = to_readable(headers.take(pa.array(rows)))[0]
        header_names, values = lists.flatten().flatten()
        is_new_key = _mask(pc.equal(header_names, NEW_KEY).fill_null(False))
        if not is_new_key.any():
            return None
        decoded = decode_safely(
            self.decoder, convert(values.filter(pa.array(is_new_key)), pa.binary())
        )
        columns = dict(zip(self.decoder.fields.names, decoded.columns, strict=True))
        of_rows = rows[np.asarray(pc.list_parent_indices(lists))[is_new_key]]
        row_indices = np.full(batch.num_rows, -1, dtype=np.int64)
        row_indices[of_rows] = np.arange(len(of_rows))
        taken = pa.array(row_indices, mask=row_indices < 0)
        keys = [columns[name].take(taken) for name in self.names]
        return keys if any(key.null_count < len(key) for key in keys) else None


def has_headers(rows: pa.Schema) -> bool:
    """Return whether rows have a record's headers, as Spark's Kafka source returns them."""
    if not has_column(rows, _HEADERS):
        return False
    type_ = storage_type(rows.field(_HEADERS).type)
    if not (pa.types.is_list(type_) and pa.types.is_struct(type_.value_type)):
        return False
    fields = list(type_.value_type)
    return [field.name for field in fields] == ["key", "value"] and all(
        is_text(field.type) for field in fields
    )


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
