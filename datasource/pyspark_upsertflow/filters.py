"""Filters that Spark hands to a read: where they pin columns to values, only these are read.

Spark does so where `spark.sql.python.filterPushdown.enabled` is on, which is off by default; where
it is off, a reader that has `pushFilters` is an error. No option tells a reader which it is, but
Spark hands filters over in a process of its own kind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from spark_upsert.conversions import UnfitError
from spark_upsert.conversions.python_values import array_of
from spark_upsert.plan.casts import kind_of
from spark_upsert.plan.pins import Pins, both

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program that plans a read with filters."""

_COMPARED = frozenset({"truth", "whole", "decimal", "text", "bytes", "date"})
"""Kinds of columns whose values Spark gives as Python has them."""


def takes_filters() -> bool:
    """Return whether Spark hands filters to the reader that this process makes."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


def pins_of_filters(filters: Iterable[Filter], columns: pa.Schema) -> Pins:
    """Return the values to which filters, all of which are true, pin columns.

    Parameters
    ----------
    filters : iterable of Filter
        What is not understood pins nothing.
    columns : pyarrow.Schema
        The columns of the read.
    """
    found: Pins = {}
    for each in filters:
        found = both(found, _pins_of(each, columns))
    return found


def _pins_of(each: Filter, columns: pa.Schema) -> Pins:
    if isinstance(each, EqualTo) or (isinstance(each, EqualNullSafe) and each.value is not None):
        values = (each.value,)
    elif isinstance(each, In):
        values = each.value
    else:
        return {}
    name = each.attribute[0]
    if len(each.attribute) > 1 or name not in columns.names:
        return {}
    type_ = columns.field(name).type
    if kind_of(type_) not in _COMPARED:
        return {}
    try:
        return {name: array_of([v for v in values if v is not None], type_).unique()}
    except (UnfitError, pa.ArrowException, TypeError, OverflowError):
        return {}
