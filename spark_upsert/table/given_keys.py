"""Keys as a caller of `Table.get` has them: one or many, as values of Python or as Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_upsert.conversions import array_of
from spark_upsert.errors import SchemaError
from spark_upsert.model.schema import TableSchema

_COLUMNS_HINT = "give a mapping or a frame with the columns {}."


def as_keys(schema: TableSchema, given: Any) -> pa.RecordBatch:
    """Return keys as columns, in the order of the key columns.

    Parameters
    ----------
    schema : TableSchema
    given : object
        A value, where the key is one column, or a sequence of such; a tuple with a value for each
        key column, or a sequence of such; a mapping of key columns to values, or to sequences; an
        array; or anything that gives Arrow, of which the key columns are taken.

    Raises
    ------
    SchemaError
        A key column is missing, or a value is not of its type.
    """
    columns = _columns_of(schema.keys, given)
    fields = [schema.columns.field(name) for name in schema.keys]
    arrays = [_of_type(column, field) for column, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _columns_of(keys: tuple[str, ...], given: Any) -> list[Any]:
    """Return the values of each key column."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return _of_one_column(keys, given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        table = pa.table(given)
        return [table.column(_named(name, table.column_names)) for name in keys]
    if isinstance(given, Mapping):
        found = [given[_named(name, [str(each) for each in given])] for name in keys]
        return found if _is_many(found[0]) else [[value] for value in found]
    if not _is_many(given):
        return _of_one_column(keys, [given])
    if len(keys) == 1 and not any(isinstance(each, tuple | list | Mapping) for each in given):
        return _of_one_column(keys, given)
    several = [given] if _is_one_key(keys, given) else given
    rows = [_row(keys, each) for each in several]
    return [[row[place] for row in rows] for place in range(len(keys))]


def _is_many(given: Any) -> bool:
    is_text = isinstance(given, str | bytes | bytearray)
    return isinstance(given, Sequence | pa.Array | pa.ChunkedArray) and not is_text


def _is_one_key(keys: tuple[str, ...], given: Sequence[Any]) -> bool:
    is_flat = not any(isinstance(each, tuple | list | Mapping) for each in given)
    return isinstance(given, tuple) and len(given) == len(keys) > 1 and is_flat


def _row(keys: tuple[str, ...], given: Any) -> Sequence[Any]:
    if isinstance(given, Mapping):
        return [given[_named(name, [str(each) for each in given])] for name in keys]
    if isinstance(given, tuple | list) and len(given) == len(keys):
        return given
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


def _named(name: str, given: Sequence[str]) -> str:
    found = [each for each in given if each.lower() == name.lower()]
    if len(found) != 1:
        raise SchemaError.missing_column(name, list(given), role="key column of the keys")
    return found[0]


def _of_type(values: Any, field: pa.Field) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return array_of(values, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaError(
            f"key column '{field.name}' has no such value: {error}.",
            hint=f"ask for values of type {field.type}.",
            column=field.name,
        ) from error
