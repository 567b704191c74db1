"""Frugal work, for processes that share a machine: mapped memory is given back between steps.

A task of Spark works frugally, and says so for its own work alone: within `frugal`, or while it
advances an iterator that it passed through `frugally`. Plain Python has the process to itself and
keeps what it has mapped. Why, and what it costs: ``docs/adr/0012``.

Rejected: a switch of the process; the first task would turn it for all later work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_IS_FRUGAL: ContextVar[bool] = ContextVar("is_frugal", default=False)


def is_frugal() -> bool:
    """Return whether the work at hand is to give mapped memory back."""
    return _IS_FRUGAL.get()


@contextmanager
def frugal() -> Iterator[None]:
    """Work frugally within; what a generator does outside of it is its caller's."""
    token = _IS_FRUGAL.set(True)
    try:
        yield
    finally:
        _IS_FRUGAL.reset(token)


def frugally(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator, each of which is made frugally."""
    while True:
        with frugal():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
