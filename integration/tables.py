"""Small tables, made without Spark: a key ``k`` and a text ``v`` unless told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.table.table import Table

Row = dict[str, Any]


def columns(**types: pa.DataType) -> pa.Schema:
    """Return a schema; the names are those of the arguments."""
    return pa.schema(types)


ROWS = columns(k=pa.int64(), v=pa.string())

Epoch = Mapping[int, str | None]
"""Key to value; a value of None deletes the key."""


def make_table(
    path: Path | str,
    *epochs: Epoch,
    schema: pa.Schema = ROWS,
    storage: Mapping[str, str] | None = None,
) -> Table:
    """Make a table of some epochs."""
    table = Table.create(str(path), schema, keys=["k"], storage_options=storage)
    for epoch in epochs:
        append(table, epoch)
    return table


def append(table: Table, epoch: Epoch) -> None:
    """Apply one epoch."""
    rows = [{"k": k, "v": v, "gone": v is None} for k, v in epoch.items()]
    schema = columns(k=pa.int64(), v=pa.string(), gone=pa.bool_())
    table.upsert(pa.Table.from_pylist(rows, schema=schema), deletes="gone")
