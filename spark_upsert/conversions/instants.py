"""Dates and timestamps in other units, all within the years 0001 to 9999 of UTC.

A time without a zone is taken as one of UTC. A date is that of the zone that a time has.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions.rounding import Rounding
from spark_upsert.conversions.times import DAYS_MAX, DAYS_MIN
from spark_upsert.model.arrays import Mask

_SECONDS = 86_400
_PER_DAY = {
    "s": _SECONDS,
    "ms": _SECONDS * 1_000,
    "us": _SECONDS * 1_000_000,
    "ns": _SECONDS * 1_000_000_000,
}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def converted(values: pa.Array, type_: pa.DataType, rounding: Rounding) -> tuple[pa.Array, Mask]:
    """Return dates or timestamps as others, and which are none.

    Bad are those of other years, and unless they are rounded, which is down, what the unit is too
    coarse for: a timestamp is a date only at midnight.
    """
    if pa.types.is_date64(type_) and values.type != type_:
        days, bad = converted(values, pa.date32(), rounding)
        return pc.cast(days, type_), bad
    if pa.types.is_date(type_) and getattr(values.type, "tz", None) not in (None, "UTC"):
        values = pc.local_timestamp(values)
    own, other = _per_day(values.type), _per_day(type_)
    least, most = max(DAYS_MIN * own, _LEAST), min((DAYS_MAX + 1) * own - 1, _MOST)
    if other > own:  # In nanoseconds there are no other years than 1677 to 2262.
        least, most = max(least, -(_MOST // (other // own))), min(most, _MOST // (other // own))
    numbers = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    bad = np.zeros(len(values), dtype=np.bool_)
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    is_inside = low is None or least <= low <= high <= most
    if is_inside and values.type == type_:
        return values, bad
    ints = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not is_inside:
        bad = (ints < least) | (ints > most)
        ints = np.where(bad, 0, ints)
    if other >= own:
        ints = ints * (other // own)
    else:
        whole = ints // (own // other)
        if rounding is Rounding.EXACT:
            bad |= whole * (own // other) != ints
        ints = whole
    kind = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    mask = ~np.asarray(values.is_valid()) | bad
    return pa.array(ints.astype(kind.to_pandas_dtype()), kind, mask=mask).view(type_), bad


def _per_day(type_: pa.DataType) -> int:
    if pa.types.is_timestamp(type_):
        return _PER_DAY[type_.unit]
    return _PER_DAY["ms"] if pa.types.is_date64(type_) else 1
