"""Reference model for values that an update leaves unchanged.

A row is one register for its existence and one per value column. Each register holds the write
with the greatest order. `resolve` computes a key from its set of commands; nothing is merged and
nothing is forgotten. `RegistersModel` adds what depends on arrival: values that move to another
key, the counters, and the policy for unknown columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from spark_upsert.core.schema import OnUnknown, Ties

Order = Any
"""An integer, or a tuple that begins with the version where a later epoch wins."""


class Kind(Enum):
    """A command's kind."""

    PUT = "P"
    CREATE = "C"
    """Resets the columns that it does not set."""
    CARRIED = "carried"
    """The values of a row that moved to this key."""
    DELETE = "D"
    TRUNCATE = "T"
    ERROR = "E"


PUTS = {Kind.PUT, Kind.CREATE, Kind.CARRIED}


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Columns that are not in ``values`` are unchanged."""

    kind: Kind
    order: Order
    key: int | None = 1
    """None for a truncate, which resets each key."""
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    moved_to: int | None = None
    """The new key, in the delete of a row that moved."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that makes two commands the same one."""
        return self.kind, self.order, self.key, repr(sorted(self.values.items())), self.moved_to


class Register(NamedTuple):
    """One column. ``order`` None: no command set or reset it."""

    order: Order | None = None
    is_set: bool = False
    value: Any = None
    is_carried: bool = False


class Entry(NamedTuple):
    """One key: its newest command's order and kind, and a register per column."""

    order: Order | None
    kind: Kind | None
    registers: tuple[Register, ...]

    @property
    def is_row(self) -> bool:
        return self.kind in PUTS

    def unknown(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of a row that no command set."""
        pairs = zip(columns, self.registers, strict=True)
        return tuple(name for name, register in pairs if self.is_row and not register.is_set)


def resolve(commands: Iterable[Command], columns: Sequence[str], ties: Ties = Ties.LAST) -> Entry:
    """Return the entry of one key from all of its commands, in the order of their arrival."""
    of_key = list(commands)
    cut = max((c.order for c in of_key if c.kind is Kind.TRUNCATE), default=None)
    valid = [c for c in of_key if cut is None or c.order > cut]
    entry = Entry(cut, None if cut is None else Kind.TRUNCATE, (Register(cut),) * len(columns))
    for order in sorted({c.order for c in valid}):
        entry = _advance(entry, [c for c in valid if c.order == order], columns, ties)
    return entry


def _advance(entry: Entry, tied: Sequence[Command], columns: Sequence[str], ties: Ties) -> Entry:
    """Apply the commands of one order, which is greater than that of the entry."""
    puts: list[Command] = []
    reset: Register | None = None
    for command in tied if ties is Ties.FIRST else tied[::-1]:
        if command.kind in PUTS:
            puts.append(command)
            continue
        reset = Register(command.order)
        if not puts:
            return Entry(command.order, command.kind, (reset,) * len(columns))
        # A tied delete or error loses to the puts, and resets the columns that they do not set.
        break
    if reset is not None:
        entry = entry._replace(registers=(reset,) * len(columns))
    # A value that was sent wins over one that was carried, in any order of arrival.
    puts.sort(key=lambda command: command.kind is Kind.CARRIED)
    registers = tuple(
        _column(name, register, puts)
        for name, register in zip(columns, entry.registers, strict=True)
    )
    return Entry(puts[0].order, Kind.PUT, registers)


def _is_newer(command: Command, name: str, register: Register) -> bool:
    """Return whether a command would set or reset a column after its register."""
    if command.kind in (Kind.PUT, Kind.CARRIED) and name not in command.values:
        return False
    is_stronger = register.is_carried and name in command.values
    is_stronger &= command.kind is not Kind.CARRIED
    if register.order is None or command.order > register.order:
        return True
    return is_stronger and bool(command.order == register.order)


def _column(name: str, register: Register, puts: Sequence[Command]) -> Register:
    for put in puts:
        if name in put.values:
            return Register(put.order, True, put.values[name], put.kind is Kind.CARRIED)
    if any(put.kind is Kind.CREATE for put in puts):
        return Register(puts[0].order)
    return register


class UnknownValueError(Exception):
    """A row would be unknown in a column, and the policy is `OnUnknown.FAIL`."""


Row = tuple[Any, ...]


@dataclass(slots=True)
class Tally:
    """Counters of an epoch. ``ignored`` is superseded and duplicates together."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    absent: int = 0
    ignored: int = 0
    stale: int = 0
    quarantined: int = 0
    displaced: int = 0
    retracted: int = 0
    restored: int = 0
    skipped: int = 0
    filled: int = 0
    unknown: int = 0
    strayed: int = 0
    tied: int = 0
    """Keys with tied commands; a table counts commands."""


@dataclass
class RegistersModel:
    """A table, epoch by epoch."""

    columns: Sequence[str] = ("n", "x")
    on_unknown: OnUnknown = OnUnknown.NULL
    ties: Ties = Ties.LAST
    applied: list[Command] = field(default_factory=list)
    """In the order of arrival, carried values included."""
    moves: dict[tuple[Any, ...], Entry] = field(default_factory=dict)
    """Per delete of a row that moved: the entry whose values it took."""

    def entry(self, key: int) -> Entry:
        """Return the entry of a key."""
        own = [c for c in self.applied if c.key in (key, None)]
        return resolve(own, self.columns, self.ties)

    def entries(self) -> dict[int, Entry]:
        """Return all entries by key."""
        return {key: self.entry(key) for key in {c.key for c in self.applied if c.key is not None}}

    def rows(self) -> dict[int, Row]:
        """Return the rows that readers see."""
        shown = {key: self.shown(entry) for key, entry in self.entries().items()}
        return {key: row for key, row in shown.items() if row is not None}

    def shown(self, entry: Entry) -> Row | None:
        """Return the row of an entry as readers see it; None: there is no row."""
        is_hidden = self.on_unknown is OnUnknown.QUARANTINE and entry.unknown(self.columns)
        if not entry.is_row or is_hidden:
            return None
        return tuple(register.value for register in entry.registers)

    @property
    def unknown_rows(self) -> dict[int, tuple[str, ...]]:
        """The rows with unknown columns, and those columns."""
        found = {key: entry.unknown(self.columns) for key, entry in self.entries().items()}
        return {key: names for key, names in found.items() if names}

    def apply(self, commands: Sequence[Command], *, overwrite: bool = False) -> Tally:
        """Apply an epoch; with an error, nothing is applied.

        Raises
        ------
        UnknownValueError
        """
        past, moves = list(self.applied), dict(self.moves)
        before = self.entries()
        if overwrite:
            self.applied, self.moves = [], {}
        try:
            tally = self._apply(commands, before, overwrite=overwrite)
            if self.on_unknown is OnUnknown.FAIL and (self.unknown_rows or tally.strayed):
                raise UnknownValueError(f"unknown: {self.unknown_rows}, strayed: {tally.strayed}")
        except UnknownValueError:
            self.applied, self.moves = past, moves
            raise
        return tally

    def _apply(
        self, commands: Sequence[Command], before: Mapping[int, Entry], *, overwrite: bool
    ) -> Tally:
        known = {c.identity for c in self.applied}
        arrived = [*commands, *self._carried(commands)]
        truncates = [c for c in commands if c.kind is Kind.TRUNCATE]
        tally = Tally(rows=len(arrived), skipped=len(truncates))
        of_before = {} if overwrite else before
        tied = {c.key for at, c in enumerate(arrived) if self._is_tied(c, arrived[:at])}
        tally.tied = len(tied)
        strayed = [c for c in arrived if c.identity not in known and self._strays(c)]
        tally.strayed = len(strayed)
        shown = {key: self.shown(entry) for key, entry in before.items()}
        self.applied += truncates
        cut = {key: self.entry(key) for key in of_before} if truncates else of_before
        for key in before if truncates or overwrite else ():
            after = cut.get(key)
            left = None if after is None else self.shown(after)
            if key not in {c.key for c in arrived}:
                _count_contents(tally, shown[key], left)
            elif truncates and left is None:
                _count_contents(tally, shown.pop(key), None)
        self.applied += [c for c in arrived if c.kind is not Kind.TRUNCATE]
        for key in sorted({c.key for c in arrived if c.key is not None}):
            group = [c for c in arrived if c.key == key]
            new, was = self.entry(key), shown.get(key)
            self._count(tally, group, cut.get(key), new, was, is_tied=key in tied)
        was_unknown = {
            key for key, entry in cut.items() if entry.is_row and before[key].unknown(self.columns)
        }
        tally.unknown = len(self.unknown_rows.keys() - was_unknown)
        for command in commands:
            if command.moved_to is not None:
                self.moves.setdefault(command.identity, self._below(command, self.applied))
        return tally

    def _carried(self, commands: Sequence[Command]) -> list[Command]:
        """Return the values that moves take along, in the order of the moves, across keys."""
        carried: list[Command] = []
        moves = sorted((c for c in commands if c.moved_to is not None), key=lambda c: c.order)
        for move in {m.identity: m for m in moves if m.identity not in self.moves}.values():
            taken = self._below(move, [*self.applied, *commands, *carried])
            pairs = zip(self.columns, taken.registers, strict=True)
            values = {name: register.value for name, register in pairs if register.is_set}
            if taken.is_row and values:
                carried.append(Command(Kind.CARRIED, move.order, move.moved_to, values))
        return carried

    def _below(self, move: Command, commands: Sequence[Command]) -> Entry:
        """Return the entry of a move's old key at orders below the move."""
        own = (c for c in commands if c.key in (move.key, None) and c.order < move.order)
        return resolve(own, self.columns, self.ties)

    def _strays(self, command: Command) -> bool:
        """Return whether a command would have changed the values of an earlier move."""
        for (_, order, key, _, _), taken in self.moves.items():
            if command.key == key and command.order < order:
                pairs = zip(self.columns, taken.registers, strict=True)
                if any(_is_newer(command, name, register) for name, register in pairs):
                    return True
        return False

    def _is_tied(self, command: Command, arrived: Sequence[Command]) -> bool:
        for other in (*self.applied, *arrived):
            if other.key != command.key or other.order != command.order:
                continue
            if (other.kind in PUTS) != (command.kind in PUTS):
                return True
            if Kind.CARRIED in (other.kind, command.kind):
                continue
            if any(other.values.get(n, v) != v for n, v in command.values.items()):
                return True
        return False

    def _count(
        self,
        tally: Tally,
        group: Sequence[Command],
        old: Entry | None,
        new: Entry,
        was: Row | None,
        *,
        is_tied: bool,
    ) -> None:
        """Count the commands of one key in an epoch."""
        tally.ignored += len(group) - 1
        if old is not None and new == old:
            is_older = max(c.order for c in group) < (old.order or 0)
            if is_older or (self.ties is Ties.FIRST and is_tied):
                tally.stale += 1
            else:
                tally.ignored += 1
            return
        row = self.shown(new)
        if row is not None and old is not None and old.is_row and old.order == new.order:
            filled = {c.order for c in group if c.order < new.order or c.kind is Kind.CARRIED}
            pairs = zip(old.registers, new.registers, strict=True)
            tally.filled += any(a != b and b.is_set and b.order in filled for a, b in pairs)
        if row is None and (new.is_row or new.kind is Kind.ERROR):
            tally.quarantined += 1
            tally.displaced += was is not None
        elif row is not None:
            tally.updates += was is not None
            tally.inserts += was is None
        else:
            tally.deletes += was is not None
            tally.absent += was is None


def _count_contents(tally: Tally, was: Row | None, row: Row | None) -> None:
    """Count a row without a command when an overwrite or a truncate replaces the contents."""
    tally.retracted += was is not None
    tally.restored += row is not None
