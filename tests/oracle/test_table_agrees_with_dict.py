"""A table is a dict that keeps its past. Nothing else is promised."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.table.compaction import choose, compact_runs
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import WriteSet
from tests.support.histories import BATCHES, CONDITIONS, TASKS, Conditions, WrittenEpoch, under
from tests.support.model import Change, Command, Model, Tally, fold
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import (
    append,
    by_epoch,
    changes_of,
    make_table,
    plan_epoch,
    rows_at,
    schema_of,
    tally_of,
)

OVERWRITES = st.sampled_from([False, False, False, True])


class TableAgreesWithDict(RuleBasedStateMachine):
    """One table, several writers, and a dict beside it."""

    staged = Bundle("staged")

    @initialize(scope=st.sampled_from(Scope), conditions=CONDITIONS)
    def create(self, scope: Scope, conditions: Conditions) -> None:
        self.exits = ExitStack()
        self.exits.enter_context(under(conditions))
        self.store = MemoryStore()
        schema = schema_of(scope, key=pa.int16(), value=pa.int8())
        self.table = make_table(self.store, schema)
        self.model = Model(scope)
        self.snapshots: list[dict[Any, Any]] = [{}]
        self.pasts = [dict(self.model.entries)]
        self.changes: list[Change] = []
        self.batches: list[list[Command]] = []

    def teardown(self) -> None:
        if hasattr(self, "exits"):
            self.exits.close()

    # -- writing ---------------------------------------------------------------------

    @rule(commands=BATCHES, overwrite=OVERWRITES)
    def append(self, commands: list[Command], overwrite: bool) -> None:
        transaction = Transaction(writer="own", number=len(self.batches))
        commit = append(self.table, commands, transaction=transaction, overwrite=overwrite)
        assert commit is not None
        self.batches.append(commands)
        assert tally_of(commit) == self._expect(commands, overwrite)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.batches) - 1), label="number")
        transaction = Transaction(writer="own", number=number)
        before = set(self.store.objects)
        assert append(self.table, self.batches[number], transaction=transaction) is None
        assert set(self.store.objects) == before  # What was staged is gone.

    @rule(target=staged, tasks=st.lists(TASKS, max_size=3), overwrite=OVERWRITES)
    def stage(self, tasks: list[list[list[Command]]], overwrite: bool) -> Any:
        commands = WrittenEpoch(tasks).commands
        return plan_epoch(self.table, tasks, overwrite=overwrite), commands

    @rule(target=staged, epoch=consumes(staged))
    def commit(self, epoch: tuple[WriteSet, list[Command]]) -> Any:
        planned, commands = epoch
        commit = self.table.commit(planned)
        assert commit is not None
        assert tally_of(commit) == self._expect(commands, planned.overwrite)
        return multiple()

    def _expect(self, commands: list[Command], overwrite: bool) -> Tally:
        changes, tally = self.model.append(commands, overwrite=overwrite)
        self.changes += changes
        self._remember()
        return tally

    def _remember(self) -> None:
        """Note what the newest version holds."""
        self.snapshots.append(self.model.rows())
        self.pasts.append(dict(self.model.entries))

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, len(self.snapshots) - 1), label="version")
        commit = self.table.restore(version)
        if commit is None:
            assert self.snapshots[version] == self.snapshots[-1]
            return
        self.changes += self.model.restore(self.pasts[version])
        self._remember()

    # -- upkeep ----------------------------------------------------------------------

    @rule()
    def compact_all(self) -> None:
        self.table.compact(full=True)
        self._catch_up()

    @rule()
    def compact_neighbours(self) -> None:
        head = self.table.log.head()
        for job in choose(head, fanout=2)[:1]:
            self.table.commit_compactions([compact_runs(self.store, head, job)])
        self._catch_up()

    @rule(number=st.integers(0, 2))
    def gain_a_column(self, number: int) -> None:
        self._alter({**self._columns(), f"w{number}": pa.string()})

    @rule()
    def widen_key_and_value(self) -> None:
        self._alter({**self._columns(), "k": pa.int64(), "v": pa.int32()})

    def _columns(self) -> dict[str, pa.DataType]:
        schema: TableSchema = self.table.log.head().schema
        return {field.name: field.type for field in schema.columns}

    def _alter(self, columns: dict[str, pa.DataType]) -> None:
        schema = self.table.log.head().schema
        self.table.alter(
            replace(schema, columns=schema.accept(pa.schema(columns), merge=True).columns)
        )
        self._catch_up()

    def _catch_up(self) -> None:
        """Versions that change no row: the snapshot stays what it was."""
        while len(self.snapshots) <= self.table.log.head().version:
            self._remember()
        self.model.version = len(self.snapshots) - 1

    @rule()
    def reopen(self) -> None:
        forget_runs_and_logs()
        self.table = Table(self.store, clock=self.table.log._clock)

    # -- what must hold --------------------------------------------------------------

    @rule(data=st.data())
    def travel(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, len(self.snapshots) - 1), label="version")
        assert rows_at(self.table, version) == self.snapshots[version]
        assert self.table.log.at(version).live_rows == len(self.snapshots[version])

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        versions = st.integers(0, len(self.snapshots) - 1)
        lower, upper = sorted(data.draw(st.tuples(versions, versions), label="versions"))
        changes = changes_of(self.table, lower + 1, upper + 1)
        assert fold(changes, self.snapshots[lower]) == self.snapshots[upper]

    @invariant()
    def snapshot_is_the_dict(self) -> None:
        if hasattr(self, "table"):
            assert self.table.log.head().version == len(self.snapshots) - 1
            assert rows_at(self.table) == self.snapshots[-1] == self.model.rows()
            assert self.table.log.head().live_rows == len(self.snapshots[-1])

    @invariant()
    def changelog_is_the_models(self) -> None:
        if hasattr(self, "table"):
            assert by_epoch(changes_of(self.table)) == by_epoch(self.changes)


TestTableAgreesWithDict = TableAgreesWithDict.TestCase
TestTableAgreesWithDict.settings = settings(stateful_step_count=25)
