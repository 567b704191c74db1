"""Unnesting: a row for each element of a list, with the element's place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import PlanError
from spark_upsert.model.arrays import Positions
from spark_upsert.plan.nodes import Unnest


class Unnested(NamedTuple):
    """The elements of the lists of some rows."""

    rows: pa.RecordBatch
    owners: Positions
    """The row that each element is of, ascending."""


def unnested_schema(node: Unnest, schema: pa.Schema) -> pa.Schema:
    """Return the columns that a node gives: the place of an element stands before the element.

    Raises
    ------
    PlanError
        The column is none of lists, or there is one already of the name of the places.
    """
    if node.column not in schema.names:
        raise PlanError.missing_column(node.column, schema.names)
    list_type = schema.field(node.column).type
    if not (pa.types.is_list(list_type) or pa.types.is_large_list(list_type)):
        raise PlanError(
            f"'{node.column}' is {list_type}, and a list is unnested.",
            hint="name a column of lists.",
            column=node.column,
        )
    if node.position in schema.names:
        raise PlanError(
            f"the input has a column '{node.position}' already: rename one.",
            hint=f"select it under another name before: '{node.position}' is the place in the "
            "list.",
            column=node.position,
        )
    at = schema.get_field_index(node.column)
    given = schema.set(at, pa.field(node.column, list_type.value_type))
    return given if node.position is None else given.insert(at, pa.field(node.position, pa.int64()))


def unnest(node: Unnest, rows: pa.RecordBatch, schema: pa.Schema) -> Unnested:
    """Return a row for each element of the lists of some rows, in their order.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
    schema : pyarrow.Schema
        As `unnested_schema` gives it.
    """
    lists = rows.column(node.column)
    lengths = np.asarray(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    own = {node.column: lists.flatten()}
    if node.position is not None:
        own[node.position] = pa.array(_places(lengths))
    places = pa.array(owners)
    arrays = [own[name] if name in own else rows.column(name).take(places) for name in schema.names]
    return Unnested(pa.RecordBatch.from_arrays(arrays, schema=schema), owners)


def _places(lengths: Positions) -> Positions:
    """Return the place of each element in its own list, given the lengths of the lists."""
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
