"""Arguments of `Table.upsert`, `Table.get` and `Table.delete`: rows, keys and deletes by key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_upsert.core.names import find_columns, names_of, refuse_repeated
from spark_upsert.core.python_values import array_of, is_many, object_columns
from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.commands import GONE


class ArrowStream(Protocol):
    """Any Arrow source: a pandas or Polars data frame, a DuckDB relation, a reader."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""
        ...


GivenRows: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream

_NAMELESS_INDEX = re.compile(r"__index_level_\d+__")
"""The column created by pandas for an unnamed index."""


def as_table(rows: Any) -> pa.Table:
    """Return rows as a table; a named pandas index becomes a column, an unnamed one is dropped."""
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


def with_columns_only(
    schema: TableSchema, rows: pa.Table, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Return rows without all value columns except the given ones, and masks for the others.

    The masks leave these columns unchanged in each row.
    """
    names = find_columns(names_of(columns, "columns"), rows.column_names, role="column")
    own = {name.lower() for name in names}
    own |= {field.name.lower() for field in schema.order} | {(schema.error_column or "").lower()}
    mask = pa.array(np.ones(rows.num_rows, dtype=np.bool_))
    others = {name.lower(): name for name in schema.values if name.lower() not in own}
    sent = [name for name in rows.column_names if name.lower() in others]
    return rows.drop_columns(sent), dict.fromkeys(others.values(), mask)


def with_marks(rows: pa.Table, unchanged: Mapping[str, Any]) -> tuple[pa.Table, dict[str, str]]:
    """Return rows with a boolean column for each mask, and the names of these columns.

    A mask is a boolean for each row, or the name of a boolean column in the rows.
    """
    mark_columns = {}
    for name, mask in unchanged.items():
        mark_columns[name] = mask if isinstance(mask, str) else f"__unchanged_{name}"
        if isinstance(mask, str):
            continue
        values = as_values(mask, pa.field(name, pa.bool_()), role="the mask of column")
        if len(values) != rows.num_rows:
            raise SchemaError(
                f"the mask of column '{name}' has {len(values)} values, for {rows.num_rows} rows.",
                hint="give a boolean for each row.",
                column=name,
            )
        rows = rows.append_column(mark_columns[name], values)
    return rows, mark_columns


def merged(
    schema: TableSchema, incoming: pa.Schema, deletes: str | None, marks: Collection[str] = ()
) -> TableSchema:
    """Return the table's schema with the additional columns and wider types in the rows.

    ``marks`` are the boolean columns that mark unchanged values.
    """
    refuse_repeated(incoming.names)
    schema_names = {name.lower() for name in schema.columns.names}
    special_names = {field.name.lower() for field in schema.order} | (
        {deletes.lower()} if deletes else set()
    )
    special_names |= {name.lower() for name in schema.engine.column_order.values()}
    special_names |= {name.lower() for name in marks}
    special_names -= schema_names
    columns = [field for field in incoming if field.name.lower() not in special_names]
    stored = as_collected(pa.schema(columns), schema.engine)
    return schema.accept(stored, merge=True, orders=incoming)


_COLUMNS_HINT = "give a mapping or a frame with the columns {}."


def as_keys(
    schema: TableSchema, keys: Any, *, names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return keys as a batch, with columns in key column order.

    Accepts all key forms in `TableReader.get`; ``names`` restricts them to some key columns.
    """
    names = tuple(schema.keys if names is None else names)
    fields = [schema.columns.field(name) for name in names]
    columns = _key_columns(names, keys)
    arrays = [as_values(column, field) for column, field in zip(columns, fields, strict=True)]
    lengths = {field.name: len(array) for field, array in zip(fields, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} for '{name}'" for name, count in lengths.items())
        raise SchemaError(
            f"the key columns have different numbers of values: {counts}.",
            hint="give each key column as many values as keys.",
        )
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def as_values(values: Any, field: pa.Field, *, role: str = "key column") -> pa.Array:
    """Return one or several values as an array with the column's type."""
    try:
        return array_of(values if is_many(values) else [values], field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{role} '{field.name}' has no such value: {error}.",
            hint=f"give values of type {field.type}.",
            column=field.name,
        ) from error


def _key_columns(keys: tuple[str, ...], values: Any) -> list[Any]:
    """Return the values per key column."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _single_column(keys, values)
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        try:
            has_stream = hasattr(values, "__arrow_c_stream__")
            table = as_table(values) if has_stream else pa.table(values)
        except pa.ArrowInvalid:  # A Polars column.
            return _single_column(keys, values)
        return [table.column(_column_index(name, table.column_names)) for name in keys]
    if isinstance(values, Mapping):
        return _key_values(keys, values)
    if not is_many(values):
        return _single_column(keys, [values])
    if len(keys) == 1 and getattr(values, "ndim", 1) == 1 and not _has_rows(values):
        return _single_column(keys, values)
    is_one_key = (
        isinstance(values, tuple) and len(values) == len(keys) > 1 and not _has_rows(values)
    )
    rows = [_key_values(keys, row) for row in ([values] if is_one_key else values)]
    return [[row[index] for row in rows] for index in range(len(keys))]


_ROWS = (tuple, list, Mapping, np.ndarray)


def _has_rows(values: Iterable[Any]) -> bool:
    return isinstance(values, Collection) and any(isinstance(item, _ROWS) for item in values)


def _key_values(keys: tuple[str, ...], value: Any) -> list[Any]:
    """Return a mapping's or a sequence's value per key column."""
    if isinstance(value, Mapping):
        columns, values = [str(name) for name in value], list(value.values())
        return [values[_column_index(name, columns)] for name in keys]
    if isinstance(value, _ROWS) and len(value) == len(keys):
        return list(value)
    raise SchemaError(
        f"a key is a value for each of {', '.join(keys)}, found {value!r:.80}.",
        hint=f"give tuples of {len(keys)}, or " + _COLUMNS_HINT.format(", ".join(keys)),
    )


def _single_column(keys: tuple[str, ...], values: Any) -> list[Any]:
    if len(keys) == 1:
        return [values]
    raise SchemaError(
        f"the key is {', '.join(keys)}, and values of one column were given.",
        hint=f"give tuples of {len(keys)}, or " + _COLUMNS_HINT.format(", ".join(keys)),
    )


def _column_index(name: str, available: Sequence[str]) -> int:
    """Return the column index for a key column; raise if the name is missing or ambiguous."""
    matches = [at for at, column in enumerate(available) if column.lower() == name.lower()]
    if not matches:
        raise SchemaError.missing_column(name, available, role="key column of the keys")
    refuse_repeated(available[at] for at in matches)
    return matches[0]


def deletes_of(snapshot: Snapshot, keys: pa.RecordBatch) -> pa.Table:
    """Return a delete for each key with a row at the snapshot's version; other keys are dropped.

    Each delete has its row's order key and wins over the row by `Ties.LAST`. A newer row committed
    meanwhile by another writer remains.
    """
    schema = snapshot.manifest.schema
    require_deletes_win(schema)
    stored_rows = snapshot.look_up(keys.columns, [*schema.keys, *schema.order_columns]).rows
    arrays = {name: stored_rows.column(name) for name in schema.keys}
    stored = schema.order_columns[len(schema.order_columns) - len(schema.order) :]
    orders = {field.name: name for field, name in zip(schema.order, stored, strict=True)}
    arrays |= {name: stored_rows.column(of) for name, of in orders.items() if name not in arrays}
    arrays[GONE] = pa.repeat(pa.scalar(True), stored_rows.num_rows)
    return pa.table(arrays)


def columns_of_deletes(schema: TableSchema) -> pa.Schema:
    """Return the result columns for `deletes_of`; raises the same errors."""
    require_deletes_win(schema)
    fields = [schema.columns.field(name) for name in schema.keys]
    fields += [field for field in schema.order if field.name not in schema.keys]
    return pa.schema([*fields, pa.field(GONE, pa.bool_())])


def require_deletes_win(schema: TableSchema) -> None:
    """Raise if a delete cannot win over a row with the same order key."""
    if not schema.order or schema.scope is not Scope.TABLE or schema.ties is Ties.LAST:
        return
    raise OptionError(
        f"the table has ties={schema.ties.value}, so that no delete of the same order as its row "
        "wins over it.",
        hint="write the deletes with an order of their own: upsert(rows, deletes=...).",
        option="ties",
    )
