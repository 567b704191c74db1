"""The inputs that have something, in the order in which they began to wait.

An input is in it once at most, however often more comes, and its place and time change by service
alone. So there is one line, and the line of a band is the part of it that is in the band: who comes
into another band stands there by the time it has waited, and within a band nobody is overtaken.
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
        Name and time in milliseconds; the times do not fall.
    """

    __slots__ = ("_since_ms",)

    def __init__(self, waiting: Iterable[tuple[str, int]] = ()) -> None:
        self._since_ms: dict[str, int] = {}
        last_ms = None
        for name, since_ms in waiting:
            if name in self._since_ms or (last_ms is not None and since_ms < last_ms):
                raise ValueError(f"'{name}' waits twice, or stands before who came earlier")
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
        """Return it with some that have something, behind those that were in it already.

        Who was in it stays where it was. If the clock went back nobody waits since later than now:
        a time yet to come would keep who has it, and all behind it, from growing older.
        """
        return self._with({}, names, now_ms)

    def served(self, names: Iterable[str], left: Iterable[str], now_ms: int) -> DirtySet:
        """Return it without those that were served; those that have more wait anew, behind all."""
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
