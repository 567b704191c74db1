"""Answers of a server over HTTP, read within bounds of bytes and of time.

A server may answer a byte at a time and never end, each byte in time; send headers for ever; or
pack a gigabyte of nothing into a megabyte. So each read waits only as long as the whole answer may
still take, no more bytes are read than an answer may have, and packed ones are unpacked no further.
"""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Callable
from typing import Any

ANSWER_BYTES_MAX = 8 << 20
"""A schema of a MiB, each letter of which JSON escapes."""

ANSWER_S = 30.0
"""Time that one answer may take from its first header to its last byte."""

_PIECE_BYTES = 64 << 10
_ANY_WINDOW = 47
"""zlib's number for what is packed by gzip or by deflate."""

Clock = Callable[[], float]


class TooMuch(Exception):
    """An answer is longer than an answer may be, or not packed as it says."""


def in_time(connection: type[Any], clock: Clock = time.monotonic) -> type[Any]:
    """Return a class of connections (of urllib3) that read an answer in time or not at all.

    A read that is too late is a `TimeoutError`, which urllib3 takes for that of a socket.
    """

    class InTime(connection):  # type: ignore[misc]
        sock: Any

        def connect(self) -> None:
            super().connect()
            self.sock = _TimedSocket(self.sock, clock)

    return InTime


class _TimedSocket:
    """A socket that gives the file of each answer a time limit of its own."""

    def __init__(self, sock: Any, clock: Clock) -> None:
        self._sock = sock
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> io.BufferedReader:
        raw = self._sock.makefile(mode, buffering=0)
        return io.BufferedReader(_TimedFile(self._sock, raw, self._clock))


class _TimedFile(io.RawIOBase):
    def __init__(self, sock: Any, raw: io.RawIOBase, clock: Clock) -> None:
        self._sock = sock
        self._raw = raw
        self._clock = clock
        self._until_s = clock() + ANSWER_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - self._clock()
        if left_s <= 0:
            raise TimeoutError(f"an answer takes longer than {ANSWER_S:g} s")
        waits_s = self._sock.gettimeout()
        self._sock.settimeout(left_s if waits_s is None else min(left_s, waits_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def body_of(response: Any) -> bytes:
    """Return the body of an answer (of urllib3, not read yet), unpacked.

    Raises
    ------
    TooMuch
        It is longer than `ANSWER_BYTES_MAX`, packed or not, or packed in a way that is not known.
    """
    data = bytearray()
    while piece := response.read(_PIECE_BYTES, decode_content=False):
        data += piece
        if len(data) > ANSWER_BYTES_MAX:
            raise TooMuch(f"more than {ANSWER_BYTES_MAX} bytes")
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    return bytes(data) if packed == "identity" else _unpacked(bytes(data), packed)


def _unpacked(data: bytes, packed: str) -> bytes:
    if packed not in ("gzip", "x-gzip", "deflate"):
        raise TooMuch(f"an answer packed as '{packed[:20]}'")
    inflater = zlib.decompressobj(_ANY_WINDOW)
    try:
        found = inflater.decompress(data, ANSWER_BYTES_MAX)
    except zlib.error as error:
        raise TooMuch(f"an answer that is not packed as it says ({error})") from error
    if inflater.unconsumed_tail:
        raise TooMuch(f"more than {ANSWER_BYTES_MAX} bytes, once it is unpacked")
    return found
