"""The queue of inputs that have something, ordered by waiting time.

An input is in the queue once at most, however often more comes, and only service changes its place
and its time. A band's queue is the sub-sequence of its members. So an input that changes its band
keeps its place by age, and within a band no input overtakes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from spark_upsert.schedule.priority import Numbers


class DirtySet:
    """Names of inputs and since when each waits, the first one first; a value.

    Parameters
    ----------
    waiting : iterable of (str, int)
        The name of an input and since when it waits, in milliseconds; times do not fall.
    """

    __slots__ = ("_since_ms",)

    def __init__(self, waiting: Iterable[tuple[str, int]] = ()) -> None:
        self._since_ms: dict[str, int] = {}
        last_ms = None
        for name, since_ms in waiting:
            if name in self._since_ms or (last_ms is not None and since_ms < last_ms):
                raise ValueError(f"'{name}' waits twice, or stands before one that came earlier")
            self._since_ms[name] = last_ms = since_ms

    def __len__(self) -> int:
        return len(self._since_ms)

    def __iter__(self) -> Iterator[str]:
        return iter(self._since_ms)

    def __contains__(self, name: object) -> bool:
        return name in self._since_ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DirtySet):
            return NotImplemented
        return list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def items(self) -> Iterable[tuple[str, int]]:
        """Return the names and since when each waits, in order."""
        return self._since_ms.items()

    def waited_ms(self, now_ms: int) -> Numbers:
        """Return how long each waits, in order."""
        since_ms = np.fromiter(self._since_ms.values(), np.int64, len(self._since_ms))
        return now_ms - since_ms

    def marked(self, names: Iterable[str], now_ms: int) -> DirtySet:
        """Return the queue with further inputs at its end; an input that is in it keeps its place.

        If the clock went back, waiting times later than now are set to now: a time yet to come
        would keep its input, and all inputs behind it, from growing older.
        """
        return self._with({}, names, now_ms)

    def served(self, names: Iterable[str], left: Iterable[str], now_ms: int) -> DirtySet:
        """Return the queue without served inputs; those with more wait anew, behind all."""
        return self._with(dict.fromkeys(names), left, now_ms)

    def _with(self, gone: dict[str, None], names: Iterable[str], now_ms: int) -> DirtySet:
        found = DirtySet()
        # The order of times stays as it is, for the least of two rises with either.
        found._since_ms = {
            name: min(since_ms, now_ms)
            for name, since_ms in self._since_ms.items()
            if name not in gone
        }
        for name in names:
            found._since_ms.setdefault(name, now_ms)
        return found
