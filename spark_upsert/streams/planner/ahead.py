"""The backlogs ahead of a stream: the planner asks only inputs that may have something.

Of ten thousand inputs perhaps a hundred have moved since the last batch. An input that was asked
and had nothing (`Backlog.is_at_rest`) is not asked again before the stream has moved there, or the
input has another head. Heads are told apart as objects: a table that was made anew may have an
equal one. Where the heads say which inputs moved since the last time, the others are not even
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_upsert.errors import about
from spark_upsert.streams.inputs.input import Backlog
from spark_upsert.streams.inputs.inputs import Heads, Inputs, SeenHeads
from spark_upsert.streams.offsets.position import Position


class Ahead:
    """Asks inputs for what lies ahead, and remembers in which of them that was nothing.

    Parameters
    ----------
    inputs : Inputs
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._standing: Mapping[str, Position] | None = None
        self._planned: Mapping[str, Position] | None = None
        self._heads: Heads | None = None
        self._resting: dict[str, Position] = {}
        """The heads of inputs that had nothing, while the stream stands there."""
        self._behind: set[str] = set()
        """All others."""

    def continues(self, standing: Mapping[str, Position], seen: SeenHeads) -> bool:
        """Return whether only `SeenHeads.moved` and what was planned differs from the last time."""
        is_there = standing is self._standing or standing is self._planned
        return is_there and (seen.heads is self._heads or seen.before is self._heads)

    def planned(self, positions: Mapping[str, Position]) -> None:
        """Note where the stream will stand: only inputs that had something have moved."""
        self._planned = positions

    def backlogs(self, standing: Mapping[str, Position], seen: SeenHeads) -> dict[str, Backlog]:
        """Return the backlogs by input; an input that is left out has none.

        Parameters
        ----------
        standing : mapping of str to Position
            Where the stream stands: never changed afterwards.
        seen : Seen
        """
        heads = seen.heads
        names: Iterable[str]
        if self.continues(standing, seen):
            moved = seen.moved if seen.heads is not self._heads else frozenset[str]()
            names = sorted(name for name in self._behind | moved if name in heads)
        else:
            self._forget_moved(standing)
            resting = self._resting
            names = [name for name, head in heads.items() if resting.get(name) is not head]
        self._heads = None  # Until all have answered.
        found = {name: self._backlog(name, standing.get(name), heads[name]) for name in names}
        for name, backlog in found.items():
            if backlog.is_at_rest:
                self._resting[name] = heads[name]
            else:
                self._resting.pop(name, None)
        self._behind = {name for name, backlog in found.items() if not backlog.is_at_rest}
        self._standing, self._planned, self._heads = standing, None, heads
        return found

    def _forget_moved(self, standing: Mapping[str, Position]) -> None:
        """Forget of which inputs it was known that nothing lies ahead, if the stream has moved."""
        before = self._standing or {}
        for name in list(self._resting):
            now, then = standing.get(name), before.get(name)
            if now is not then and now != then:
                del self._resting[name]

    def _backlog(self, name: str, position: Position | None, head: Position) -> Backlog:
        with about("input", name):
            return self._inputs[name].backlog(position, head)
