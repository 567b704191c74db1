"""The inputs of a stream over the tables of one group, none read further than a whole batch.

The group table alone tells where each table ends: a look costs the same for any number of tables,
and finds them all at the same batch. So a micro-batch brings a reader from one whole batch to
another, in all tables; a limit may decide how many whole batches it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.below import Below
from spark_upsert.options.inputs import UNNAMED, Pin
from spark_upsert.routed.group import TableGroup
from spark_upsert.streams.inputs.found import Make
from spark_upsert.streams.inputs.group_reads import group_table, pins_of
from spark_upsert.streams.inputs.input import Input
from spark_upsert.streams.inputs.inputs import OF_ONE_TABLE, Heads
from spark_upsert.streams.inputs.table_position import TablePosition
from spark_upsert.streams.inputs.whole_batches import WholeBatches
from spark_upsert.streams.offsets.position import Position

_NAMED_MAX = 5
"""The most names that an error lists; the others are counted."""


class GroupInputs:
    """The tables of the group of a root that a pattern finds (`Inputs`).

    Parameters
    ----------
    below : Below
    make : Make
    """

    def __init__(self, below: Below, make: Make) -> None:
        self._below = below
        self._make = make
        self._group = group_table(below)
        self._batches = WholeBatches(self._group)
        self._version: int | None = None
        self._heads: dict[str, Position] = {}
        self._pins: dict[str, Pin] = {}
        self._inputs: dict[str, Input] = {}
        self._joined: set[str] = set()
        self._ahead: list[tuple[int | None, dict[str, int]]] = []
        """Batches that the stream may not have all of: the oldest of them, and the newest."""
        self._complete: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A task makes the inputs that it reads, and asks for no group.
        kept = {"_below": self._below, "_make": self._make, "_joined": self._joined}
        return {
            **self.__dict__,
            "_group": None,
            "_batches": None,
            "_inputs": {},
            "_ahead": [],
            **kept,
        }

    def look(self) -> Heads:
        """Return where each table ends at the newest whole batch (`Inputs.look`).

        None has begun before the first one.
        """
        head = self._group.table.log.try_head()
        if head is None or head.version == self._version:
            return self._heads
        group = self._group.at(head.version)
        found = pins_of(group, self._below)
        # Of tables that have not moved the head stays the very object, so that none is asked.
        same = {name: self._heads[name] for name, pin in found.items() if self._has(name, pin)}
        self._heads = {name: same.get(name) or _end_of(pin) for name, pin in found.items()}
        self._pins, self._version = found, head.version
        if group.batch is not None:
            self._ahead = [*self._ahead[:1], (group.batch.number, _uppers(found))]
        return self._heads

    def within(self, standing: Heads, rows_max: int) -> Heads | None:
        """Return where each table ends at the last batch that a limit admits (`Batched.within`).

        The first batch of a stream is what all tables have: it is taken as a whole.
        """
        if self._version is None or not standing:
            return None

        def has_all(group: TableGroup) -> bool:
            return _has_all(standing, _uppers(pins_of(group, self._below)))

        group = self._batches.within(self._version, rows_max, has_all)
        if group is None or group.batch is None:
            return None
        found = pins_of(group, self._below)
        self._ahead = [(group.batch.number, _uppers(found)), *self._ahead[-1:]]
        same = {name: self._heads[name] for name, pin in found.items() if self._has(name, pin)}
        return {name: same.get(name) or _end_of(pin) for name, pin in found.items()}

    def _has(self, name: str, pin: Pin) -> bool:
        before = self._pins.get(name)
        return before is not None and before.place == pin.place

    def polled(self) -> None:
        """Return nothing: one look tells of all (`Inputs.polled`)."""
        return

    def settle(self, standing: Heads, heads: Heads) -> None:
        """Take note of tables that came (`Inputs.settle`).

        Raises
        ------
        DataLossError
            The group does not know a table in which the stream stands.
        OptionError
            The stream was that of one table.
        """
        gone = sorted(standing.keys() - heads.keys())
        if standing:
            fresh = heads.keys() - standing.keys() - self._joined
            self._joined |= fresh
            for name in fresh:
                self._inputs.pop(name, None)
        if UNNAMED in gone:
            raise OptionError(
                f"{OF_ONE_TABLE}, and the query reads tables below '{self._below.root}'.",
                hint="give the query a new checkpointLocation, or leave 'inputsPattern' out.",
                option="inputsPattern",
            )
        if gone:
            named = ", ".join(f"'{name}'" for name in gone[:_NAMED_MAX])
            more = f" and {len(gone) - _NAMED_MAX} more" if len(gone) > _NAMED_MAX else ""
            raise DataLossError(
                f"the query has read {named}{more}, of which no batch below '{self._below.root}' "
                "that all tables have tells.",
                hint="check 'inputsPattern', and that the root is the one it was; a query that "
                "has read tables of others goes on without 'consistent', or begins with a new "
                "checkpointLocation.",
                inputs=tuple(gone),
            )

    def __getitem__(self, name: str, /) -> Input:
        """Return the input of a name that an offset or a split has."""
        found = self._inputs.get(name)
        if found is None:
            found = self._inputs[name] = self._make(name, joins=name in self._joined)
        return found

    def complete(self, positions: Heads) -> int | None:
        """Return the newest batch that a stream has all of (`Batched.complete`)."""
        while self._ahead and _has_all(positions, self._ahead[0][1]):
            self._complete = self._ahead.pop(0)[0]
        return self._complete


def _end_of(pin: Pin) -> Position:
    """Return the position behind a version, which says of which table it is the version."""
    end = TablePosition.at_changes(pin.place.version, pin.place.version + 1)
    return replace(end, place=pin.place).packed()


def _uppers(pins: Mapping[str, Pin]) -> dict[str, int]:
    return {name: pin.place.version + 1 for name, pin in pins.items()}


def _has_all(positions: Heads, uppers: Mapping[str, int]) -> bool:
    return all(
        name in positions and _has_reached(positions[name], upper) for name, upper in uppers.items()
    )


def _has_reached(position: Position, upper: int) -> bool:
    reached = TablePosition.unpacked(position)
    return not reached.is_in_snapshot and reached.upper >= upper
