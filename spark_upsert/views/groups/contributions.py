"""The contributions of a step to the groups: one entry for each group that it changed.

    contributions(old, new) = fold(sign(new, +1) + sign(old, -1)), without what is all zero

A row with sign d adds d to the count of its group, and for each value x that is not NULL d to the
count of values and d * x to their sum; in the part of a value it adds d to the count of it. The
sums are those of the engine, because the rows are folded as entries of the kept table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import convert
from spark_upsert.model.engines import FROM, GROUP_PART, MARKER_PART, PART, TO, value_column
from spark_upsert.model.hashing import hash_keys
from spark_upsert.model.schema import DIFF, HASH, PUT, is_live
from spark_upsert.plan.kernels.equal_keys import canonical
from spark_upsert.table.entries.fold import fold
from spark_upsert.table.entries.sums import apart
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.views.groups.grouping import DIGITS, Grouping, Summed, sum_types
from spark_upsert.views.groups.rounding import rounded
from spark_upsert.views.pairs import Pairs

_Signs = npt.NDArray[np.int64]


def contributions(grouping: Grouping, pairs: Pairs) -> pa.RecordBatch:
    """Return what pairs of rows contribute.

    Parameters
    ----------
    grouping : Grouping
    pairs : Pairs
        Pairs of rows with the columns of ``grouping.rows``, with or without a key: those of one
        step, or of several.

    Returns
    -------
    pyarrow.RecordBatch
        Columns as ``grouping.kept.columns``, one entry of each key, none all zero, any order.

    Raises
    ------
    DataError
        A float does not fit into 38 digits with its scale.
    """
    sides = ((pairs.old_rows(), -1), (pairs.new_rows(), +1))
    rows = pa.Table.from_batches([side for side, _ in sides]).combine_chunks()
    columns = {name: _whole(rows.column(name)) for name in grouping.rows.names}
    signs = np.repeat([sign for _, sign in sides], [side.num_rows for side, _ in sides])
    return folded(grouping, _entries(grouping, columns, signs.astype(np.int64)))


def folded(grouping: Grouping, entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return one entry of each key: the sums of all, without those that are all zero."""
    schema = grouping.kept
    if not entries.num_rows:
        return entries
    keys = [entries.column(key) for key in schema.keys]
    hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
    own = {HASH: pa.array(hashes), DIFF: pa.array(np.full(len(hashes), PUT, dtype=np.int8))}
    batch = pa.RecordBatch.from_arrays(
        [own[name] if name in own else entries.column(name) for name in schema.run.names],
        schema=schema.run,
    )
    made = fold(Rows(schema, [BatchPart(batch)])).rows
    names = [*schema.columns.names, DIFF]
    *columns, diffs = made.take(names, np.arange(len(made)))
    found = pa.RecordBatch.from_arrays(columns, schema=schema.columns)
    return found.filter(pa.array(is_live(diffs)))


def marker(grouping: Grouping, *, lower: str, upper: str) -> pa.RecordBatch:
    """Return the entry that says which step a write is: from one position to another."""
    own = {PART: MARKER_PART, FROM: lower, TO: upper}
    own |= dict.fromkeys(grouping.kept.engine.rules, 0)
    row = {name: own.get(name) for name in grouping.kept.columns.names}
    return pa.RecordBatch.from_pylist([row], schema=grouping.kept.columns)


def _entries(grouping: Grouping, columns: Mapping[str, pa.Array], signs: _Signs) -> pa.RecordBatch:
    """Return the entries of each row: one of its group, and one for each value of a part."""
    keys = {key: canonical(columns[key]) for key in grouping.keys}
    of_group: dict[str, pa.Array] = {**keys, grouping.multiplicity: pa.array(signs)}
    for summed in grouping.sums:
        of_group |= _summed(grouping, summed, columns[summed.column], signs)
    batches = [_batch(grouping, of_group, GROUP_PART, len(signs))]
    for name, part in grouping.parts.items():
        valid = columns[name].is_valid()
        count = pc.sum(valid).as_py() or 0
        of_value = {
            **{key: column.filter(valid) for key, column in keys.items()},
            value_column(part): canonical(columns[name].filter(valid)),
            grouping.multiplicity: pa.array(signs).filter(valid),
        }
        batches.append(_batch(grouping, of_value, part, count))
    return pa.concat_batches(batches)


def _batch(
    grouping: Grouping, columns: Mapping[str, pa.Array], part: int, count: int
) -> pa.RecordBatch:
    """Return entries of one part, with nulls for what it does not have."""
    own = {**columns, PART: pa.repeat(pa.scalar(part, pa.int32()), count)}
    schema = grouping.kept.columns
    arrays = [own[f.name] if f.name in own else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _summed(
    grouping: Grouping, summed: Summed, column: pa.Array, signs: _Signs
) -> dict[str, pa.Array]:
    """Return the columns that are kept of one column of the rows."""
    valid = column.is_valid()
    found = {summed.count: _counted(valid, signs)}
    if summed.total is None:
        return found
    type_ = sum_types(summed.column, grouping.rows.field(summed.column).type, summed.scale)[0]
    if summed.scale is not None:
        for name, where in zip(summed.apart, _apart(column), strict=True):
            found[name] = _counted(where, signs)
        finite = pc.and_(valid, pc.is_finite(column)).fill_null(False)
        values = rounded(_only(column, finite), summed.scale, DIGITS)
    else:
        values = convert(column, type_)
    values = values.fill_null(pa.scalar(0, type_))
    parts = [values] if summed.beyond is None else apart(values)
    for name, part in zip(summed.columns[1:], parts, strict=False):
        found[name] = pc.if_else(pa.array(signs < 0), pc.negate(part), part)
    return found


def _apart(column: pa.Array) -> tuple[pa.Array, ...]:
    """Return which floats are NaN, and which are either infinity."""
    endless = pc.is_inf(column)
    above = pc.greater(column, pa.scalar(0.0, column.type))
    parts = (pc.is_nan(column), pc.and_(endless, above), pc.and_not(endless, above))
    return tuple(part.fill_null(False) for part in parts)


def _counted(where: pa.Array, signs: _Signs) -> pa.Array:
    return pc.if_else(where, pa.array(signs), pa.scalar(0, pa.int64()))


def _only(column: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(where, column, pa.scalar(None, column.type))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
