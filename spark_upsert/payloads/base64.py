"""Base64 texts, decoded many at once: Arrow has no kernel for it.

Only what an encoder writes is taken: the standard alphabet, padding, and no bits left over, so
that no two texts mean the same bytes.

Source: RFC 4648, sections 3.5 and 4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PADDING = ord("=")
_NONE = 64
"""Stands for a byte that is no digit."""

_DIGITS = np.full(256, _NONE, dtype=np.uint8)
_DIGITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint8)


def decode_base64(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Decode texts.

    Parameters
    ----------
    texts : pyarrow.Array of string, shape (n,)

    Returns
    -------
    tuple of (pyarrow.Array of binary, numpy.ndarray of bool), both of shape (n,)
        The bytes, null where the text is null or no Base64; and where it is no Base64.
    """
    is_whole = pc.equal(pc.bit_wise_and(pc.binary_length(texts), 3), 0)
    whole = pc.if_else(is_whole, texts, "").fill_null("").cast(pa.large_binary())
    ends = np.frombuffer(whole.buffers()[1], np.int64, len(whole) + 1, whole.offset * 8)
    data = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    ends = ends - ends[0]
    digits = _DIGITS[data]
    last = ends[1:][ends[1:] > ends[:-1]] - 1
    pads = np.zeros(len(digits), dtype=np.bool_)
    pads[last] = data[last] == _PADDING
    pads[last - 1] = pads[last] & (data[last - 1] == _PADDING)
    is_bad = ~np.asarray(is_whole.fill_null(True).to_numpy(zero_copy_only=False))
    strays = np.flatnonzero((digits == _NONE) & ~pads)
    digits[pads] = 0
    one, two, three, four = digits.reshape(-1, 4).T
    decoded = np.stack([one << 2 | two >> 4, two << 4 | three >> 2, three << 6 | four], axis=1)
    dropped = pads.reshape(-1, 4)[:, 1:]
    left_over = np.flatnonzero((decoded != 0) & dropped) // 3 * 4
    is_bad[np.searchsorted(ends, np.concatenate([strays, left_over]), side="right") - 1] = True
    pads_before = np.concatenate([[0], np.cumsum(pads)])[ends]
    offsets = (ends // 4 * 3 - pads_before).astype(np.int64)
    found = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(texts),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(decoded[~dropped]))],
    ).cast(pa.binary())
    return pc.if_else(pc.and_(texts.is_valid(), pa.array(~is_bad)), found, None), is_bad
