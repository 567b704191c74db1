"""What lies ahead of a stream: only inputs in which something may lie are asked for it.

Of ten thousand inputs a hundred have moved since the last batch. An input that was asked and had
nothing (`Backlog.is_at_rest`) is not asked again before the stream has moved there, or the input
has another head. Heads are told apart as objects: a table that was made anew may have an equal one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_upsert.errors import about_input
from spark_upsert.source.input import Backlog
from spark_upsert.source.inputs import Heads, Inputs
from spark_upsert.source.position import Position


class Ahead:
    """Asks inputs for what lies ahead, and remembers in which of them that was nothing.

    Parameters
    ----------
    inputs : Inputs
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._standing: Mapping[str, Position] = {}
        self._resting: dict[str, Position] = {}
        """The heads of inputs that had nothing, while the stream stands there."""

    def backlogs(self, standing: Mapping[str, Position], heads: Heads) -> dict[str, Backlog]:
        """Return what lies ahead, by input; of inputs that are left out it is nothing.

        Parameters
        ----------
        standing : mapping of str to Position
            Where the stream stands: not changed by anybody afterwards.
        heads : mapping of str to Position
            Of the inputs that there are.
        """
        self._move_to(standing)
        resting = self._resting
        found = {}
        for name in [name for name, head in heads.items() if resting.get(name) is not head]:
            found[name] = self._backlog(name, standing.get(name), heads[name])
            if found[name].is_at_rest:
                resting[name] = heads[name]
            else:
                resting.pop(name, None)
        return found

    def _move_to(self, standing: Mapping[str, Position]) -> None:
        """Forget of which inputs it was known that nothing lies ahead, if the stream has moved."""
        before, self._standing = self._standing, standing
        if before is standing:
            return
        for name in list(self._resting):
            now, then = standing.get(name), before.get(name)
            if now is not then and now != then:
                del self._resting[name]

    def _backlog(self, name: str, position: Position | None, head: Position) -> Backlog:
        with about_input(name):
            return self._inputs[name].backlog(position, head)
