"""Fast Arrow array validation (`require_sound`), by whole columns, for readers and writers.

Arrow does not check the contents that it gets from Parquet, Spark or other libraries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask

_CONTINUATION_BELOW = -64
"""Bytes inside a character of UTF-8 are below this, with a sign; those of ASCII have none."""

_FEW_ROWS = 4096
"""Below so many rows, Arrow's check of each row is faster than the set-up of ours."""


def is_plain(type_: pa.DataType) -> bool:
    """Return whether any bits are a value of the type."""
    types = pa.types
    return bool(
        types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_date(type_)
        or types.is_timestamp(type_)
        or types.is_duration(type_)
    )


def require_sound(array: pa.Array) -> None:
    """Raise unless Arrow may use an array; its buffers are known to be long enough."""
    type_ = array.type
    if is_plain(type_):
        return
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        if len(array) < _FEW_ROWS or not _is_sound_text(array):
            array.validate(full=True)
    elif pa.types.is_list(type_) and not array.offset:
        if not _ascend(_offsets(array), len(array.values)):
            raise pa.ArrowInvalid("offsets of lists that are not in order")
        require_sound(array.values)
    elif pa.types.is_struct(type_) and not array.offset:
        for index in range(type_.num_fields):
            require_sound(array.field(index))
    else:
        array.validate(full=True)


def is_sound(array: pa.Array) -> bool:
    """Return whether all values of an array are values of its type (`require_sound`)."""
    try:
        require_sound(array)
    except pa.ArrowInvalid:
        return False
    return True


def unsound_rows(array: pa.Array) -> Mask:
    """Return which values of an array that is not nested are none of its type.

    Halves of the array are validated until each unsound value is alone, so that the number of steps
    follows the number of unsound values.
    """
    unsound = np.zeros(len(array), dtype=np.bool_)
    waiting = [(0, len(array))]
    while waiting:
        first, end = waiting.pop()
        if is_sound(array.slice(first, end - first)):
            continue
        if end - first == 1:
            unsound[first] = True
            continue
        half = (first + end) // 2
        waiting += [(first, half), (half, end)]
    return unsound


def require_offsets(array: pa.Array) -> None:
    """Raise `pyarrow.ArrowInvalid` if lists or maps do not follow each other in their items."""
    types = pa.types
    if types.is_list(array.type) or types.is_map(array.type) or types.is_large_list(array.type):
        offsets = np.asarray(array.offsets)
        if bool((offsets[1:] < offsets[:-1]).any()) or (len(offsets) and offsets[0] < 0):
            raise pa.ArrowInvalid("offsets of lists that are not in order")
    elif types.is_list_view(array.type) or types.is_large_list_view(array.type):
        array.validate(full=True)


def _offsets(array: pa.Array) -> npt.NDArray[np.uint32]:
    """Return where the values begin, and where the last one ends."""
    # As they are never negative, a sign would make them too large.
    everything = np.frombuffer(
        array.buffers()[1], dtype=np.uint32, count=array.offset + len(array) + 1
    )
    return everything[array.offset :]


def _ascend(offsets: npt.NDArray[np.uint32], limit: int) -> bool:
    return bool((offsets[1:] >= offsets[:-1]).all()) and int(offsets[-1]) <= limit


def _is_sound_text(array: pa.Array) -> bool:
    """Return whether all texts are surely sound: all bytes together are, and each begins anew."""
    data, offsets = array.buffers()[2], _offsets(array)
    if not _ascend(offsets, 0 if data is None else data.size):
        return False
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last or pa.types.is_binary(array.type):
        return True
    assert data is not None, "offsets above zero lie within the data"
    data_bytes = np.frombuffer(data, dtype=np.int8)
    if data_bytes[first:last].min() >= 0:
        return True
    ends = pa.py_buffer(np.array([0, last - first], dtype=np.int32))
    value = pa.Array.from_buffers(pa.string(), 1, [None, ends, data.slice(first, last - first)])
    try:
        value.validate(full=True)
    except pa.ArrowInvalid:
        return False
    begins = offsets[: np.searchsorted(offsets, np.uint32(last))]
    return not bool((data_bytes[begins] < _CONTINUATION_BELOW).any())
