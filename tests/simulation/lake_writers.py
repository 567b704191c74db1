"""Who writes to the inputs of a lake: one at a time, and one who stages first and commits later."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.lake_gate import Gate
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import Epoch, TableModel

KEYS = 4

VALUES: dict[str, list[Any]] = {
    "v": [None, 1, 2, 3],
    "w": [None, 7, 7, 8],
    "note": [None, "a", "b"],
}


@dataclass(frozen=True)
class Due:
    """Rows that somebody wants to write."""

    number: int
    epoch: Epoch
    is_whole: bool
    """Whether they replace the contents."""


class Writers:
    """Writes rows that are drawn, and notes what each version holds."""

    def __init__(self, ground: Ground, gate: Gate) -> None:
        self._ground = ground
        self._gate = gate
        self._random = ground.random
        self._handles: dict[str, Table] = {}
        """The table as a second writer keeps it."""
        self._refused: dict[str, Due] = {}
        """What is to be tried again."""
        self._staged: list[tuple[str, Epoch, WriteSet]] = []
        self._values = iter(range(100, 100_000))
        self._numbers = itertools.count()

    def write(self, name: str | None = None) -> None:
        """Write an epoch to an input."""
        ground = self._ground
        name = name or ground.any_input()
        model = ground.models[name]
        table = self._handles.setdefault(name, ground.table(name))
        table = self._random.choice([table, ground.table(name)])
        due = self._refused.pop(name, None)
        if due is None or ground.dice.random() < 0.3:  # It gives up what was refused.
            epoch = self._epoch(model)
            due = Due(next(self._numbers), epoch, self._random.random() < 0.06)
        if self._append(name, table, due, wait_s=self._wait_s()) is not None:
            self._refused[name] = due

    def _wait_s(self) -> float:
        """Draw how long a write waits for room, or for relief."""
        wait_s = self._ground.dice.choice([0.0, 0.0, 0.7, 3.0])
        return 0.0 if self._ground.is_asked else wait_s

    def _append(
        self, name: str, table: Table, due: Due, *, wait_s: float
    ) -> UpsertFlowError | None:
        """Append rows; return why they were refused, or None."""
        ground, passes_by = self._ground, self._ground.dice.random() < 0.2
        rows = _rows(ground.model(name), due.epoch)

        def append() -> Commit | None:
            return table.upsert(
                rows,
                deletes="gone",
                overwrite=due.is_whole,
                transaction=Transaction(writer="w", number=due.number),
                full_wait_ms=round(wait_s * 1000),
                disable_backpressure=passes_by,
            )

        is_fresh = table is not self._handles.get(name)
        refusal = self._gate.ask(
            name, append, wait_s=wait_s, heeds=not passes_by, is_fresh=is_fresh
        )
        if refusal is None:
            self.note_versions(name, due.epoch, is_whole=due.is_whole)
            ground.tell(f"{name} gets {due.epoch}")
            self._gate.check_room(name)
            if ground.options.is_pressed and ground.dice.random() < 0.2:
                assert append() is None, f"{name} takes {due} twice"
        return refusal

    def write_all(self) -> None:
        """Write to each table that is read what is due, or something: there must be room for it."""
        for name in [name for name in self._ground.tables() if name in self._ground.present()]:
            due = self._refused.pop(name, None)
            due = due or Due(next(self._numbers), self._epoch(self._ground.model(name)), False)
            refusal = self._append(name, self._ground.table(name), due, wait_s=0.0)
            self._gate.check_relief(name, refusal)

    def _epoch(self, model: TableModel) -> Epoch:
        epoch: dict[int, dict[str, Any] | None] = {}
        for _ in range(self._random.randrange(1, 4)):
            names = [name for name in model.columns if name != "k"]
            row = {name: self._random.choice(VALUES[name]) for name in names}
            epoch[self._random.randrange(KEYS)] = row if self._random.random() < 0.75 else None
        return epoch

    def note_versions(self, name: str, epoch: Epoch | None, *, is_whole: bool = False) -> None:
        """Take in the versions that an act has made; the epoch is that of the last one."""
        model, log = self._ground.model(name), self._ground.observed(name).log
        for version in range(model.upper, log.head().upper):
            model.note(log.commit(version), epoch, is_whole=is_whole)

    def stage(self) -> None:
        """Let a second writer stage an epoch, or commit what it has staged."""
        ground = self._ground
        wait_s = self._wait_s()
        if self._staged and self._random.random() < 0.7:
            self._commit(*self._staged.pop(), wait_s=wait_s)
            return
        name = ground.any_table()
        model, table = ground.model(name), ground.table(name)
        # As the sink of Spark does: its driver waits, and stages upon what it has waited for.
        admission = table.admission(round(wait_s * 1000), waits_for_relief=True)
        found: list[Manifest] = []
        refusal = self._gate.ask(
            name,
            lambda: found.append(admission.require(table.log.head())),
            wait_s=wait_s,
            waits_for_relief=True,
        )
        if refusal is not None:
            return
        epoch = self._epoch(model)
        base = Snapshot(table.store, found[0])
        rows = _rows(model, epoch)
        envelope = envelope_of_rows(base.manifest.schema, rows.schema, deletes="gone")
        commands = [envelope.commands(each) for each in rows.to_batches()]
        staged = WriteSet(base=base, staged=(stage(base, commands),), transactions=())
        self._staged.append((name, epoch, staged))

    def _commit(self, name: str, epoch: Epoch, staged: WriteSet, *, wait_s: float) -> None:
        table = self._ground.table(name)
        admission = table.admission(round(wait_s * 1000))
        refusal = self._gate.ask(
            name,
            lambda: table.commit(staged, admission=admission),
            wait_s=wait_s,
            heeds=False,  # What is staged would be lost work.
        )
        if refusal is None:
            self.note_versions(name, epoch)
            self._ground.tell(f"{name} gets {epoch}, late")
            self._gate.check_room(name)
        elif self._ground.dice.random() < 0.5:
            self._staged.append((name, epoch, staged))
        else:
            table.discard(staged.staged)
            paths = {f"{name}/{file.path}" for file in staged.files}
            left = paths & self._ground.objects.objects.keys()
            assert not left, f"{name} keeps {left}, which nobody needs"

    def forget(self, name: str) -> None:
        """Give up what is under way for a table."""
        self._handles.pop(name, None)
        self._refused.pop(name, None)
        self._staged = [each for each in self._staged if each[0] != name]


def _rows(model: TableModel, epoch: Epoch) -> pa.Table:
    schema = pa.schema([*model.columns.items(), ("gone", pa.bool_())])
    rows = [{"k": key, "gone": row is None, **(row or {})} for key, row in epoch.items()]
    return pa.Table.from_pylist(rows, schema)
