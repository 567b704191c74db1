"""Random histories of tables whose commands leave values unchanged, and their reduction.

A history follows from its seed. `played` writes it into a table and into the reference model, and
compares them after each step; `smallest` removes steps and commands while a history still fails.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, Ties
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.errors import DataError
from spark_upsert.table.log.manifest import Commit
from tests.support.delta import DeltaTable
from tests.support.histories import tiny_pieces
from tests.support.registers_model import (
    Command,
    Kind,
    RegistersModel,
    Row,
    Tally,
    UnknownValueError,
)
from tests.support.stores import MemoryStore
from tests.support.unchanged_cases import MERGES, UNCHANGED, Epoch, Restore, Upkeep
from tests.support.unchanged_tables import UnchangedTable

VALUES = {"a": pa.int64(), "b": pa.int64(), "c": pa.string()}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two epochs staged on one version, by two writers; the second one is committed first."""

    first: Epoch
    second: Epoch


@dataclass(frozen=True, slots=True)
class Reopen:
    """The table is opened by another process."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Old versions and their files are removed."""


Step = Epoch | Pair | Upkeep | Restore | Reopen | Expire


@dataclass(frozen=True, slots=True)
class History:
    """A table's options, and what happens to it."""

    steps: tuple[Step, ...]
    on_unknown: OnUnknown = OnUnknown.NULL
    ties: Ties = Ties.LAST
    scope: Scope = Scope.TABLE
    on_error: ErrorPolicy = ErrorPolicy.FAIL
    is_tiny: bool = False
    """Whether commands, reads and merges come in small pieces, and stashes are on disk."""

    def __str__(self) -> str:
        options = (self.on_unknown, self.ties, self.scope, self.on_error, self.is_tiny)
        return f"{' '.join(str(each) for each in options)}: {' | '.join(map(shown, self.steps))}"

    @property
    def has_truncates(self) -> bool:
        return any(c.kind is Kind.TRUNCATE for step in self.steps for c in commands_of(step))


def commands_of(step: Step) -> list[Command]:
    """Return the commands of a step."""
    match step:
        case Epoch():
            return step.commands
        case Pair(first=first, second=second):
            return [*first.commands, *second.commands]
    return []


def shown(step: Step) -> str:
    """Return a step in the notation of the cases."""
    match step:
        case Epoch(tasks=tasks, overwrite=overwrite):
            texts = (" ".join(map(_text, task)) for task in tasks)
            return ("! " if overwrite else "") + " / ".join(texts)
        case Pair(first=first, second=second):
            return f"[{shown(first)}] committed after [{shown(second)}]"
        case Upkeep(first=first_epoch, count=count):
            return "merge" if count > 2 else f"merge {count} from {first_epoch}"
        case Restore(version=version):
            return f"restore {version}"
    return type(step).__name__.lower()


def _text(command: Command) -> str:
    values = ",".join(f"{n}={command.values.get(n, UNCHANGED)}" for n in VALUES)
    body = f"({values})" if command.kind in (Kind.PUT, Kind.CREATE) else ""
    key = "" if command.key is None else f"{command.key}:"
    if command.moved_to is not None:
        return f"{key}L{command.order}→{command.moved_to}"
    return f"{key}{command.kind.value}{command.order}{body}"


class _Draw:
    """Draws one history."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.scope = dice.choice([Scope.TABLE] * 4 + [Scope.EPOCH, Scope.ARRIVAL])
        self.has_ties = dice.random() < 0.25
        self.ties = dice.choice([Ties.LAST, Ties.FIRST] if self.has_ties else [*Ties])
        self.on_unknown = dice.choice([*OnUnknown, OnUnknown.NULL])
        self.on_error = dice.choice([ErrorPolicy.FAIL] * 3 + [ErrorPolicy.QUARANTINE])
        self.orders = list(range(1, 60))
        dice.shuffle(self.orders)
        self.is_tiny = dice.random() < 0.3
        self.unchanged_rate = dice.choice([0.3, 0.6])
        self.sent: list[Command] = []

    def history(self) -> History:
        steps = tuple(self._steps())
        return History(
            steps, self.on_unknown, self.ties, self.scope, self.on_error, is_tiny=self.is_tiny
        )

    def _steps(self) -> Iterator[Step]:
        epochs = 0
        for _ in range(self.dice.randint(2, 9)):
            kind = self.dice.choice(
                ["epoch"] * 8 + ["merge"] * 3 + ["restore", "reopen", "expire", "pair", "replay"]
            )
            if kind == "restore" and epochs:
                yield Restore(self.dice.randint(0, epochs))
                epochs += 1
            elif kind == "merge":
                yield self.dice.choice([*MERGES.values()])
            elif kind == "reopen":
                yield Reopen()
            elif kind == "expire":
                yield Expire()
            elif kind == "pair":
                yield Pair(self._epoch(), self._epoch())
                epochs += 2
            elif kind == "replay" and self.sent and not self.has_ties:
                again = self.sent[self.dice.randrange(len(self.sent)) :][:6]
                yield Epoch((tuple(again),))
                epochs += 1
            else:
                yield self._epoch(overwrite=self.dice.random() < 0.06)
                epochs += 1

    def _epoch(self, *, overwrite: bool = False) -> Epoch:
        commands = [self._command() for _ in range(self.dice.choice([1, 1, 1, 2, 3, 5]))]
        if overwrite:
            commands = [c for c in commands if c.kind is not Kind.TRUNCATE]
        self.sent += commands
        count = self.dice.choice([1, 1, 2])
        # Of one order, or of none, nothing is later between tasks.
        by_key = self.has_ties or self.scope is Scope.ARRIVAL
        tasks: list[list[Command]] = [[] for _ in range(count)]
        for command in commands:
            number = (command.key or 0) if by_key else self.dice.randrange(count)
            tasks[number % count].append(command)
        return Epoch(tuple(map(tuple, tasks)), overwrite)

    def _command(self) -> Command:
        kinds = [Kind.PUT] * 6 + [Kind.CREATE] * 2 + [Kind.DELETE] * 2
        if self.scope is Scope.TABLE and not self.has_ties:
            kinds += [Kind.TRUNCATE] * (self.dice.random() < 0.3)
        if self.on_error is ErrorPolicy.QUARANTINE and not self.has_ties:
            kinds += [Kind.ERROR]
        kind = self.dice.choice(kinds)
        order = self.dice.randrange(8) if self.has_ties else self.orders.pop()
        key = None if kind is Kind.TRUNCATE else self.dice.randrange(3)
        values = {}
        if kind in (Kind.PUT, Kind.CREATE):
            values = {n: self._value(n) for n in VALUES if self.dice.random() > self.unchanged_rate}
        return Command(kind, order, key, values)

    def _value(self, name: str) -> Any:
        number = self.dice.choice([None, 0, 1, 2])
        return number if number is None or name != "c" else f"v{number}"


def history_of(seed: int) -> History:
    """Return the history of a seed."""
    return _Draw(seed).history()


def placed(scope: Scope, version: int, epoch: Epoch) -> list[Command]:
    """Return an epoch's commands with their orders in a scope."""
    if scope is Scope.TABLE:
        return epoch.commands
    if scope is Scope.EPOCH:
        return [replace(c, order=(version, c.order)) for c in epoch.commands]
    return [replace(c, order=(version, place)) for place, c in enumerate(epoch.commands)]


def require(what: str, found: Any, expected: Any) -> None:
    """Raise unless a table has what its model has."""
    if found != expected:
        raise AssertionError(f"{what}: {found}, not {expected}")


class Played:
    """A table and its model."""

    def __init__(self, history: History, *, is_followed: bool = False) -> None:
        self.history = history
        self.mirror_store = MemoryStore()
        self.is_followed = is_followed
        """Whether a mirror, an index and filters are compared, too."""
        self.table = UnchangedTable(
            VALUES,
            on_unknown=history.on_unknown,
            ties=history.ties,
            scope=history.scope,
            on_error=history.on_error,
            properties={"indexBy": "c"} if is_followed else None,
        )
        self.table.has_single_batches = history.is_tiny
        self.model = RegistersModel([*VALUES], history.on_unknown, history.ties)
        self.pasts: list[list[Command]] = [[]]
        self.rows: dict[int, dict[int, Row]] = {0: {}}
        """By version."""

    def take(self, step: Step) -> None:
        """Take a step in both, and compare them."""
        match step:
            case Epoch():
                self._write(step)
            case Pair(first=first, second=second):
                staged = self._staged(first)
                self._write(second)
                if staged is not None:
                    self._commit(first, lambda: self.table.commit(staged))
            case Restore(version=number):
                number = min(number, len(self.pasts) - 1)
                version = self.table.versions[number]
                if version >= self.table.table.log.head().since:
                    self.table.table.restore(version)
                    self.model.applied = list(self.pasts[number])
                    self._note(self.table.table.log.head().version)
            case Upkeep():
                self.table.take(step)
            case Reopen():
                self.table.reopen()
            case Expire():
                self.table.table.expire(retain_versions=0, safety_ms=0)
                self.table.table.vacuum(grace_ms=0)
        self.compare()

    def _staged(self, epoch: Epoch) -> Any:
        try:
            return self.table.stage(epoch)
        except DataError as error:
            require("an error about unknown values", "was never sent" in str(error), True)
            return None

    def _write(self, epoch: Epoch) -> None:
        self._commit(epoch, lambda: self.table.commit(self.table.stage(epoch)))

    def _commit(self, epoch: Epoch, commit: Callable[[], Commit]) -> None:
        version = self.table.table.log.head().version
        commands = placed(self.history.scope, version + 1, epoch)
        try:
            tally = self.model.apply(commands, overwrite=epoch.overwrite)
        except UnknownValueError:
            self._require_failure(commit, version)
            return
        committed = commit()
        self.pasts.append(list(self.model.applied))
        self.rows[committed.version] = self.model.rows()
        self.compare()
        if self.history.ties is not Ties.FIRST:
            self._check_counters(committed, tally)

    def _require_failure(self, commit: Callable[[], Commit], version: int) -> None:
        error = None
        try:
            commit()
        except DataError as raised:
            error = str(raised)
        require("an error about unknown values", "was never sent" in str(error), True)
        require("the version after a failed write", self.table.table.log.head().version, version)

    def _note(self, version: int) -> None:
        self.pasts.append(list(self.model.applied))
        self.table.versions.append(version)
        self.rows[version] = self.model.rows()

    def _check_counters(self, commit: Commit, tally: Tally) -> None:
        def counted(*names: str) -> int:
            return sum(int(commit.counters.get(name, 0)) for name in names)

        expected = {
            **{name: getattr(tally, name) for name in _EXACT},
            "contents": tally.restored - tally.retracted,
            "ignored": tally.ignored + tally.stale + tally.absent,
        }
        ignored = ("superseded", "duplicates", "stale", "absent", "rejected")
        found = {
            **{name: counted(name) for name in _EXACT},
            "contents": counted("restored") - counted("retracted"),
            "ignored": counted(*ignored),
        }
        if self.history.has_truncates:
            # A truncate counts a row that it makes unknown, also if a later command replaces it.
            del expected["unknown"], found["unknown"]
        else:
            # Rows below a truncate are absent, stale or rejected.
            expected |= {"absent": tally.absent, "stale": tally.stale}
            found |= {"absent": counted("absent"), "stale": counted("stale")}
        wrong = {name: (found[name], expected[name]) for name in found}
        require("counters", {n: v for n, v in wrong.items() if v[0] != v[1]}, {})

    def compare(self) -> None:
        """Compare the newest version with the model."""
        require("rows", self.table.rows(), self.model.rows())
        unknown = self.model.unknown_rows
        head = self.table.table.log.head()
        require("unknown_rows", getattr(head, "unknown_rows", 0), len(unknown))
        if self.history.on_unknown is OnUnknown.QUARANTINE:
            require("the quarantine", self.table.listed(), unknown)
        if self.is_followed:
            self._compare_readers()

    def _compare_readers(self) -> None:
        """Compare a mirror, conditions on the indexed column and on another one, and one column."""
        expected, table = self.model.rows(), self.table.table
        mirror = Mirror(table.log, table.store, self.mirror_store)
        mirror.publish()
        mirrored = DeltaTable(self.mirror_store).rows().to_pylist()
        found = {row["k"]: tuple(row[name] for name in VALUES) for row in mirrored}
        require("the mirror", found, expected)
        require("findings in the mirror", list(check_mirror(mirror)), [])
        conditions: dict[str, Callable[[Row], bool]] = {
            "c = 'v1'": lambda row: bool(row[2] == "v1"),
            "c IS NULL": lambda row: row[2] is None,
            "a = 1": lambda row: bool(row[0] == 1),
            "b IS NOT NULL": lambda row: row[1] is not None,
        }
        for condition, holds in conditions.items():
            keys = table.snapshot(columns=["k"], filter=condition).column("k").to_pylist()
            chosen = sorted(key for key, row in expected.items() if holds(row))
            require(f"keys where {condition}", sorted(keys), chosen)
        column = sorted(table.snapshot(columns=["b"]).column("b").to_pylist(), key=repr)
        require("column b", column, sorted((row[1] for row in expected.values()), key=repr))

    def finish(self) -> None:
        """Compare all versions, and the changes between them."""
        self.table.check()
        since = self.table.table.log.head().since
        for version, rows in self.rows.items():
            if version >= since:
                require(f"rows of version {version}", self.table.rows(version), rows)


_EXACT = (
    *("rows", "inserts", "updates", "deletes", "quarantined", "displaced", "skipped"),
    *("filled", "unknown"),
)


def play(history: History, *, is_followed: bool = False) -> Played:
    """Play a history, and compare the table with the model after each step."""
    played = Played(history, is_followed=is_followed)
    with tiny_pieces() if history.is_tiny else nullcontext():
        for step in history.steps:
            played.take(step)
        played.finish()
    return played


def fault_of(history: History, *, is_followed: bool = False) -> str | None:
    """Return what is wrong with a history, None if nothing is."""
    try:
        play(history, is_followed=is_followed)
    except Exception as error:  # noqa: BLE001 - Any of them is a fault.
        return f"{type(error).__name__}: {error}"
    return None


def smallest(history: History, fault: Callable[[History], str | None] = fault_of) -> History:
    """Remove steps, commands and values while the history has a fault of the same type."""

    def kind_of(candidate: History) -> str:
        return re.sub(r"[-\d]+|\b(True|False)\b", "", (fault(candidate) or "")[:60])

    kind = kind_of(history)
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for steps in _reductions(history.steps):
            candidate = replace(history, steps=steps)
            if kind_of(candidate) == kind:
                history, is_smaller = candidate, True
                break
    return history


def _reductions(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for at, step in enumerate(steps):
        yield (*steps[:at], *steps[at + 1 :])
        for smaller in _smaller(step):
            yield (*steps[:at], smaller, *steps[at + 1 :])


def _smaller(step: Step) -> Iterator[Step]:
    match step:
        case Epoch(tasks=tasks, overwrite=overwrite):
            if len(tasks) > 1:
                yield Epoch((tuple(step.commands),), overwrite)
            if overwrite:
                yield Epoch(tasks, False)
            for number, task in enumerate(tasks):
                for at, command in enumerate(task):
                    for fewer in ((), *((each,) for each in _fewer(command))):
                        changed = (*task[:at], *fewer, *task[at + 1 :])
                        yield Epoch((*tasks[:number], changed, *tasks[number + 1 :]), overwrite)
        case Pair(first=first, second=second):
            yield first
            yield second
            yield from (Pair(each, second) for each in _smaller(first) if isinstance(each, Epoch))
            yield from (Pair(first, each) for each in _smaller(second) if isinstance(each, Epoch))


def _fewer(command: Command) -> Iterator[Command]:
    if command.kind is Kind.CREATE:
        yield replace(command, kind=Kind.PUT)
    for name in command.values:
        yield replace(command, values={n: v for n, v in command.values.items() if n != name})


def play_all(histories: Sequence[tuple[int, History]], *, is_followed: bool = False) -> None:
    """Play histories; the first with a fault is reported in its smallest form."""
    fault = partial(fault_of, is_followed=is_followed)
    for seed, history in histories:
        if fault(history) is not None:
            small = smallest(history, fault)
            raise AssertionError(f"seed {seed}: {small}\n{fault(small)}")
