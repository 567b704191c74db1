"""A table of any scope, engine, error policy and retention is what its rules say.

As `test_table_agrees_with_dict`, for all kinds of tables: what each version must hold, and
what may be forgotten, is said by the observer of the simulation (`tests.simulation.observer`).
Here hypothesis chooses what happens, so that a finding is shrunk to a few steps.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import ErrorPolicy, Scope
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.compaction import CompactionResult, compact_runs
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.kinds import worlds_of_kinds
from tests.simulation.wire import Wire, batch_of
from tests.simulation.world import RETENTIONS, World
from tests.support.reference import NO_ORDER, Command
from tests.support.stores import forget_runs_and_logs

KINDS = sorted(((kind, world.seed) for kind, world in worlds_of_kinds().items()), key=str)
"""The kinds of tables, each with a world of it."""

FORGETFUL = [
    (kind, "0 epochs") for kind in KINDS if kind[0][:2] == (Scope.TABLE, Engine.DEDUPLICATE)
]
"""Most can go wrong where deletes are forgotten, so that every other table is such a one."""

KEYS = st.integers(0, 2)
VALUES = st.integers(0, 2)
ORDERS = st.integers(0, 9)
COMMANDS = st.lists(st.tuples(KEYS, VALUES, ORDERS, st.integers(0, 7)), max_size=4)
"""Key, value, order, and what is special: a delete, an error, a null order or a bad key."""

TRUE_AT_TIMES = st.sampled_from([False, False, False, True])


class AnyTableAgreesWithItsRules(RuleBasedStateMachine):
    """One table, writers that stage, compactors that plan, and incarnations of an operator."""

    staged = Bundle("staged")
    planned = Bundle("planned")

    @initialize(
        drawn=st.sampled_from(FORGETFUL)
        | st.tuples(st.sampled_from(KINDS), st.sampled_from(RETENTIONS))
    )
    def create(self, drawn: tuple[tuple[Any, int], str]) -> None:
        kind, retention = drawn
        self.exits = ExitStack()
        self.world = World(kind[1])
        self.world.retention = retention
        self.world.fault_rate = 0.0
        self.world.has_ties = True
        self.exits.enter_context(self.world.conditions())
        self.world.create()
        self.table = self.world.open()
        self.loops = [self._loop() for _ in range(2)]
        self.sent = 0
        self.written = 0

    def _loop(self) -> FeedbackUpsert:
        wire = Wire(self.world.schema, self.world.columns)
        return self.exits.enter_context(FeedbackUpsert(self.world.open(), "source", wire.commands))

    def teardown(self) -> None:
        if hasattr(self, "exits"):
            self.exits.close()

    # -- writing ---------------------------------------------------------------------

    def _commands(self, drawn: list[tuple[int, int, int, int]]) -> list[Command]:
        return [self._command(*each) for each in drawn]

    def _command(self, key: int, value: int, order: int, special: int) -> Command:
        schema, columns = self.world.schema, self.world.columns
        if special <= 1 and schema.engine.takes_deletes:
            return Command(key, None, order)
        row = (value, order) if "seq" in columns else tuple(value for _ in columns)
        if special == 2 and schema.on_error is not ErrorPolicy.FAIL:
            return Command(key, row, order, f"the value {order} is undecodable")
        if special == 3 and schema.has_quarantine and schema.order:
            # None with a key: that they stand where they arrived, `test_newest_words` tells.
            return Command(b"?", row, NO_ORDER)
        return Command(b"?" if special == 4 and schema.has_quarantine else key, row, order)

    @rule(
        target=staged,
        drawn=COMMANDS,
        is_parted=st.booleans(),
        overwrite=TRUE_AT_TIMES,
        applies=TRUE_AT_TIMES,
    )
    def stage(self, drawn: Any, is_parted: bool, overwrite: bool, applies: bool) -> WriteSet:
        return self._staged(drawn, is_parted, overwrite, applies)

    @rule(drawn=COMMANDS, is_parted=st.booleans())
    def write(self, drawn: Any, is_parted: bool) -> None:
        self._commit(self._staged(drawn, is_parted, overwrite=False, applies=False))

    def _staged(self, drawn: Any, is_parted: bool, overwrite: bool, applies: bool) -> WriteSet:
        commands = self._commands(drawn)
        # The commands of a key stay in one task: between tasks nothing orders them.
        first = [c for c in commands if not is_parted or c.key in (0, 1)]
        tasks = [first, [c for c in commands if c not in first]]
        # A writer of its own, so that epochs may be committed in any order.
        transaction = Transaction(writer=f"w{self.written}", number=0)
        self.written += 1
        self.world.scripts[transaction] = tasks
        late_rows = LateRows.APPLY if applies else LateRows.REJECT
        if applies:
            self.world.applied_late.add(transaction)
        base = self.table.at()
        wire = Wire(base.manifest.schema, self.world.columns)
        batches = [wire.commands(batch_of(task, self.world.columns)) for task in tasks]
        return WriteSet(
            base=base,
            staged=tuple(
                stage(base, [batch], overwrite=overwrite, late_rows=late_rows) for batch in batches
            ),
            transactions=(transaction,),
            overwrite=overwrite,
            late_rows=late_rows,
        )

    @rule(target=staged, epoch=consumes(staged))
    def commit(self, epoch: WriteSet) -> Any:
        self._commit(epoch)
        return multiple()

    def _commit(self, epoch: WriteSet) -> None:
        assert self.table.commit(epoch) is not None

    @rule(drawn=COMMANDS)
    def send(self, drawn: Any) -> None:
        """Send a timestamp to all incarnations."""
        commands = self._commands(drawn)
        transaction = Transaction(writer="operator:source", number=self.sent)
        self.world.scripts[transaction] = [commands]
        for loop in self.loops:
            loop.ingest(batch_of(commands, self.world.columns), self.sent)
            loop.advance(self.sent + 1)
        self.sent += 1

    @rule(number=st.integers(0, 1))
    def step(self, number: int) -> None:
        self.loops[number].step()

    # -- upkeep ----------------------------------------------------------------------

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.world.observer.compact(self.table, full=full)

    @rule(target=planned, full=st.booleans())
    def compact_runs(self, full: bool) -> list[CompactionResult]:
        head = self.table.log.head()
        jobs = self.table.compaction_jobs(full=full)
        return [compact_runs(self.table.store, head, job) for job in jobs]

    @rule(merges=consumes(planned))
    def commit_compactions(self, merges: list[CompactionResult]) -> None:
        self.table.commit_compactions(merges)

    @rule(back=st.integers(1, 4))
    def restore(self, back: int) -> None:
        head = self.table.log.head()
        self.table.restore(max(head.since, head.version - back))

    @rule(days=st.sampled_from([0, 0, 8]))
    def expire(self, days: int) -> None:
        self.world.now.advance(days * 86_400.0)
        self.table.expire(retain_versions=20, safety_ms=0)

    @rule()
    def reopen(self) -> None:
        forget_runs_and_logs()
        self.table = self.world.open()

    # -- what must hold --------------------------------------------------------------

    @invariant()
    def the_observer_finds_nothing(self) -> None:
        if hasattr(self, "world"):
            self.world.observer.look()

    @rule()
    def check(self) -> None:
        assert self.table.check().is_sound


def test_every_kind_is_there() -> None:
    kinds = [kind for kind, _ in KINDS]
    assert len(kinds) == 3 * 3 + 3 + 2 + 2
    assert (Scope.TABLE, Engine.PARTIAL_UPDATE, ErrorPolicy.FAIL) in kinds


TestAnyTableAgreesWithItsRules = AnyTableAgreesWithItsRules.TestCase
TestAnyTableAgreesWithItsRules.settings = settings(stateful_step_count=25)
