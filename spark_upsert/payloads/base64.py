"""Base64 texts, decoded many at once: Arrow has no kernel for it.

Only what an encoder writes is taken: the standard alphabet, padding, and no bits left over, so
that no two texts mean the same bytes.

The texts of a batch are decoded by one call, with a zero digit in place of each padding and of each
byte that is no digit; what the padding stood for is left out afterwards. Rejected: a call per text,
which takes 1.4 (256 bytes) to 5 times (4 bytes) as long in batches of 100 000.

Source: RFC 4648, sections 3.5 and 4.
"""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PADDING = ord("=")
_ZERO = ord("A")

_IS_DIGIT = np.zeros(256, dtype=np.bool_)
_IS_DIGIT[np.frombuffer(_ALPHABET, np.uint8)] = True


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
    digits = np.frombuffer(whole.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]].copy()
    ends = ends - ends[0]
    full = np.flatnonzero(np.diff(ends))
    one = full[digits[ends[full + 1] - 1] == _PADDING]
    two = one[digits[ends[one + 1] - 2] == _PADDING]
    pads = np.concatenate([ends[one + 1] - 1, ends[two + 1] - 2])
    digits[pads] = _ZERO
    strays = np.flatnonzero(~_IS_DIGIT[digits])
    digits[strays] = _ZERO
    decoded = np.frombuffer(binascii.a2b_base64(digits.data), np.uint8)
    dropped = pads // 4 * 3 + pads % 4 - 1
    wrong = np.concatenate([strays, pads[decoded[dropped] != 0]])
    is_bad = ~np.asarray(is_whole.fill_null(True).to_numpy(zero_copy_only=False))
    is_bad[np.searchsorted(ends, wrong, side="right") - 1] = True
    offsets = ends // 4 * 3
    offsets[1:] -= np.cumsum(np.bincount(np.concatenate([one, two]), minlength=len(texts)))
    found = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(texts),
        [None, pa.py_buffer(offsets), pa.py_buffer(np.delete(decoded, dropped))],
    ).cast(pa.binary())
    return pc.if_else(pc.and_(texts.is_valid(), pa.array(~is_bad)), found, None), is_bad
