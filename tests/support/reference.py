"""A table of any scope, engine and error policy, by the rules as they are written down.

Per identity of a key there is a plain list of the commands that were applied, in the order in
which they came; what the row is follows from that list each time anew. Nothing is merged,
nothing is sorted by hash, nothing is forgotten. What only the table can know (which deletes
it has forgotten) is asked for by `Judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties

Identity = int | bytes | None
"""A key, the bytes of a key that could not be decoded, or the null key."""

Row = tuple[Any, ...]
"""The value columns of a row; with `ErrorPolicy.INLINE` the error's description is the last."""

Order = tuple[Any, ...]


NO_ORDER = -1
"""A null order key: before all others."""


class Command(NamedTuple):
    """One command of a writer. ``values`` None deletes; with ``error`` the values are unread."""

    key: Identity
    values: Row | None
    order: int
    error: str | None = None

    @property
    def is_bad_key(self) -> bool:
        return not isinstance(self.key, int)


class Placed(NamedTuple):
    """A command and when it came."""

    command: Command
    version: int
    task: int
    place: int


Judge = Callable[[Identity, int], bool]
"""Whether a command, by its identity and order, is below what the table has forgotten."""


def never_late(key: Identity, order: int) -> bool:
    """Judge nothing late: the table forgets no deletes."""
    return False


@dataclass(slots=True)
class Tally:
    """The counters of an epoch, under their names in `Counters` but for one."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    absent: int = 0
    beaten: int = 0
    """Superseded or a duplicate: which of them depends on what a row met first."""
    stale: int = 0
    rejected: int = 0
    retracted: int = 0
    quarantined: int = 0
    displaced: int = 0
    late: int = 0


@dataclass
class Reference:
    """What a table must hold."""

    scope: Scope
    engine: MergeEngine = field(default_factory=MergeEngine)
    policy: ErrorPolicy = ErrorPolicy.FAIL
    ties: Ties = Ties.LAST
    """Between tasks of one epoch the greater content decides a tie, if the engine chooses; for the
    others there must be none: nothing that is written down decides it."""
    columns: Sequence[str] = ("value",)
    """The value columns, in the order of `Command.values`."""
    applied: dict[Identity, list[Placed]] = field(default_factory=dict)
    """The commands that the table is made of: those that were rejected are not among them."""

    # -- what the table is -----------------------------------------------------------

    def rows(self) -> dict[Identity, Row]:
        """Return the rows by key."""
        found = {key: self._row(commands) for key, commands in self.applied.items()}
        return {key: row for key, row in found.items() if row is not None}

    def standing(self) -> dict[Identity, Placed]:
        """Return the command that each row comes from, for the engines that choose."""
        return {key: self._last(self.applied[key]) for key in self.rows()}

    def errors(self) -> dict[Identity, int]:
        """Return where error entries stand, and since which version."""
        standing = {key: self._last(commands) for key, commands in self.applied.items()}
        return {key: p.version for key, p in standing.items() if self._is_error(p.command)}

    def deleted(self) -> dict[Identity, Placed]:
        """Return the keys whose entry is a delete, and that delete."""
        found = {}
        for key, commands in self.applied.items():
            last = self._last(commands)
            if self._row(commands) is None and not self._is_error(last.command):
                found[key] = last
        return found

    # -- what an epoch does ----------------------------------------------------------

    def apply(
        self,
        version: int,
        tasks: Sequence[Sequence[Command]],
        *,
        overwrite: bool = False,
        is_late: Judge = never_late,
        applies_late: bool = False,
    ) -> Tally:
        """Apply an epoch; returns its counters.

        Parameters
        ----------
        version : int
        tasks : sequence of sequence of Command
        overwrite : bool
        is_late : callable
        applies_late : bool
            Whether late commands are applied, as if the key had no past, and not rejected.
        """
        tally = Tally(rows=sum(len(task) for task in tasks))
        before = self.rows()
        past = self.applied
        if overwrite:
            self.applied = {}
        touched: dict[Identity, list[Placed]] = {}
        for number, task in enumerate(tasks):
            for key, group in _by_key(version, number, task).items():
                tally.beaten += len(group) - 1
                may_be_late = not overwrite and not applies_late
                if may_be_late and is_late(key, self._entry_order(group)):
                    tally.rejected += 1
                    continue
                tally.beaten += key in touched
                touched.setdefault(key, []).extend(group)
        for key, group in touched.items():
            is_applied_late = (
                applies_late and not overwrite and is_late(key, self._entry_order(group))
            )
            tally.late += is_applied_late
            entries = [] if overwrite or is_applied_late else past.get(key, [])
            self._apply_key(key, group, entries, before.get(key), tally)
        if overwrite:
            tally.retracted = len(before.keys() - touched.keys())
        return tally

    def _apply_key(
        self,
        key: Identity,
        group: list[Placed],
        entries: list[Placed],
        old: Row | None,
        tally: Tally,
    ) -> None:
        if self._is_duplicate(group, entries):
            tally.beaten += 1
            if self._last([*entries, *group]) in group:
                # It says the same, and is the later one: the age of an error tells.
                self.applied[key] = [*entries, *group]
            return
        if self._is_stale(group, entries):
            tally.stale += 1
            return
        self.applied[key] = [*entries, *group]
        new = self._row(self.applied[key])
        last = self._last(group).command
        if self._is_error(last):
            tally.quarantined += 1
            tally.displaced += old is not None
        elif new is not None:
            tally.updates += old is not None
            tally.inserts += old is None
        elif old is not None:
            tally.deletes += 1
        elif self._row(group) is not None:
            tally.stale += 1  # Folded in below a delete, a late row leaves no row.
        else:
            tally.absent += 1

    def _is_duplicate(self, group: list[Placed], entries: list[Placed]) -> bool:
        """Return whether a command says again what the table's entry says, in the same place."""
        if not entries or self.engine.folds or self.scope is not Scope.TABLE:
            return False
        new, old = self._last(group).command, self._last(entries).command
        return new.order == old.order and self._content(new) == self._content(old)

    def _content(self, command: Command) -> Any:
        if self._is_error(command):
            # The first thing that is wrong with a row is its reason.
            is_unordered = command.order == NO_ORDER
            return "error", "key" if command.is_bad_key else is_unordered or command.error
        return self.shown(command)

    def _is_stale(self, group: list[Placed], entries: list[Placed]) -> bool:
        """Return whether commands are beaten by what the table holds of their key."""
        if not entries or self.engine.folds:
            return False
        if self.scope is not Scope.TABLE and self.engine.kind is not Engine.FIRST_ROW:
            return False
        return self._last([*entries, *group]) not in group

    # -- what a list of commands means -----------------------------------------------

    def _order(self, placed: Placed) -> Order:
        """Return where a command stands in its source, as far as the scope goes."""
        if self.scope is Scope.TABLE:
            return (placed.command.order,)
        if self.scope is Scope.EPOCH:
            return (placed.version, placed.command.order)
        return (placed.version, placed.task, placed.place)

    def _rank(self, placed: Placed) -> Order:
        """Return what decides which of two commands is the later one."""
        is_first = self.ties is Ties.FIRST and self.engine.kind is not Engine.FIRST_ROW
        sign = -1 if is_first else 1
        return (*self._order(placed), sign * placed.version, sign * placed.place)

    def _last(self, commands: Sequence[Placed]) -> Placed:
        """Return the command that decides, for the engines that choose.

        The place decides among those of a task, and what they say among those of several.
        """
        choose = min if self.engine.kind is Engine.FIRST_ROW else max
        tasks: dict[tuple[int, int], Placed] = {}
        for each in commands:
            of = each.version, each.task
            tasks[of] = choose(tasks[of], each, key=self._rank) if of in tasks else each
        best = choose(map(self._age, tasks.values()))
        return max((p for p in tasks.values() if self._age(p) == best), key=_greatness)

    def _age(self, placed: Placed) -> Order:
        """Return what decides between commands of several tasks, before what they say does."""
        return self._rank(placed)[:-1]

    def _entry_order(self, group: Sequence[Placed]) -> int:
        """Return the order key of what becomes of the commands of one task and key."""
        if self.engine.kind is not Engine.PARTIAL_UPDATE:
            return self._last(group).command.order
        live = self._alive(group)
        return max(live or group, key=self._rank).command.order

    def _is_error(self, command: Command) -> bool:
        """Return whether a command is an error entry: only a quarantine has them."""
        if self.policy is not ErrorPolicy.QUARANTINE:
            return False
        if command.values is None:  # A delete of a key that is none clears what stands there.
            return command.order == NO_ORDER and not command.is_bad_key
        return command.error is not None or command.is_bad_key or command.order == NO_ORDER

    def is_row(self, command: Command) -> bool:
        """Return whether a command is neither a delete nor an error entry."""
        return command.values is not None and not self._is_error(command)

    def _row(self, commands: Sequence[Placed]) -> Row | None:
        if self.engine.kind is Engine.PARTIAL_UPDATE:
            return self._updated_in_part(commands)
        if self.engine.kind is Engine.AGGREGATION:
            return self._aggregated(commands)
        command = self._last(commands).command
        return None if self._is_error(command) else self.shown(command)

    def shown(self, command: Command) -> Row | None:
        """Return the row that a command alone gives."""
        if command.values is None or self.policy is not ErrorPolicy.INLINE:
            return command.values
        if command.error is None:
            return (*command.values, None)
        return (*(None for _ in command.values), command.error)

    def _updated_in_part(self, commands: Sequence[Placed]) -> Row | None:
        alive = self._alive(commands)
        if not alive:
            return None
        return tuple(self._latest(alive, index) for index in range(len(self.columns)))

    def _alive(self, commands: Sequence[Placed]) -> list[Placed]:
        """Return the commands above all deletes; a delete forgets what is of its own order."""
        dead = max((self._order(p) for p in commands if p.command.values is None), default=())
        return [p for p in commands if p.command.values is not None and self._order(p) > dead]

    def _latest(self, commands: Sequence[Placed], index: int) -> Any:
        """Return the last value of a column that is not null."""
        values = [p for p in commands if _value(p, index) is not None]
        return _value(max(values, key=self._rank), index) if values else None

    def _aggregated(self, commands: Sequence[Placed]) -> Row:
        return tuple(
            self._latest(commands, index)
            if self.engine.rule(name) is Rule.LAST
            else _AGGREGATES[self.engine.rule(name)](
                [v for p in commands if (v := _value(p, index)) is not None]
            )
            for index, name in enumerate(self.columns)
        )


_AGGREGATES: Mapping[Rule, Callable[[list[Any]], Any]] = {
    Rule.SUM: lambda values: sum(values) if values else None,
    Rule.MAX: lambda values: max(values, default=None),
    Rule.MIN: lambda values: min(values, default=None),
    Rule.COLLECT: lambda values: sorted(set(values)) or None,
}


def _greatness(placed: Placed) -> Order:
    """Return what puts contents in order: a delete is less than all values."""
    values = placed.command.values
    return (False,) if values is None else (True, *values)


def _value(placed: Placed, index: int) -> Any:
    assert placed.command.values is not None
    return placed.command.values[index]


def _by_key(version: int, task: int, commands: Sequence[Command]) -> dict[Identity, list[Placed]]:
    groups: dict[Identity, list[Placed]] = {}
    for place, command in enumerate(commands):
        groups.setdefault(command.key, []).append(Placed(command, version, task, place))
    return groups
