"""The table as a dictionary: the slow, obvious version of the upsert rule.

One entry per key: its order key, its value (None for a tombstone) and the epoch it came
with. Every rule is a plain comparison of Python values, row after row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.core.schema import Scope


@dataclass(frozen=True, slots=True)
class Command:
    """One upsert: ``value`` None deletes the key."""

    key: Any
    value: Any
    order: Any = 0
    task: int = field(default=0, compare=False)
    """The task that wrote it: between tasks nothing is later."""

    @property
    def content(self) -> tuple[bool, Any]:
        """What decides between tasks: a value before a delete, then the greater value."""
        return (self.value is not None, self.value)

    def __repr__(self) -> str:
        return f"{self.key}={'∅' if self.value is None else self.value}#{self.order}"


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the changelog."""

    kind: str
    key: Any
    value: Any
    epoch: int


@dataclass(slots=True)
class Tally:
    """The counters of one epoch that do not depend on how its rows were batched.

    A row beaten inside the epoch is superseded or, if it is the same command, a duplicate;
    which of them depends on the row it met first, so they are one number here.
    """

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    absent: int = 0
    stale: int = 0
    ignored: int = 0
    retracted: int = 0


@dataclass(slots=True)
class Model:
    """What a table must answer."""

    scope: Scope
    entries: dict[Any, Command] = field(default_factory=dict)
    version: int = 0

    def rows(self) -> dict[Any, Any]:
        """Return the snapshot: key to value."""
        return {key: e.value for key, e in self.entries.items() if e.value is not None}

    def winners(self, commands: Iterable[Command]) -> dict[Any, Command]:
        """Return the command of each key that wins inside one epoch.

        Of equal order keys the later row of a task wins, and the greater content among tasks.
        """
        by_task: dict[tuple[Any, int], Command] = {}
        for command in commands:
            best = by_task.get((command.key, command.task))
            if best is None or self.scope is Scope.ARRIVAL or command.order >= best.order:
                by_task[command.key, command.task] = command
        won: dict[Any, Command] = {}
        for command in by_task.values():
            best = won.get(command.key)
            if best is None or self.scope is Scope.ARRIVAL or _is_over(command, best):
                won[command.key] = command
        return won

    def append(
        self, commands: Sequence[Command], *, overwrite: bool = False
    ) -> tuple[list[Change], Tally]:
        """Apply one epoch; returns all changes, unchanged pairs included, and the counters."""
        self.version += 1
        won = self.winners(commands)
        tally = Tally(rows=len(commands), ignored=len(commands) - len(won))
        changes: list[Change] = []
        past, before = self.entries, self.rows()
        self.entries = {} if overwrite else dict(past)
        for key, command in won.items():
            entry = past.get(key)
            if self.scope is Scope.TABLE and entry is not None and not overwrite:
                if command.order < entry.order:
                    tally.stale += 1
                    continue
                if command == entry:
                    tally.ignored += 1
                    continue
            self.entries[key] = command
            changes += self._change(key, before.get(key), command.value, tally)
        if overwrite:
            for key in before.keys() - won.keys():
                tally.retracted += 1
                changes.append(Change("delete", key, before[key], self.version))
        return changes, tally

    def restore(self, entries: dict[Any, Command]) -> list[Change]:
        """Go back to the entries of an older version, as an epoch; returns all changes."""
        self.version += 1
        before = self.rows()
        self.entries = dict(entries)
        after = self.rows()
        changes: list[Change] = []
        for key in before.keys() | after.keys():
            changes += self._change(key, before.get(key), after.get(key), Tally())
        return changes

    def _change(self, key: Any, old: Any, new: Any, tally: Tally) -> list[Change]:
        if old is None and new is None:
            tally.absent += 1
            return []
        if old is None:
            tally.inserts += 1
            return [Change("insert", key, new, self.version)]
        if new is None:
            tally.deletes += 1
            return [Change("delete", key, old, self.version)]
        tally.updates += 1
        return [
            Change("update_preimage", key, old, self.version),
            Change("update_postimage", key, new, self.version),
        ]


def _is_over(one: Command, other: Command) -> bool:
    if one.order != other.order:
        return bool(one.order > other.order)
    return one.content > other.content if one.value != other.value else False


def visible(changes: Iterable[Change]) -> list[Change]:
    """Leave out the pairs that retract and insert the same value."""
    shown: list[Change] = []
    for change in changes:
        if change.kind == "update_postimage" and shown[-1].value == change.value:
            shown.pop()
        else:
            shown.append(change)
    return shown


def fold(changes: Iterable[Change], start: dict[Any, Any] | None = None) -> dict[Any, Any]:
    """Fold changes into rows; each retraction must name the row that is there."""
    rows = dict(start or {})
    for change in changes:
        if change.kind in ("delete", "update_preimage"):
            assert rows.get(change.key) == change.value, f"{change} retracts no row of {rows}"
            del rows[change.key]
        else:
            assert change.key not in rows, f"{change} inserts a second row into {rows}"
            rows[change.key] = change.value
    return rows
