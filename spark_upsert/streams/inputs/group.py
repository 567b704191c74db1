"""Inputs of a routed write's group: all tables, read up to one complete batch (docs/adr/0043).

Only the batch's record in the root's group table decides which tables take part, and at which
versions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.inputs import UNNAMED, DiscoveryOptions, Pin
from spark_upsert.options.read import ReadOptions
from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.discovered import Make, matches
from spark_upsert.streams.inputs.inputs import OF_ONE_TABLE, Heads
from spark_upsert.streams.inputs.protocol import Input
from spark_upsert.streams.inputs.table import OTHER_THAN_IN_GROUP, TablePosition, no_group_error
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.table import Table


def group_table(below: DiscoveryOptions) -> GroupTable:
    """Return the root's group table."""
    return GroupTable(open_store(below.root, below.storage))


def pins(below: DiscoveryOptions) -> dict[str, Pin]:
    """Return the pinned tables at a batch, sorted by name or by path below the root."""
    group = _group(group_table(below), below)
    if group.batch is None:
        raise no_group_error(below.root)
    if group.is_joining:
        raise OptionError(
            f"{_named(group.batch.number)} below '{below.root}' is no state of the database that "
            "the tables follow: tables were copied at different times.",
            hint="read again when 'upsertflow follow' reports a batch that is not joining; or give "
            "an earlier 'asOfBatch', or read without 'consistent'.",
            option="consistent",
        )
    pinned = pins_of(group, below)
    missing = sorted(below.named.keys() - pinned.keys())
    if missing:
        raise OptionError(
            f"the input '{missing[0]}' is the folder '{below.named[missing[0]]}' below "
            f"'{below.root}', and no table there has {_named(group.batch.number)}.",
            hint=f"check the path; 'upsertflow tables {below.root}' lists the tables that have it.",
            option="inputs",
            input=missing[0],
        )
    if not pinned:
        raise OptionError(
            f"of the {len(group.members)} tables that have {_named(group.batch.number)} below "
            f"'{below.root}' none matches '{below.pattern}'.",
            hint="check 'inputsPattern'; a table takes part from its first whole batch on.",
            option="inputsPattern",
        )
    return pinned


def _group(table: GroupTable, below: DiscoveryOptions) -> TableGroup:
    if below.as_of is None:
        return table.at()
    if below.as_of_batch is not None:
        return table.of_batch(below.as_of_batch)
    return table.of_source(lsn=below.as_of_lsn, time_ms=below.as_of_source_time_ms)


def pins_of(group: TableGroup, below: DiscoveryOptions) -> dict[str, Pin]:
    """Return the group members named in the options or matching the pattern by path (`pins`)."""
    number = group.batch.number if group.batch else None
    if below.named:
        return {
            name: Pin(place=group.members[folder].place, batch=number)
            for name, folder in sorted(below.named.items())
            if folder in group.members
        }
    return {
        folder: Pin(place=group.members[folder].place, batch=number)
        for folder in sorted(group.members)
        if matches(folder, below.pattern)
    }


def at_batch(options: ReadOptions, table: Table, pin: Pin | None) -> ReadOptions:
    """Return batch read options ending at a pinned batch; unchanged without a pin."""
    if pin is None:
        return options
    table_ref = pin.place
    newest = table.log.require(table_ref, _named(pin.batch), hint=OTHER_THAN_IN_GROUP)
    with table.log.cached_snapshot() as look:
        version = look.equivalent_version(table_ref.version)
    if version is None:
        raise DataLossError(
            f"{_named(pin.batch)} has version {table_ref.version} of the table at "
            f"'{options.path}', which can be read from version {newest.since} on only: what is "
            "older was expired.",
            hint="read without 'consistent', or again when the query has written to this table "
            "next; keep more from now on, by a longer --retain of 'upsertflow expire'.",
            since=newest.since,
            newest=newest.version,
            batch=pin.batch,
        )
    if options.change_feed or options.history:
        return replace(options, ending_version=version)
    return replace(options, version_as_of=version)


def _named(batch: int | None) -> str:
    return "the newest whole batch" if batch is None else f"batch {batch}"


class WholeBatches:
    """A group's batches between a stream's position and the newest one.

    A limit admits complete batches only, at least one. It counts input rows; a stream may have
    twice as many changes.

    Parameters
    ----------
    table : GroupTable
    """

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._has_all_of = -1
        """The newest group table version completely read by the stream; -1: unknown."""

    def last_admitted(
        self, newest: int, rows_max: int, has_all: Callable[[TableGroup], bool]
    ) -> TableGroup | None:
        """Return the group at the last admitted batch; None if all fit."""
        with self._table.table.log.cached_snapshot() as look:
            taken: TableGroup | None = None
            rows = 0
            for group in self._iter_unread(look, newest, has_all):
                if taken is None or group.batch != taken.batch:
                    rows += group.batch.rows if group.batch else 0
                if taken is not None and rows > rows_max:
                    return taken
                if not group.is_joining:
                    taken = group
        return None

    def _iter_unread(
        self, look: LogSnapshot, newest: int, has_all: Callable[[TableGroup], bool]
    ) -> Iterator[TableGroup]:
        """Yield the groups not completely read by the stream, oldest first."""
        table = self._table
        versions = range(max(look.head().since, self._has_all_of), newest + 1)
        first = bisect_left(
            versions, True, key=lambda each: not has_all(table.at_snapshot(look, each))
        )
        if first:
            self._has_all_of = versions[first - 1]
        for version in versions[first:]:
            if version == versions[0] or look.commit(version).is_epoch:
                yield table.at_snapshot(look, version)


_NAMED_MAX = 5
"""Maximum names in an error; the others are counted."""


class GroupInputs:
    """A root's group members matching a pattern (`Inputs`).

    Parameters
    ----------
    below : DiscoveryOptions
    make : Make
    """

    def __init__(self, below: DiscoveryOptions, make: Make) -> None:
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
        """Batches possibly not completely read by the stream: the oldest one, and the newest."""
        self._complete: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A task creates only the inputs it reads, without reading the group.
        state = {"_below": self._below, "_make": self._make, "_joined": self._joined}
        return {
            **self.__dict__,
            "_group": None,
            "_batches": None,
            "_inputs": {},
            "_ahead": [],
            **state,
        }

    def read_heads(self) -> Heads:
        """Return each table's end position at the newest complete batch (`Inputs.read_heads`).

        Empty before the first batch.
        """
        head = self._group.table.log.try_head()
        if head is None or head.version == self._version:
            return self._heads
        group = self._group.at(head.version)
        if group.is_joining:
            return self._heads  # The stream waits for the next state of the followed database.
        pinned = pins_of(group, self._below)
        # An unchanged table keeps its head object, so that its input is not queried.
        same = {
            name: self._heads[name] for name, pin in pinned.items() if self._is_unchanged(name, pin)
        }
        self._heads = {name: same.get(name) or _end_of(pin) for name, pin in pinned.items()}
        self._pins, self._version = pinned, head.version
        if group.batch is not None:
            self._ahead = [*self._ahead[:1], (group.batch.number, _uppers(pinned))]
        return self._heads

    def limit_to_batches(self, standing: Heads, rows_max: int) -> Heads | None:
        """Return each table's end position at the last admitted batch; None: use the newest.

        A stream's first batch contains all tables' rows and ignores the limit.
        """
        if self._version is None or not standing:
            return None

        def has_all(group: TableGroup) -> bool:
            return _has_all(standing, _uppers(pins_of(group, self._below)))

        group = self._batches.last_admitted(self._version, rows_max, has_all)
        if group is None or group.batch is None:
            return None
        pinned = pins_of(group, self._below)
        self._ahead = [(group.batch.number, _uppers(pinned)), *self._ahead[-1:]]
        same = {
            name: self._heads[name] for name, pin in pinned.items() if self._is_unchanged(name, pin)
        }
        return {name: same.get(name) or _end_of(pin) for name, pin in pinned.items()}

    def _is_unchanged(self, name: str, pin: Pin) -> bool:
        before = self._pins.get(name)
        return before is not None and before.place == pin.place

    def as_pollable(self) -> None:
        """Return None: one log read covers all tables (`Inputs.as_pollable`)."""
        return

    def update_inputs(self, standing: Heads, heads: Heads) -> None:
        """Record new tables; raises for missing ones (`Inputs.update_inputs`)."""
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
        """Return the input for a name in an offset or a split."""
        input_ = self._inputs.get(name)
        if input_ is None:
            input_ = self._inputs[name] = self._make(name, joins=name in self._joined)
        return input_

    def newest_complete_batch(self, positions: Heads) -> int | None:
        """Return the newest batch completely read by a stream; None: none yet."""
        while self._ahead and _has_all(positions, self._ahead[0][1]):
            self._complete = self._ahead.pop(0)[0]
        return self._complete


def _end_of(pin: Pin) -> Position:
    """Return the position after a pinned version, with its table reference."""
    end = TablePosition.at_changes(pin.place.version, pin.place.version + 1)
    return replace(end, place=pin.place).to_position()


def _uppers(pins: Mapping[str, Pin]) -> dict[str, int]:
    return {name: pin.place.version + 1 for name, pin in pins.items()}


def _has_all(positions: Heads, uppers: Mapping[str, int]) -> bool:
    return all(
        name in positions and _has_reached(positions[name], upper) for name, upper in uppers.items()
    )


def _has_reached(position: Position, upper: int) -> bool:
    reached = TablePosition.from_position(position)
    return not reached.is_in_snapshot and reached.upper >= upper
