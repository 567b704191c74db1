"""Staging of a database's changes in Spark's tasks (`stage_changes`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from spark_upsert.core.names import has_column
from spark_upsert.errors import SchemaError
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.replication.rows import BatchRows, SourcePart, Target
from spark_upsert.replication.spooled import decode_rows
from spark_upsert.replication.target import SCHEMA, TABLE, require_no_parking, route_to
from spark_upsert.routed.group import JOINING, WHOLE, SourcePosition
from spark_upsert.routed.plan import RoutedPlan
from spark_upsert.routed.router import Route
from spark_upsert.routed.stage import RoutedStaged, stage_tables
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction

COLUMNS = pa.schema(
    {
        SCHEMA: pa.string(),
        TABLE: pa.string(),
        "_rows": pa.int64(),
        "_lsn": pa.string(),
        "_commit_timestamp": pa.timestamp("us", "UTC"),
        "_state": pa.string(),
        "_changes": pa.binary(),
    }
)
"""The columns of a stream from a database. A row has the changes of one table (`decode_rows`); or,
without a table, the position of the batch."""


def position_row(position: SourcePosition) -> pa.RecordBatch:
    """Return the row with the position of a batch."""
    values = {
        "_lsn": position.lsn,
        "_commit_timestamp": position.committed_us,
        "_state": WHOLE if position.is_whole else JOINING,
    }
    return pa.RecordBatch.from_pylist([values], COLUMNS)


def changes_row(schema: str, table: str, rows: int, data: pa.Buffer) -> pa.RecordBatch:
    """Return the row with changes of a table."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, data.size)))
    changes = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, data])
    known = {SCHEMA: schema, TABLE: table, "_rows": rows}
    others = pa.RecordBatch.from_pylist([known], COLUMNS)
    return others.set_column(len(COLUMNS) - 1, COLUMNS.field("_changes"), changes)


def stage_changes(
    plan: RoutedPlan,
    root: Store,
    batches: Iterable[pa.RecordBatch],
    transaction: Transaction | None,
    task_index: int,
) -> RoutedStaged:
    """Stage one task's changes and run its share in due compactions."""
    require_no_parking(plan.options)
    _require_columns(plan.incoming)
    if plan.is_complete(transaction):
        for _ in batches:
            continue
        return RoutedStaged(
            task_index=task_index, group_version=plan.group_version, terms=plan.terms
        )
    targets: dict[Route, Target] = {}
    position = None
    with RowsByTable() as spooled:
        for batch in batches:
            # A row of Spark has up to some megabytes of changes.
            for row in range(batch.num_rows):
                schema, table = (batch.column(name)[row].as_py() for name in (SCHEMA, TABLE))
                if table is None:
                    position = _position(batch.slice(row, 1))
                    continue
                rows, keys = decode_rows(batch.column("_changes")[row].as_buffer())
                name = f"{schema}\0{table}"
                route = route_to(plan.options.template, (schema, table))
                part = SourcePart(name, visibility=None, is_partition=False)
                targets.setdefault(route, Target(keys, [part]))
                for block in rows.to_batches():
                    spooled.add(name, block)
        rows_by_table = BatchRows(spooled, targets)
        counts = rows_by_table.counts
        staged = stage_tables(plan, root, rows_by_table, counts, transaction, task_index)
    return replace(staged, source=position)


def _require_columns(incoming: pa.Schema) -> None:
    missing = [name for name in COLUMNS.names if not has_column(incoming, name)]
    if missing:
        raise SchemaError(
            f"the rows have the columns {', '.join(incoming.names)}, and the envelope 'postgres' "
            f"needs {', '.join(missing)}, too.",
            hint='write the rows of spark.readStream.format("upsertflow.postgres") as they are.',
            column=missing[0],
        )


def _position(row: pa.RecordBatch) -> SourcePosition:
    [values] = row.to_pylist()
    [committed_us] = row.column("_commit_timestamp").view(pa.int64()).to_pylist()
    return SourcePosition(
        lsn=values["_lsn"], committed_us=committed_us, is_whole=values["_state"] == WHOLE
    )
