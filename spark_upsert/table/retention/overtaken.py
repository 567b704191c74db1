"""Reads that an expiry overtakes: they tell of no damage, and begin anew if they have nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    VersionNotFoundError,
)
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log

T = TypeVar("T")

_ATTEMPTS_MAX = 100
"""An expiry takes longer than an attempt: a hundred that are faster in a row are a fault."""


def despite_expiry(attempt: Callable[[], T], url: str) -> T:
    """Return what an attempt returns; it is made again where an expiry overtakes it.

    An attempt chooses what to read by a look at the table, and takes the lease on it or begins to
    read. An expiry may come anywhere in between, and behind it another choice is there. What is
    refused twice in the same words is gone for good.

    Parameters
    ----------
    attempt : callable
        Looks at the table anew in each call.
    url : str
        The table, for the error.

    Raises
    ------
    DataLossError
        What the attempt asks for is expired.
    ContentionError
        Expiries were faster, again and again.
    """
    before = ""
    for _ in range(_ATTEMPTS_MAX):
        try:
            return attempt()
        except DataLossError as error:
            if str(error) == before:
                raise
            before = str(error)
    raise ContentionError(
        f"{_ATTEMPTS_MAX} expiries of '{url}' came between two reads of its log.",
        hint="run fewer expiries at once, then try again.",
    )


@contextmanager
def expiry_is_no_damage(store: Store, version: int) -> Iterator[None]:
    """Say so if a file is missing because a vacuum has overtaken a running read."""
    try:
        yield
    except CorruptionError as error:
        head = Log(store).head()
        if version >= head.since:
            raise
        raise VersionNotFoundError.expired(
            f"version {version}, read while an expiry removed it,",
            since=head.since,
            newest=head.version,
        ) from error
