"""How commands travel to a table: as batches of rows, and an envelope that reads them.

It can say everything that an envelope may find in a row: keys and values that cannot be
decoded, null keys and deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.write.commands import DecodedRows, to_commands
from tests.support.reference import NO_ORDER, Command, Identity

BAD_KEY = "the key is undecodable"

PREFIX = "half"
"""The column that leads the key where the hash has a prefix: it follows from the key."""


def prefix_of(key: Identity) -> int | None:
    """Return with what a key begins; several keys share it."""
    return key % 2 if isinstance(key, int) else None


def batch_of(commands: Sequence[Command], columns: Sequence[str]) -> pa.RecordBatch:
    """Return commands as the rows of a writer."""
    values = [c.values or (None,) * len(columns) for c in commands]
    keys = [c.key for c in commands]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([k if isinstance(k, int) else None for k in keys], pa.int32()),
            PREFIX: pa.array([prefix_of(k) for k in keys], pa.int32()),
            "raw": pa.array([k if isinstance(k, bytes) else None for k in keys], pa.binary()),
            "order": pa.array(
                [None if c.order == NO_ORDER else c.order for c in commands], pa.int64()
            ),
            "gone": pa.array([c.values is None for c in commands], pa.bool_()),
            "error": pa.array([c.error for c in commands], pa.string()),
            **{
                name: pa.array([row[index] for row in values], pa.int32())
                for index, name in enumerate(columns)
            },
        }
    )


@dataclass(frozen=True)
class Wire:
    """The envelope of such rows."""

    schema: TableSchema
    columns: tuple[str, ...]

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands of a batch (`Envelope.commands`)."""
        raw, error = batch.column("raw"), batch.column("error")
        is_bad = pc.is_valid(raw)
        decoded = DecodedRows(
            columns={name: batch.column(name) for name in (*self.schema.keys, *self.columns)},
            order=[batch.column("order")] if self.schema.order else [],
            tombstones=np.asarray(batch.column("gone")),
            raw_values=lambda rows: error.take(pa.array(rows)).cast(pa.binary()),
            bad_values=error if error.null_count < len(error) else None,
            bad_keys=pc.if_else(is_bad, BAD_KEY, pa.scalar(None, pa.string())),
            raw_keys=raw,
        )
        return to_commands(self.schema, decoded)
