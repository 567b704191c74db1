"""Keys as a caller of `Table.get` has them: one or many, as values of Python or as Arrow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.conversions.python_values import array_of, is_many
from spark_upsert.errors import SchemaError
from spark_upsert.model.names import refuse_repeated
from spark_upsert.model.schema import TableSchema
from spark_upsert.table.given_rows import as_table

_COLUMNS_HINT = "give a mapping or a frame with the columns {}."


def as_keys(
    schema: TableSchema, given: Any, *, names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return keys as columns, in the order of the key columns.

    Parameters
    ----------
    schema : TableSchema
    given : object
        A value, where the key is one column, or several such values (`is_many`); a tuple with a
        value for each key column, or several such tuples; a mapping of key columns to values, or
        to several values each; an array; or anything that gives Arrow, of which the key columns
        are taken.
    names : sequence of str, optional
        Some of the key columns; by default all.

    Raises
    ------
    SchemaError
        A key column is missing or ambiguous, a value is not of its type, or columns have different
        numbers of values.
    """
    names = tuple(schema.keys if names is None else names)
    fields = [schema.columns.field(name) for name in names]
    columns = _columns_of(names, given)
    arrays = [as_values(column, field) for column, field in zip(columns, fields, strict=True)]
    lengths = {field.name: len(array) for field, array in zip(fields, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{count} for '{name}'" for name, count in lengths.items())
        raise SchemaError(
            f"the key columns have different numbers of values: {counts}.",
            hint="give each key column as many values as keys.",
        )
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def as_values(given: Any, field: pa.Field, *, role: str = "key column") -> pa.Array:
    """Return one value or several as an array of a column's type.

    Raises
    ------
    SchemaError
        A value is not of that type.
    """
    try:
        return array_of(given if is_many(given) else [given], field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"{role} '{field.name}' has no such value: {error}.",
            hint=f"give values of type {field.type}.",
            column=field.name,
        ) from error


def _columns_of(keys: tuple[str, ...], given: Any) -> list[Any]:
    """Return the values of each key column."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return _of_one_column(keys, given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        try:
            has_stream = hasattr(given, "__arrow_c_stream__")
            table = as_table(given) if has_stream else pa.table(given)
        except pa.ArrowInvalid:  # A column of Polars.
            return _of_one_column(keys, given)
        return [table.column(_place_of(name, table.column_names)) for name in keys]
    if isinstance(given, Mapping):
        return _row(keys, given)
    if not is_many(given):
        return _of_one_column(keys, [given])
    if len(keys) == 1 and getattr(given, "ndim", 1) == 1 and not _has_rows(given):
        return _of_one_column(keys, given)
    is_one_key = isinstance(given, tuple) and len(given) == len(keys) > 1 and not _has_rows(given)
    rows = [_row(keys, row) for row in ([given] if is_one_key else given)]
    return [[row[place] for row in rows] for place in range(len(keys))]


_ROWS = (tuple, list, Mapping, np.ndarray)


def _has_rows(given: Iterable[Any]) -> bool:
    return isinstance(given, Collection) and any(isinstance(each, _ROWS) for each in given)


def _row(keys: tuple[str, ...], given: Any) -> list[Any]:
    """Return what a mapping or a sequence has for each key column."""
    if isinstance(given, Mapping):
        columns, values = [str(name) for name in given], list(given.values())
        return [values[_place_of(name, columns)] for name in keys]
    if isinstance(given, _ROWS) and len(given) == len(keys):
        return list(given)
    raise SchemaError(
        f"a key is a value for each of {', '.join(keys)}, found {given!r:.80}.",
        hint=f"give tuples of {len(keys)}, or " + _COLUMNS_HINT.format(", ".join(keys)),
    )


def _of_one_column(keys: tuple[str, ...], values: Any) -> list[Any]:
    if len(keys) == 1:
        return [values]
    raise SchemaError(
        f"the key is {', '.join(keys)}, and values of one column were given.",
        hint=f"give tuples of {len(keys)}, or " + _COLUMNS_HINT.format(", ".join(keys)),
    )


def _place_of(name: str, available: Sequence[str]) -> int:
    """Return where the one column is that a key column's name means."""
    places = [at for at, column in enumerate(available) if column.lower() == name.lower()]
    if not places:
        raise SchemaError.missing_column(name, available, role="key column of the keys")
    refuse_repeated(available[at] for at in places)
    return places[0]
