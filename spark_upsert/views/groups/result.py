"""The result of a kept table's entries: a row for each group that has rows.

count = c; sum = NULL if c = 0, else s; avg = s / c; min and max are the ends of the values that
some row has. NaN is above all. A group without rows has no entry, hence no row in the result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import try_convert
from spark_upsert.model.arrays import Positions
from spark_upsert.model.engines import GROUP_PART, MARKER_PART, PART, value_column
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.words import ordered_words
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.kernels.equal_keys import NOWHERE, codes, places
from spark_upsert.table.entries.multiplicity import require_possible
from spark_upsert.table.entries.sums import averages, together
from spark_upsert.views.groups.grouping import Grouping, Summed

_LOGGER = logging.getLogger(__name__)


def result(grouping: Grouping, entries: pa.RecordBatch, *, url: str) -> pa.RecordBatch:
    """Return the rows of some groups.

    Parameters
    ----------
    grouping : Grouping
    entries : pyarrow.RecordBatch
        Columns as ``grouping.kept.columns``: all entries of these groups at one version, one of
        each key, in any order. The marker may be among them.
    url : str
        Where the table lies, for an error.

    Returns
    -------
    pyarrow.RecordBatch
        Columns as ``grouping.result``, one row for each group, in the order of their entries.

    Raises
    ------
    CorruptionError
        An entry is of no rows.

    Notes
    -----
    What does not fit into the type in which it is shown is NULL in its group, and a warning tells
    of it: the sums themselves are kept, so that it is there again as soon as it fits.
    """
    columns = {name: entries.column(name) for name in entries.schema.names}
    require_possible(grouping.kept, columns, url)
    counts = np.asarray(columns[grouping.multiplicity].fill_null(0))
    parts = np.where(counts > 0, np.asarray(columns[PART]), MARKER_PART)
    groups = entries.take(pa.array(np.flatnonzero(parts == GROUP_PART)))
    ends = {
        column: _ends(grouping, entries, groups, np.flatnonzero(parts == part), part)
        for column, part in grouping.parts.items()
    }
    arrays = [groups.column(key) for key in grouping.keys]
    for each in grouping.aggregates:
        shown = _shown(grouping, each, groups, ends)
        arrays.append(shown.values)
        if shown.lost:
            fields = Fields(path=url, column=each.name, groups=shown.lost)
            _LOGGER.warning("groups whose values do not fit: %s", fields)
    if not arrays:
        return pa.RecordBatch.from_pylist([{}] * groups.num_rows, schema=grouping.result)
    return pa.RecordBatch.from_arrays(arrays, schema=grouping.result)


class _Shown(NamedTuple):
    """A column of a result."""

    values: pa.Array
    lost: int = 0
    """How many groups have a value that does not fit."""


_Ends = tuple[pa.Array, pa.Array]
"""The smallest and the greatest value of each group, NULL where it has none."""


def _ends(
    grouping: Grouping, entries: pa.RecordBatch, groups: pa.RecordBatch, at: Positions, part: int
) -> _Ends:
    """Return the ends of the values of a part, one for each group."""
    values = entries.take(pa.array(at))
    column = values.column(value_column(part))
    if not len(column):
        nothing = pa.nulls(groups.num_rows, column.type)
        return nothing, nothing
    owner = _owners(grouping, groups, values)
    order = np.lexsort((*reversed(ordered_words(column)), owner))
    owner = owner[order]
    begins = np.flatnonzero(np.diff(owner, prepend=NOWHERE - 1))
    lasts = np.append(begins[1:], len(owner)) - 1
    found = []
    for chosen in (begins, lasts):
        place = np.full(groups.num_rows, NOWHERE, dtype=np.int64)
        place[owner[chosen]] = order[chosen]
        found.append(column.take(pa.array(place, mask=place == NOWHERE)))
    return found[0], found[1]


def _owners(grouping: Grouping, groups: pa.RecordBatch, values: pa.RecordBatch) -> Positions:
    """Return to which of the groups each entry belongs."""
    if not grouping.keys:
        return np.zeros(values.num_rows, dtype=np.int64)
    keys = ([side.column(key) for key in grouping.keys] for side in (groups, values))
    ours, theirs = codes(*keys)
    return places(theirs, ours)


def _shown(
    grouping: Grouping,
    aggregate: Aggregate,
    groups: pa.RecordBatch,
    ends: Mapping[str, _Ends],
) -> _Shown:
    column, kind = aggregate.column, aggregate.kind
    if column is None:
        return _Shown(groups.column(grouping.multiplicity))
    if kind is AggregateKind.MIN:
        return _Shown(ends[column][0])
    if kind is AggregateKind.MAX:
        return _Shown(ends[column][1])
    summed = grouping.sum_of(aggregate)
    count = groups.column(summed.count)
    if kind is AggregateKind.COUNT:
        return _Shown(count)
    type_ = grouping.result.field(aggregate.name).type
    is_some = pc.greater(count, 0)
    if kind is AggregateKind.SUM:
        found = _total(groups, summed, type_)
    elif pa.types.is_decimal(type_):
        found = _quotient(groups, summed, count, type_)
    else:
        # A group without values is divided by one, and then NULL.
        divisor = pc.if_else(is_some, count, 1).cast(pa.float64())
        found = _Shown(pc.divide(_total(groups, summed, type_).values, divisor))
    return found._replace(values=pc.if_else(is_some, found.values, pa.scalar(None, type_)))


def _total(groups: pa.RecordBatch, summed: Summed, type_: pa.DataType) -> _Shown:
    """Return the sums of a column in the type in which they are shown."""
    total = _whole(groups, summed)
    beyond = pc.and_(pc.is_null(total), pc.greater(groups.column(summed.count), 0))
    shown = _fitting(total, type_)
    shown = shown._replace(lost=shown.lost + (pc.sum(beyond).as_py() or 0))
    if not summed.apart:
        return shown
    total = shown.values
    nan, above, below = (pc.greater(groups.column(name), 0) for name in summed.apart)
    for where, value in ((below, "-inf"), (above, "inf"), (pc.and_(above, below), "nan")):
        total = pc.if_else(where, pa.scalar(float(value)), total)
    return shown._replace(values=pc.if_else(nan, pa.scalar(float("nan")), total))


def _quotient(
    groups: pa.RecordBatch, summed: Summed, count: pa.Array, type_: pa.DataType
) -> _Shown:
    """Return averages of decimals, rounded half up as Spark does."""
    return _fitting(averages(_whole(groups, summed), count, type_.scale), type_)


def _whole(groups: pa.RecordBatch, summed: Summed) -> pa.Array:
    """Return the sums of a column, exact."""
    assert summed.total is not None
    total = groups.column(summed.total)
    return total if summed.beyond is None else together(total, groups.column(summed.beyond))


def _fitting(column: pa.Array, type_: pa.DataType) -> _Shown:
    """Return values in a type, NULL where one does not fit."""
    values, lost = try_convert(column, type_)
    return _Shown(values, int(lost.sum()))
