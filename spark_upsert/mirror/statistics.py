"""Statistics of a twin, from the footer of its file: what readers skip files by.

Bounds are told only where they are safe. Parquet's own bounds leave NaN out, while NaN is above all
numbers to Delta's readers, and readers use the bounds of a footer, too: a filter ``x > 100`` would
lose rows. So floats have no statistics, neither in the log nor in the file. Long texts have no
bounds in the log, because a reader may cut bounds that it was not given whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS_MAX = 32
"""Columns that have statistics: as many as Delta itself gives by default."""

TEXT_MAX = 32
"""Characters of a text that is a bound."""

_FIRST_DATE = date(1000, 1, 1)
"""Older dates have fewer than four digits of year in some writers, and calendars differ."""


def bounded_columns(columns: pa.Schema) -> list[str]:
    """Return the columns of which a file may have statistics: no floats, nothing nested."""
    return [
        field.name
        for field in columns
        if not (pa.types.is_floating(field.type) or pa.types.is_nested(field.type))
    ]


def stats_of(footer: pq.FileMetaData, columns: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a file, without `tightBounds` (`stats_text`).

    Parameters
    ----------
    footer : pyarrow.parquet.FileMetaData
    columns : pyarrow.Schema
        The columns of the file.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    leaf = 0
    for field in list(columns)[:COLUMNS_MAX]:
        at, leaf = leaf, leaf + _leaves(field.type)
        if pa.types.is_nested(field.type):
            continue
        chunks = [footer.row_group(g).column(at).statistics for g in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in chunks):
            continue
        nulls[field.name] = sum(each.null_count for each in chunks)
        held = [each for each in chunks if each.has_min_max]
        # A chunk of nulls alone has no bounds; another chunk without them hides its values.
        if len(held) < sum(each.num_values > 0 for each in chunks):
            continue
        bounds = [_bounds(field.type, each.min, each.max) for each in held]
        if bounds and all(bounds):
            least[field.name] = min(each[0] for each in bounds if each)
            greatest[field.name] = max(each[1] for each in bounds if each)
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def stats_text(stats: Mapping[str, Any], *, has_vector: bool) -> str:
    """Return statistics as they stand in an `add`; dead rows make bounds wide."""
    own = {"numRecords": stats["numRecords"], "tightBounds": not has_vector}
    return json.dumps({**stats, **own}, separators=(",", ":"), ensure_ascii=False)


def _leaves(type_: pa.DataType) -> int:
    """Return how many columns of Parquet a column becomes."""
    if not pa.types.is_nested(type_):
        return 1
    if pa.types.is_map(type_):
        return _leaves(type_.key_type) + _leaves(type_.item_type)
    return sum(_leaves(type_.field(i).type) for i in range(type_.num_fields))


def _bounds(type_: pa.DataType, low: Any, high: Any) -> tuple[Any, Any] | None:
    """Return bounds as JSON has them; None if they are not safe."""
    if pa.types.is_integer(type_):
        return low, high
    if pa.types.is_string(type_):
        return (low, high) if max(len(low), len(high)) <= TEXT_MAX else None
    if pa.types.is_date(type_):
        is_safe = isinstance(low, date) and isinstance(high, date) and low >= _FIRST_DATE
        return (low.isoformat(), high.isoformat()) if is_safe else None
    return None
