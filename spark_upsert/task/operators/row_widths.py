"""How many bytes rows take, so that what a join puts together is bounded in bytes and not in rows
alone.

A row with a megabyte in it that matches ten thousand others is ten gigabytes of output: rows alone
bound nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.model.arrays import Positions
from spark_upsert.model.words import is_text
from spark_upsert.plan.kernels.equal_keys import NOWHERE

BATCH_BYTES = 16 << 20
"""Most bytes of a batch of a join, but for one row that has more."""


class Widths:
    """Bytes of each row of a batch; of lists, structs and maps about."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._fixed = 0
        self._varying = np.zeros(rows.num_rows, dtype=np.int64)
        for column in rows.columns:
            self._add(column)
        self.most = self._fixed + int(self._varying.max(initial=0))
        """The greatest width of any row."""

    def _add(self, column: pa.Array) -> None:
        if is_text(column.type):
            lengths, unit = pc.binary_length(column), 1
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            items = column.flatten()
            lengths, unit = pc.list_value_length(column), 1 + items.nbytes // max(1, len(items))
        else:
            self._fixed += 1 + column.nbytes // max(1, len(column))
            return
        self._varying += unit * np.asarray(lengths.fill_null(0), dtype=np.int64)

    def of(self, places: Positions) -> Positions:
        """Return the bytes of the rows at some places; of `NOWHERE` those of a row of nulls."""
        if not len(self._varying):
            return np.full(len(places), self._fixed)
        return self._fixed + np.where(places == NOWHERE, 0, self._varying[places])
