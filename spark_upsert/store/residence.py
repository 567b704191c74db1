"""How much of mapped files is in memory, and how to give it back.

The kernel may take mapped pages back at any time, but until it wants them they count as memory of
the process, and a monitor of workers counts them too. A look-up that touches one entry maps the 64
KiB around it, so that a few thousand of them would pin a whole table.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pyarrow as pa

_STATM = Path("/proc/self/statm")
_PAGES_OF_FILES = 2
"""Place of the number of resident pages that are of files."""

_ADVICE = getattr(mmap, "MADV_DONTNEED", None)
_madvise = getattr(ctypes.CDLL(None), "madvise", None)


def resident_bytes() -> int:
    """Return the bytes of files that are in this process's memory, its libraries included.

    0 where the system does not tell (anything but Linux).
    """
    try:
        return int(_STATM.read_bytes().split()[_PAGES_OF_FILES]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return 0


def release_mapped(buffer: pa.Buffer) -> None:
    """Give the pages of a mapped file back; a further read loads them anew.

    Parameters
    ----------
    buffer : pyarrow.Buffer
        A whole mapped file that no process writes. The contents of any other memory would be lost.
    """
    if _madvise is not None and _ADVICE is not None and buffer.size > 0:
        # It is only an advice: if it is not taken, nothing is lost.
        _madvise(ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size), _ADVICE)
