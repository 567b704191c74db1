"""A table version as a lazy Polars frame, with pushed projections and predicates.

Polars is an extra, so only `Table.to_polars` imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from spark_upsert.plan.casts import kind_of
from spark_upsert.plan.expressions import Pins, pins_for_and, pins_for_or, values_of
from spark_upsert.table.scan import IndexOf, RowFilter
from spark_upsert.table.state.snapshot import Snapshot

_COMPARED = frozenset({"truth", "whole", "text", "bytes", "date"})
"""Column types compared by Polars without rounding on either side."""


def lazy_frame(snapshot: Snapshot, index_of: IndexOf) -> pl.LazyFrame:
    """Return a version's rows as a lazy frame; each `collect` reads that version again."""
    columns = snapshot.manifest.schema.columns

    def read(
        names: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        read_names = names or columns.names
        for batch in _batches(snapshot, read_names, predicate, index_of):
            frame = _frame(batch)
            frame = frame if predicate is None else frame.filter(predicate)
            yield frame if rows is None else frame.head(rows)
            rows = None if rows is None else rows - len(frame)
            if rows is not None and rows <= 0:
                return

    return register_io_source(read, schema=_frame(columns.empty_table()).schema, is_pure=True)


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame), "a table is no series"
    return frame


def _batches(
    snapshot: Snapshot, names: list[str], predicate: pl.Expr | None, index_of: IndexOf
) -> Iterator[pa.RecordBatch]:
    columns = snapshot.manifest.schema.columns
    pins = {} if predicate is None else _pins(predicate, columns)
    if not pins:
        return snapshot.read(names)
    where = RowFilter(columns, pins=pins).by_index(snapshot, index_of)
    return where.read(snapshot, names, index_of=index_of)


def _pins(predicate: pl.Expr, columns: pa.Schema) -> Pins:
    """Return the columns pinned by a predicate, with their values.

    They only limit the read rows; Polars applies the predicate itself.
    """
    parts = predicate.meta.pop()
    if len(parts) != 2:
        return {}
    right, left = parts
    if predicate.meta.eq(left & right):
        return pins_for_and(_pins(left, columns), _pins(right, columns))
    if predicate.meta.eq(left | right):
        return pins_for_or(_pins(left, columns), _pins(right, columns))
    if predicate.meta.eq(left == right):
        return _pinned(left, right, columns) or _pinned(right, left, columns)
    if predicate.meta.eq(left.is_in(right)):
        return _pinned(left, right, columns)
    return {}


def _pinned(column: pl.Expr, values: pl.Expr, columns: pa.Schema) -> Pins:
    """Return a column's comparison values, if known without a row."""
    if not column.meta.is_column() or values.meta.root_names():
        return {}
    name = column.meta.output_name()
    if name not in columns.names or kind_of(columns.field(name).type) not in _COMPARED:
        return {}
    series = pl.select(values).to_series()
    if series.dtype == pl.List:
        series = series.explode()
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    pinned_values = values_of(array, columns.field(name).type)
    return {} if pinned_values is None else {name: pinned_values}
