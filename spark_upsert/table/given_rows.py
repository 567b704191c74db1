"""Rows as a caller of `Table.append` has them: any Arrow, or a frame that gives Arrow.

With ``merge_schema`` the table gains what they have more.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from spark_upsert.conversions.python_values import object_columns
from spark_upsert.errors import SchemaError
from spark_upsert.model.names import refuse_repeated
from spark_upsert.model.schema import TableSchema
from spark_upsert.table.write.contributions import as_collected


class ArrowStream(Protocol):
    """Anything that gives Arrow: a frame of pandas or Polars, a relation of DuckDB, a reader."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""
        ...


GivenRows: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream

_NAMELESS_INDEX = re.compile(r"__index_level_\d+__")
"""The column that a frame of pandas makes of an index without a name."""


def as_table(rows: Any) -> pa.Table:
    """Return rows as a table; an index of pandas that has a name is a column, and else nothing.

    Raises
    ------
    SchemaError
        They are nothing that gives Arrow, or have a column of Python objects.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if not hasattr(rows, "__arrow_c_stream__"):
        raise SchemaError(
            "rows are taken as a table, record batch or reader of pyarrow, or as a frame that has "
            f"'__arrow_c_stream__' (pandas 2.2, Polars, DuckDB), found {type(rows).__name__}.",
            hint="make a table of them: pa.Table.from_pylist takes a list of dicts, and pa.table a "
            "dict of columns.",
        )
    objects = object_columns(rows)
    if objects:
        raise SchemaError(
            f"the column '{objects[0]}' of the frame has the type Object: Polars gives Arrow the "
            "addresses of its values, not the values.",
            hint=f"make a column of another type of it, for example by pl.Series(frame["
            f"'{objects[0]}'].to_list()), or drop it.",
            column=objects[0],
        )
    table = pa.RecordBatchReader.from_stream(rows).read_all()
    index = [name for name in table.column_names if _NAMELESS_INDEX.fullmatch(name)]
    return table.drop_columns(index) if index else table


def merged(schema: TableSchema, incoming: pa.Schema, deletes: str | None) -> TableSchema:
    """Return the schema of a table that gains what rows have more.

    Raises
    ------
    SchemaError
        They lack a key, have two columns of one name, or have another type that is no wider one.
    """
    refuse_repeated(incoming.names)
    own = {name.lower() for name in schema.columns.names}
    apart = {field.name.lower() for field in schema.order} | (
        {deletes.lower()} if deletes else set()
    )
    apart |= {name.lower() for name in schema.engine.column_order.values()}
    apart -= own
    columns = [field for field in incoming if field.name.lower() not in apart]
    stored = as_collected(pa.schema(columns), schema.engine)
    return schema.accept(stored, merge=True, orders=incoming)
