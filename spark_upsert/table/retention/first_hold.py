"""The first lease of a consumer: a choice of what to read, which an expiry may make void."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_upsert.errors import ContentionError, DataLossError

T = TypeVar("T")
R = TypeVar("R")

_HOLDS_MAX = 100
"""An expiry takes longer than to take a lease: a hundred that are faster in a row are a fault."""


def first_held(choose: Callable[[], T], hold: Callable[[T], R], url: str) -> tuple[T, R]:
    """Return what a consumer begins with that has nothing yet, and what `hold` returned of it.

    An expiry may come while the choice is made, and before its lease. What is chosen behind it is
    something else; what is refused twice in the same words is gone for good.

    Parameters
    ----------
    choose : callable
        Looks at the table, and returns what can be read by that look.
    hold : callable
        Takes the lease on it, or notes it.
    url : str
        The table, for the error.

    Raises
    ------
    DataLossError
        What is chosen is expired.
    ContentionError
        Expiries were faster, again and again.
    """
    before = ""
    for _ in range(_HOLDS_MAX):
        try:
            chosen = choose()
            return chosen, hold(chosen)
        except DataLossError as error:
            if str(error) == before:
                raise
            before = str(error)
    raise ContentionError(
        f"{_HOLDS_MAX} expiries of '{url}' came between two reads of its log.",
        hint="run fewer expiries at once, then try again.",
    )
