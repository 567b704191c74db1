"""Who writes to the inputs of a lake: one at a time, and one who stages first and commits later."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_upsert.state.snapshot import Snapshot
from spark_upsert.table import Table
from spark_upsert.upsert.plan import plan_rows
from spark_upsert.upsert.stage import stage
from spark_upsert.upsert.write_set import WriteSet
from tests.simulation.lake_ground import Ground
from tests.simulation.lake_inputs import Epoch, FilesModel, TableModel

KEYS = 4

VALUES: dict[str, list[Any]] = {
    "v": [None, 1, 2, 3],
    "w": [None, 7, 7, 8],
    "note": [None, "a", "b"],
}


class Writers:
    """Writes rows and files that are drawn, and notes what each version holds."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._random = ground.random
        self._handles: dict[str, Table] = {}
        """The table as a second writer keeps it."""
        self._staged: list[tuple[str, Epoch, WriteSet]] = []
        self._values = iter(range(100, 100_000))

    def write(self, name: str | None = None) -> None:
        """Write to an input: an epoch, or a file."""
        ground = self._ground
        name = name or ground.any_input()
        model = ground.models[name]
        if isinstance(model, FilesModel):
            self._put_file(name, model)
            return
        table = self._handles.setdefault(name, ground.table(name))
        table = self._random.choice([table, ground.table(name)])
        epoch = self._epoch(model)
        is_whole = self._random.random() < 0.06
        table.append(_rows(model, epoch), deletes="gone", overwrite=is_whole)
        self.note_versions(name, epoch, is_whole=is_whole)
        ground.tell(f"{name} gets {epoch}")

    def _put_file(self, name: str, model: FilesModel) -> None:
        is_json = model.format == "json"  # Of an empty one no columns are known.
        rows = [
            {"k": self._random.randrange(KEYS), "v": next(self._values), "w": 1}
            for _ in range(self._random.choice([1, 1, 2, 3] if is_json else [0, 1, 2, 3]))
        ]
        self._ground.now.advance(1.0)
        late_us = self._random.choice([0, 0, 5_000_000])
        file = model.put(rows, int(self._ground.now() * 1e6) - late_us, self._random)
        self._ground.tell(f"{name} gets {file} with {len(rows)} rows")

    def _epoch(self, model: TableModel) -> Epoch:
        epoch: dict[int, dict[str, Any] | None] = {}
        for _ in range(self._random.randrange(1, 4)):
            names = [name for name in model.columns if name != "k"]
            row = {name: self._random.choice(VALUES[name]) for name in names}
            epoch[self._random.randrange(KEYS)] = row if self._random.random() < 0.75 else None
        return epoch

    def note_versions(self, name: str, epoch: Epoch | None, *, is_whole: bool = False) -> None:
        """Take in the versions that an act has made; the epoch is that of the last one."""
        model, log = self._ground.model(name), self._ground.table(name).log
        for version in range(model.upper, log.head().upper):
            model.note(log.commit(version), epoch, is_whole=is_whole)

    def stage(self) -> None:
        """Let a second writer stage an epoch, or commit what it has staged."""
        ground = self._ground
        if self._staged and self._random.random() < 0.7:
            name, epoch, staged = self._staged.pop()
            ground.table(name).commit(staged)
            self.note_versions(name, epoch)
            ground.tell(f"{name} gets {epoch}, late")
            return
        name = ground.any_table()
        model, table = ground.model(name), ground.table(name)
        epoch = self._epoch(model)
        base = Snapshot(table.store, table.log.head())
        rows = _rows(model, epoch)
        envelope = plan_rows(base.manifest, rows.schema, deletes="gone").envelope
        commands = [envelope.commands(each) for each in rows.to_batches()]
        staged = WriteSet(base=base, staged=(stage(base, commands),), transactions=())
        self._staged.append((name, epoch, staged))

    def forget(self, name: str) -> None:
        """Give up what is under way for a table."""
        self._handles.pop(name, None)
        self._staged = [each for each in self._staged if each[0] != name]


def _rows(model: TableModel, epoch: Epoch) -> pa.Table:
    schema = pa.schema([*model.columns.items(), ("gone", pa.bool_())])
    rows = [{"k": key, "gone": row is None, **(row or {})} for key, row in epoch.items()]
    return pa.Table.from_pylist(rows, schema)
