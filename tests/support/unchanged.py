"""The rows that envelopes decode, with their unchanged columns, seen before they become commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.envelopes import changelog, debezium, kafka
from spark_upsert.errors import DataError
from spark_upsert.table.write import commands
from spark_upsert.table.write.commands import DecodedRows
from tests.support.envelopes import write

_MODULES = (changelog, debezium, kafka, commands)


@dataclass(frozen=True)
class Decoded:
    """Decoded rows as Python values."""

    columns: Mapping[str, list[Any]]
    unchanged: Mapping[str, list[bool]]
    resets: list[bool] | None
    deletes: list[bool]
    bad_keys: list[str | None]
    bad_values: list[str | None]
    moved_to: list[list[Any]] | None
    """By key column."""

    @classmethod
    def of(cls, rows: DecodedRows) -> Decoded:
        count = len(rows.tombstones)
        bad_keys, bad_values = (
            (pa.nulls(count, pa.string()) if reasons is None else reasons).to_pylist()
            for reasons in (rows.bad_keys, rows.bad_values)
        )
        columns = {name: column.to_pylist() for name, column in rows.columns.items()}
        masks = {name: where.tolist() for name, where in rows.unchanged.items()}
        for name, where in masks.items():
            assert np.shape(where) == (count,)
            assert all(
                columns[name][row] is None for row in np.flatnonzero(where) if name in columns
            )
        resets = None if rows.resets is None else rows.resets.tolist()
        moved_to = None if rows.moved_to is None else [key.to_pylist() for key in rows.moved_to]
        return cls(columns, masks, resets, rows.tombstones.tolist(), bad_keys, bad_values, moved_to)


@contextmanager
def decoded_by() -> Iterator[list[Decoded]]:
    """Collect the decoded rows of all batches that are written meanwhile."""
    batches: list[Decoded] = []
    original: Callable[..., pa.RecordBatch] = commands.to_commands

    def collect(schema: TableSchema, rows: DecodedRows) -> pa.RecordBatch:
        batches.append(Decoded.of(rows))
        return original(schema, rows)

    with ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(patch.object(module, "to_commands", collect))
        yield batches


def decode(rows: pa.Table, **options: Any) -> Decoded:
    """Return one batch as a write into a new table decodes it, even if the table takes no row."""
    with TemporaryDirectory() as folder:
        return decode_into(Path(folder) / "t", rows, **options)


def decode_into(path: Path, rows: pa.Table, **options: Any) -> Decoded:
    """Return one batch as a write into a table decodes it."""
    with decoded_by() as batches:
        try:
            write(path, rows.combine_chunks(), **options)
        except DataError:
            assert batches
    (decoded,) = batches
    return decoded
