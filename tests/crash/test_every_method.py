"""Fail any step of any public method, try the method again, and end as if nothing had happened.

`test_every_step` sweeps each operation of a query; here one handle lives through all methods of
`Table` and `FeedbackUpsert`, on tables of every scope, engine and error policy. After an error
the same call is made again on the same handle, after a kill on a fresh one. What is read on the
way, and what the table is in the end, must be what an undisturbed life saw.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Rule
from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.delta.types import MirroredTypeError, NotMirroredError
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import TableFullError, UpsertFlowError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.changelog.read import ChangeOptions, ValidBy
from spark_upsert.table.compaction import CompactionResult, Job, compact_runs
from spark_upsert.table.log import storage
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.properties import EPOCHS, INDEX_BY, ON_FULL, PROPERTY, LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.watch import SealedEpoch
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.kinds import SEEDS, is_fit, worlds_of_kinds
from tests.simulation.wire import PREFIX, Wire, batch_of
from tests.simulation.world import Script, World
from tests.support.clocked import HOUR_S, ClockedStore, Now
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    Moment,
    Steps,
    forget_runs_and_logs,
)

T = TypeVar("T")

STRIDE = int(os.environ.get("CRASH_STRIDE", "131"))
"""One of so many steps fails, another one for each kind of table; 1 tries them all."""

WORLDS = worlds_of_kinds()


class Life:
    """One handle after the other on one table, and what they saw."""

    def __init__(self, world: World, scripts: list[Script], fault: Fault | None) -> None:
        self.world = world
        self.scripts = scripts
        self.now = Now()
        self.store = ClockedStore(self.now)
        self.steps = Steps(fault)
        self.called: set[str] = set()
        self.seen: list[Any] = []
        self._open()

    def _open(self) -> None:
        forget_runs_and_logs()
        self.table = Table(FaultyStore(self.store, self.steps), clock=self.now)

    def call(self, name: str, action: Callable[[], T]) -> T:
        """Call a method, and once more after a fault."""
        self.called.add(name)
        try:
            return action()
        except BrokenError:
            return action()
        except KilledError:
            self.steps.is_dead = False
            self._open()
            return action()

    def see(self, name: str, action: Callable[[], Any]) -> None:
        """Call a method that reads."""
        self.seen.append((name, self.call(name, action)))

    # -- the methods -----------------------------------------------------------------

    def run(self) -> None:
        """Call every method."""
        schema, properties = self.world.schema, {PROPERTY: self.world.retention, EPOCHS: "99"}
        self.call("ensure", lambda: self.table.ensure(schema, properties))
        self._append(0)
        self._commit_behind_another(1)
        self.call("hold", lambda: self.table.hold("reader", 1, ttl_ms=3_600_000))
        self.call("keep_held", lambda: self.table.keep_held("reader", 1, ttl_ms=3_600_000))
        self.see("consumers", lambda: [each.version for each in self.table.consumers()])
        self.call("compact", lambda: self.table.compact(full=True))
        self._append(3)
        self._alter()
        self._operate(4)
        self._compact_apart()
        self._append(6, overwrite=True)
        self._append(7)
        self.call("compact_leased", self._compact_leased)
        self._fill(8)
        self.call("delete", self._delete)
        self.see("expire_rows", lambda: self.table.expire_rows())
        self._read()
        self._restore()
        self._index()
        self._clean()

    def _index(self) -> None:
        """Find rows by the beginning of their key, and by a column that is no key."""
        column, properties = self.world.columns[0], {INDEX_BY: self.world.columns[0]}
        self.see("having_prefix", self._having_prefix)
        schema = self.table_schema()
        self.call("alter", lambda: self.table.alter(schema, properties))
        self.see("indexes", lambda: [index.column for index in self.table.indexes()])
        self.call("build_indexes", lambda: self.table.build_indexes())
        self.see("index_of", lambda: self.table.index_of(column) is not None)
        self.see(
            "rows_having",
            lambda: sorted(map(repr, self.table.rows_having(column, [1, 2]).to_pylist())),
        )

    def _having_prefix(self) -> list[str]:
        if not self.world.has_prefix:
            return []
        values = pa.table({PREFIX: pa.array([1], pa.int32())})
        return sorted(map(repr, self.table.having_prefix(values).to_pylist()))

    def _fill(self, number: int) -> None:
        """Let there be no room for an epoch, and then enough again."""
        schema = Table(self.store, clock=self.now).schema
        full, roomy = {EPOCHS: "1", ON_FULL: "reject"}, {EPOCHS: "99"}
        self.call("alter", lambda: self.table.alter(schema, full))

        def refused() -> bool:
            head = self.table.log.head()
            return isinstance(self.table.admission().refusal(head), TableFullError)

        self.see("admission", refused)
        self.see("pressure", lambda: self.table.pressure())
        with pytest.raises(TableFullError):
            self._append(number)
        self._append(number - 1)  # It is in the table, and so it is done.
        self.call("alter", lambda: self.table.alter(schema, roomy))
        self.call("drop_columns", lambda: self.table.drop_columns())
        self._append(number)

    def _append(self, number: int, *, overwrite: bool = False) -> None:
        transaction = Transaction(writer="own", number=number)
        self.call(
            "upsert",
            lambda: self.table.upsert(
                pa.Table.from_batches([self._batch(number)]),
                envelope=self._wire(),
                transaction=transaction,
                overwrite=overwrite,
                late_rows=LateRows.REJECT,
            ),
        )

    def _delete(self) -> None:
        """Delete the rows of two keys, where a table has deletes that win."""
        schema = self.world.schema
        is_refused = schema.order and schema.scope is Scope.TABLE and schema.ties is not Ties.LAST
        if schema.engine.takes_deletes and not is_refused:
            self.table.delete(filter="key IN (0, 1)")

    def _restore(self) -> None:
        version = self.call("at", lambda: self.table.at().manifest.version) - 1
        self.call("hold_all", lambda: self.table.hold_all("copier", ttl_ms=3_600_000))
        self.call("restore", lambda: self.table.restore(version))
        self.call("release", lambda: self.table.release("copier"))

    def _batch(self, number: int) -> pa.RecordBatch:
        commands = [command for task in self.scripts[number] for command in task]
        return batch_of(commands, self.world.columns)

    def _wire(self) -> Wire:
        return Wire(self.table.log.head().schema, self.world.columns)

    def _commit_behind_another(self, number: int) -> None:
        base = self.call("at", lambda: self.table.at())
        wire = Wire(base.manifest.schema, self.world.columns)
        tasks = [[wire.commands(batch_of(t, self.world.columns))] for t in self.scripts[number]]
        staged = self.call("at", lambda: tuple(stage(self.table.at(1), task) for task in tasks))
        other = Table(self.store, clock=self.now)
        other.upsert(
            pa.Table.from_batches([self._batch(number + 1)]),
            envelope=wire,
            late_rows=LateRows.REJECT,
        )
        transaction = Transaction(writer="staged", number=number)
        epoch = WriteSet(base=base, staged=staged, transactions=(transaction,))
        self.call("commit", lambda: self.table.commit(epoch))

    def _alter(self) -> None:
        schema = self.table_schema()
        columns = schema.columns.append(pa.field("note", pa.string()))
        self.call("alter", lambda: self.table.alter(replace(schema, columns=columns)))
        self._plan(replace(schema, columns=columns))

    def _plan(self, schema: TableSchema) -> None:
        """Plan a write of one more column, which alters the table."""
        orders = {field.name: field for field in schema.order}
        own = [field for field in schema.columns if field.name != schema.error_column]
        rows = [
            *(orders.get(field.name, _element(field, schema)) for field in own),
            pa.field("more", pa.string()),
        ]
        others = [field for name, field in orders.items() if name not in schema.columns.names]
        options = WriteOptions(
            path="",
            columns=tuple(f.name for f in rows),
            merge_schema=True,
            late_rows=LateRows.REJECT,
        )
        incoming = pa.schema([*rows, *others])
        self.see(
            "plan_table_write",
            lambda: plan_table_write(self.table, options, incoming).base.schema.columns.names,
        )

    def table_schema(self) -> Any:
        """Return the table's schema, read without faults."""
        return Table(self.store, clock=self.now).log.head().schema

    def _operate(self, number: int) -> None:
        """Send two timestamps through an operator; one that was killed begins again."""
        batches = [self._batch(number), self._batch(number + 1)]
        try:
            self._operate_once(batches)
        except KilledError:
            self.steps.is_dead = False
            self._open()
            self._operate_once(batches)

    def _operate_once(self, batches: list[pa.RecordBatch]) -> None:
        wire = Wire(self.table_schema(), self.world.columns)
        with self._retry(lambda: FeedbackUpsert(self.table, "source", wire.commands)) as loop:
            upper = self._retry(lambda: loop.persist_upper)
            for ts, batch in enumerate(batches):
                if ts < upper:
                    continue
                self._retry(lambda batch=batch, ts=ts: loop.ingest(batch, ts))  # type: ignore[misc]
                loop.advance(ts + 1)
                self._retry(loop.step)
            self._retry(loop.run)
            loop.close()
            frontiers = self._retry(lambda: loop.frontiers)
            assert frontiers.buffered == ()
            assert frontiers.persist_upper == 2

    def _retry(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except BrokenError:
            return action()

    def _compact(self, head: Manifest, job: Job) -> CompactionResult:
        return compact_runs(self.table.store, head, job)

    def _compact_apart(self) -> None:
        head = Table(self.store, clock=self.now).log.head()
        jobs = self.call("compaction_jobs", lambda: self.table.compaction_jobs(full=True))
        compacted = [self.call("compact_runs", partial(self._compact, head, job)) for job in jobs]
        self.call("commit_compactions", lambda: self.table.commit_compactions(compacted))
        self.call("discard", lambda: self.table.discard((), compacted))

    def _compact_leased(self) -> int:
        jobs = self.table.compaction_jobs(full=True)
        return self.table.compact_leased(self.table.log.head(), jobs)

    def _read(self) -> None:
        columns = ("key", *self.world.columns)

        def rows(batches: Any) -> Any:
            records = [row for batch in batches for row in batch.to_pylist()]
            return sorted(map(repr, _without_times(records)))

        head = Table(self.store, clock=self.now).log.head()
        options = ChangeOptions(columns=columns)
        self.see("snapshot", lambda: rows([self.table.snapshot(columns=columns)]))
        self.see("snapshot", lambda: rows([self.table.snapshot(2, columns=columns)]))
        self.see("scan", lambda: rows([self.table.scan(columns).read_all()]))
        self.see("pieces", lambda: rows(map(pa.table, self.table.pieces(3, columns=columns))))
        self.see("to_polars", lambda: rows([self.table.to_polars().collect().to_arrow()]))
        self.see("get", lambda: rows([self.table.get(self._keys(), columns=columns)]))
        self.see("scan_changes", lambda: rows([self.table.scan_changes(1).read_all()]))
        self.see("history", lambda: rows([self.table.history(by=ValidBy.VERSION).read_all()]))
        self.see("quarantine", lambda: rows(self.table.quarantine()))
        self.see("changes", lambda: rows([self.table.changes(1)]))
        self.see("iter_changes", lambda: rows(self.table.iter_changes(1, head.upper, options)))
        self.see("watch", self._watched)
        self.see("check", lambda: self.table.check().is_sound)

    def _keys(self) -> pa.Table:
        prefixes = {PREFIX: [1, 1, 2]} if self.world.has_prefix else {}
        return pa.table({"key": [0, 1, 2], **prefixes})

    def _publication_result(self) -> Any:
        """Publish what can be published."""
        try:
            done = self.table.publish()
        except (MirroredTypeError, NotMirroredError) as error:
            return error.code
        return done.shown == done.newest

    def _watched(self) -> list[int]:
        """Return the rows behind each epoch, as a watcher sees them."""
        found: list[int] = []
        with self.table.watch(0) as watcher:
            while (seen := watcher.take(0)) is not None:
                assert isinstance(seen, SealedEpoch)
                found.append(seen.live_rows)
        return found

    def _clean(self) -> None:
        self.call("release", lambda: self.table.release("reader"))
        self.now.advance(2 * HOUR_S)
        self.call("repair_clock", lambda: self.table.repair_clock())
        self.call("repair", lambda: self.table.repair())
        self.call("expire", lambda: self.table.expire(retain_versions=1))
        self.call("vacuum", lambda: self.table.vacuum(grace_ms=0))
        self.see("publish", self._publication_result)
        self.see("check", lambda: self.table.check().is_sound)

    def end(self) -> list[Any]:
        """Return what was seen, and what the table is in the end."""
        forget_runs_and_logs()
        table = Table(self.store, clock=self.now)
        assert table.check().is_sound
        head = table.log.head()
        rows = sorted(map(repr, table.snapshot().to_pylist()))
        return [*self.seen, rows, head.live_rows, head.transactions]


def _without_times(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out what a repetition may change: times, and numbers of versions."""
    for record in records:
        yield {k: v for k, v in record.items() if not k.startswith(("_commit", "_epoch"))}


@dataclass(frozen=True)
class Undisturbed:
    """What a life without faults sees."""

    end: list[Any]
    steps: int
    called: set[str]


@contextmanager
def small_intervals() -> Iterator[None]:
    with patch.object(storage, "CHECKPOINT_EVERY", 4):
        yield


def undisturbed(world: World, scripts: list[Script]) -> Undisturbed:
    life = Life(world, scripts, None)
    life.run()
    return Undisturbed(life.end(), len(life.steps.names), life.called)


@pytest.mark.parametrize("kind", [KilledError, BrokenError], ids=["a kill", "an error"])
@pytest.mark.parametrize("index", range(len(WORLDS)), ids=[str(w) for w in WORLDS.values()])
@pytest.mark.sweep(4)
def test_a_fault_and_a_retry_end_as_if_nothing_had_happened(
    index: int, kind: type[BaseException]
) -> None:
    world = World(list(WORLDS.values())[index].seed)
    scripts = [world.draw_script(2) for _ in range(9)]
    with small_intervals():
        whole = undisturbed(world, scripts)
        for step, moment in itertools.product(range(index, whole.steps, STRIDE), Moment):
            life = Life(world, scripts, Fault(step, moment, kind))
            try:
                life.run()
            except (UpsertFlowError, AssertionError) as error:
                error.add_note(f"{life.steps.names[step]}, step {step}, {moment}")
                raise
            assert life.end() == whole.end, f"{life.steps.names[step]}, step {step}, {moment}"


def _element(field: pa.Field, schema: TableSchema) -> pa.Field:
    """Return a column as rows have it: of a collected one, an element."""
    is_collected = schema.engine.rule(field.name) is Rule.COLLECT
    return field.with_type(field.type.value_type) if is_collected else field


def test_every_kind_of_table_is_tried() -> None:
    assert len(WORLDS) == len(SEEDS) == 3 * 3 + 3 + 2 + 2
    assert all(map(is_fit, WORLDS.values()))


def test_every_public_method_is_called() -> None:
    [world, *_] = WORLDS.values()
    called = undisturbed(world, [world.draw_script(2) for _ in range(9)]).called
    public = {name for name in dir(Table) if name[0] != "_" and callable(getattr(Table, name))}
    of_upkeep = {
        "apply_to_indexes",
        "open_index",
    }  # By these the methods that are called reach the indexes.
    assert (
        called - {"compact_runs", "plan_table_write"}
        == public - {"open", "create", "unborn"} - of_upkeep
    )
