"""Several threads for one call: numpy and Arrow release the interpreter while they work.

A task of Spark has one core and uses none of this; plain Python may ask for more
(``Table.open(path, threads=4)``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


ROWS_PER_THREAD = 1 << 14
"""Fewer rows are worked upon faster than they are handed to another thread."""


def useful_threads(rows: int, threads: int) -> int:
    """Return how many of some threads are worth their while for so many rows."""
    return max(1, min(threads, rows // ROWS_PER_THREAD))


def in_order(function: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Yield what a function makes of each item, in the order of the items.

    Parameters
    ----------
    threads : int
        How many items are worked upon at once, and how many outcomes wait at most. Each works
        in the context of the caller.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Out]] = deque()
        for item in items:
            if len(waiting) == threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(copy_context().run, function, item))
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def beside(work: Callable[[], Out], *, rows: int) -> Iterator[Callable[[], Out]]:
    """Do some work on rows while the block runs, and lend what waits for its outcome.

    It is for work that mostly waits for a storage, which a task of one core does well to begin
    early. With few rows it is done when its outcome is asked for, or not at all. The block does not
    end before the work, which is done in the context of the caller.
    """
    if rows < ROWS_PER_THREAD:
        yield work
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(copy_context().run, work).result
