"""The share of the memory bound that each of several readers in one process has.

A read of a table bounds what it holds by itself. Where a task reads sixteen tables beside each
other, sixteen times that would be no bound for the task. So a reader in a merge says how many share
the bound, in its own thread (`shared_by`), and its pieces are cut accordingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SHARES: ContextVar[int] = ContextVar("shares", default=1)


def part_of(size: int) -> int:
    """Return the part of a bound in bytes that the work at hand may take."""
    return max(1, size // _SHARES.get())


@contextmanager
def shared_by(count: int) -> Iterator[None]:
    """Work within as one of several readers; outside of it a generator works as its caller."""
    token = _SHARES.set(count)
    try:
        yield
    finally:
        _SHARES.reset(token)
