"""Row hash codes (`hash_codes`), by which a splitter chooses a channel.

Equal values have equal codes, whatever the width or unit. Integer and boolean codes, and their
combination, are a promise; others are fixed within a release.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys, mix
from spark_upsert.core.keys import Words, fixed_words, is_text, text_of, validity

SPELLED_BYTES = 256
"""The longest text that is hashed byte by byte, with a pass over all rows for each byte."""

_SEED = np.uint64(17)
_FACTOR = np.uint64(37)
_NULL = np.uint64(0)

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_BLOCK_ROWS = 1 << 14
"""Texts that are hashed at once, so that the passes over them stay in the cache."""


def coded_as(type_: pa.DataType) -> str:
    """Return what equal values of a type have the same codes as: types that agree can be matched.

    >>> coded_as(pa.int8()) == coded_as(pa.uint64()) != coded_as(pa.float64())
    True
    """
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "a whole number"
    if is_text(type_):
        return "a text"
    if pa.types.is_date(type_):
        return "a date"
    if pa.types.is_floating(type_):
        return "a float"
    if pa.types.is_decimal(type_):
        return f"a decimal of {type_.scale} digits behind the point"
    return "a moment" if pa.types.is_temporal(type_) else str(type_)


def hash_codes(columns: Sequence[pa.Array]) -> Words:
    """Return the code of each row.

    One column has its value's code; several: ``h = 17``, then ``h = 37 * h + code``, modulo
    ``2**64``.

    - integers: the value, sign-extended to 64 bits; booleans: 0 or 1; NULL: 0;
    - string, binary: ``v = byte + rotate_left(v, 7)`` over signed bytes, from 0; longer than
      `SPELLED_BYTES`: `core.key_hash` with seed 0;
    - date: ``mix`` of the days since 1970; time, timestamp, duration: ``mix`` of the nanoseconds;
    - floats: ``mix`` of the bits of the float64, one zero and one NaN;
    - decimal: ``mix(mix(high half) XOR low half)``.

    Source: IBM Streams, ``Splitter.cpp``; texts by the collate hash of libstdc++ on 64 bits.
    """
    if len(columns) == 1:
        return _codes(columns[0])
    total = np.full(len(columns[0]), _SEED, dtype=np.uint64)
    for column in columns:
        total = total * _FACTOR + _codes(column)
    return total


def _codes(column: pa.Array) -> Words:
    if not len(column):
        return np.zeros(0, dtype=np.uint64)
    codes = _text_codes(column) if is_text(column.type) else _fixed_codes(column)
    valid = validity(column)
    return codes if valid is None else np.where(valid, codes, _NULL)


def _fixed_codes(column: pa.Array) -> Words:
    type_ = column.type
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return fixed_words(column)[0]
    if pa.types.is_date(type_):
        return mix(fixed_words(column.cast(pa.date32()))[0])
    words = fixed_words(column)
    if pa.types.is_temporal(type_):
        words = [words[0] * np.uint64(_NANOSECONDS[type_.unit])]
    codes = mix(words[0])
    for word in words[1:]:
        codes = mix(codes ^ word)
    return codes


# -- texts -----------------------------------------------------------------------------------


def _text_codes(column: pa.Array) -> Words:
    codes = np.empty(len(column), dtype=np.uint64)
    for begin in range(0, len(column), _BLOCK_ROWS):
        block = column.slice(begin, _BLOCK_ROWS)
        codes[begin : begin + len(block)] = _block_codes(block)
    return codes


def _block_codes(column: pa.Array) -> Words:
    """Return the codes of texts, the longest first, so that those not yet spelled are in front."""
    text = text_of(column)
    is_long = text.lengths > SPELLED_BYTES
    lengths = np.where(is_long, 0, text.lengths).astype(np.uint16)
    order = np.argsort(lengths, kind="stable")[::-1]
    starts = text.starts[order]
    # longer[i]: how many texts have a byte at position i.
    longer = np.cumsum(np.bincount(lengths)[::-1])[::-1][1:]
    spelled = np.zeros(len(column), dtype=np.uint64)
    for begin in range(0, len(longer), 8):
        rows = int(longer[begin])
        loads = text.loads[starts[:rows] + begin].astype("<u8", copy=False)
        signed: npt.NDArray[np.int8] = loads.view(np.int8).reshape(rows, 8)
        for index, count in enumerate(longer[begin : begin + 8].tolist()):
            held = spelled[:count]
            turned = (held << np.uint64(7)) | (held >> np.uint64(57))
            turned += signed[:count, index].astype(np.int64).view(np.uint64)
            spelled[:count] = turned
    codes = np.empty_like(spelled)
    codes[order] = spelled
    if is_long.any():
        rows_of_long = np.flatnonzero(is_long)
        codes[rows_of_long] = hash_keys([column.take(pa.array(rows_of_long))], seed=0)
    return codes
