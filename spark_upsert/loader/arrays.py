"""Batches as arrays of numpy and as tensors of torch: the same rule for each batch of a column.

A column has one type in all batches, whether some of its values are null or not: a null is NaN in
a column of floats, and an error in any other, because nothing in such an array could stand for it.

================================  =====================================  ====================
column                            numpy                                  torch
================================  =====================================  ====================
integers, floats, booleans        the same type                          the same type
list of fixed size of these       the same type, shape (rows, size)      the same
dates, times                      ``datetime64``, ``timedelta64``        an error
anything else                     objects, as ``pa.Array.to_pylist``     an error
================================  =====================================  ====================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.errors import DataError, OptionError, SchemaError

_TORCH_KINDS = "biuf"
"""Kinds of numpy's types that torch takes: booleans, integers and floats."""


def as_numpy(batch: pa.RecordBatch) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a batch as arrays, which may be views that cannot be written to.

    Raises
    ------
    DataError
        A column that is not of floats has a null.
    """
    return {
        name: _array(name, column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _array(name: str, column: pa.Array) -> npt.NDArray[Any]:
    type_ = column.type
    if pa.types.is_fixed_size_list(type_):
        _require_no_nulls(name, column)
        # `flatten` heeds that a batch is a slice of its window, where `values` does not.
        flat = _array(name, column.flatten())
        return flat.reshape(len(column), type_.list_size, *flat.shape[1:])
    if pa.types.is_floating(type_):
        found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_temporal(type_):
        _require_no_nulls(name, column)
        return column.to_numpy(zero_copy_only=False)
    objects = np.empty(len(column), dtype=np.object_)
    objects[:] = column.to_pylist()
    return objects


def _require_no_nulls(name: str, column: pa.Array) -> None:
    if column.null_count:
        raise DataError(
            f"the column '{name}' has {column.null_count} nulls of {len(column)} values, and no "
            f"array of {column.type} has a value for them.",
            hint="fill them where the rows are written, cast the column to a float, or take Arrow "
            "batches, which have nulls.",
        )


def as_torch(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of a batch as tensors, which share no memory with the batch.

    Raises
    ------
    OptionError
        torch is not installed.
    SchemaError
        A column is of a type that torch does not have.
    DataError
        A column that is not of floats has a null.
    """
    torch = imported("torch")
    tensors = {}
    for name, array in as_numpy(batch).items():
        if array.dtype.kind not in _TORCH_KINDS:
            raise SchemaError(
                f"the column '{name}' is {batch.schema.field(name).type}, which torch has no type "
                "for.",
                hint="choose the columns of numbers by 'columns', or take Arrow batches.",
                column=name,
            )
        # A tensor may be written to, and a batch shares its memory with the others of its window.
        tensors[name] = torch.from_numpy(np.array(array))
    return tensors


def imported(name: str) -> Any:
    """Return a module of torch, which is never required but where it is asked for."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"tensors need torch, which is not installed ({error}).",
            hint="install torch, or take batches of numpy or Arrow.",
        ) from error
