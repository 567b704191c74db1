"""Drawn tables and appends to them: what a round of them does, and what they do one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import Ties
from spark_upsert.errors import DataError
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Transaction
from spark_upsert.table.log.properties import PROPERTY, LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.group_commit import (
    APART,
    Append,
    AppendResult,
    append_together,
    joins,
    sealed,
)
from spark_upsert.table.write.stage import Stash
from tests.simulation.wire import Wire, batch_of
from tests.simulation.world import World
from tests.support.clocked import Now
from tests.support.histories import Conditions, under
from tests.support.stores import MemoryStore


class Drawn:
    """A kind of table, what it holds, and the appends that are to share a version."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"group of {seed}")
        self.world = World(seed)
        self.schema = self.world.schema
        if self.schema.order and not self.schema.engine.folds and dice.random() < 0.1:
            self.schema = replace(self.schema, ties=Ties.FAIL)
        self.before = [self._rows() for _ in range(dice.randrange(3))]
        self.is_compacted = dice.random() < 0.5
        self.rows = [self._rows() for _ in range(dice.choice([2, 2, 3, 5]))]
        self.late_rows = dice.choice([LateRows.FAIL, LateRows.REJECT])
        self.transactions = [
            None if dice.random() < 0.4 else Transaction(writer=f"w{i}", number=dice.randrange(2))
            for i in range(len(self.rows))
        ]
        self.conditions = Conditions(
            hash_values=dice.choice([None, None, 1, 2]), are_pieces_tiny=False
        )

    def _rows(self) -> pa.RecordBatch:
        [commands] = self.world.draw_script(1)
        return batch_of(commands, self.world.columns)

    @property
    def wire(self) -> Wire:
        return Wire(self.schema, self.world.columns)

    def table(self) -> Table:
        """Return a table that holds what was there before."""
        table = Table(MemoryStore(), clock=Now(1_000_000_000.0))
        properties = {PROPERTY: self.world.retention}
        table.log.create(Draft(kind=Kind.CREATE, schema=self.schema, properties=properties))
        for index, rows in enumerate(self.before):
            # Each even one is of the writer of an append, so that its number 0 is a replay.
            own = Transaction(writer="w0", number=0) if index == 0 else None
            self.one(table, rows, own, LateRows.REJECT)
        if self.is_compacted:
            table.compact(full=True)
        return table

    def one(
        self,
        table: Table,
        rows: pa.RecordBatch,
        transaction: Transaction | None,
        late_rows: LateRows,
    ) -> AppendResult:
        """Append by itself."""
        given = pa.Table.from_batches([rows])
        how: dict[str, Any] = {"envelope": self.wire, "transaction": transaction}
        try:
            return table.upsert(given, late_rows=late_rows, **how)
        except DataError as error:
            return error

    def alone(self, table: Table, index: int) -> AppendResult:
        return self.one(table, self.rows[index], self.transactions[index], self.late_rows)

    def together(self, table: Table) -> tuple[list[AppendResult], list[int]]:
        """Append all as one round; return what each is told, and who came apart behind them."""
        calls = [
            self._sealed(rows, own) for rows, own in zip(self.rows, self.transactions, strict=True)
        ]
        told: list[AppendResult] = [
            call if isinstance(call, DataError) else APART for call in calls
        ]
        members = {i: call for i, call in enumerate(calls) if isinstance(call, Append)}
        if members:
            [first, *others] = members.values()
            assert all(joins([first], other) for other in others)
            snapshot = table.at()
            found = append_together(
                table.log,
                snapshot,
                list(members.values()),
                table.commit,
                admission=table.admission(0),
            )
            told = [
                dict(zip(members, found, strict=True)).get(i, each) for i, each in enumerate(told)
            ]
        apart = [index for index, each in enumerate(told) if each is APART]
        for index in apart:
            told[index] = self.alone(table, index)
        return told, apart

    def _sealed(
        self, rows: pa.RecordBatch, transaction: Transaction | None
    ) -> Append | DataError | None:
        with Stash(self.schema) as stash:
            try:
                stash.add(self.wire.commands(rows))
                return sealed(self.schema, stash, transaction, self.late_rows)
            except DataError as error:
                return error


@contextmanager
def drawn(seed: int) -> Iterator[Drawn]:
    found = Drawn(seed)
    with under(found.conditions):
        yield found


def shown(table: Table) -> dict[str, Any]:
    """Return what a table is, but for the number and the times of its epochs."""
    sort = [(name, "ascending") for name in table.schema.keys]
    quarantine = [row for batch in table.quarantine() for row in batch.to_pylist()]
    head = table.log.head()
    return {
        "rows": table.snapshot().sort_by(sort).to_pylist(),
        "quarantine": sorted(str({**row, "_epoch": None}) for row in quarantine),
        "live_rows": head.live_rows,
        "low_water": head.low_water,
        "transactions": dict(head.transactions),
    }


def verdict(told: AppendResult) -> object:
    """Return what matters of what an append was told."""
    match told:
        case Commit():
            return told.counters, told.transactions
        case Exception():
            return type(told), str(told)
    return told


def check_changes(table: Table, lower: int, seed: int) -> None:
    """Check that the changes lead from each version to the next, as the counters say."""
    names = tuple(table.schema.columns.names)
    options = ChangeOptions(columns=names, deduplication=Deduplication.NONE)
    for version in range(lower, table.log.head().upper):
        commit = table.log.commit(version)
        if not commit.is_epoch:
            continue
        rows = [str(row) for row in table.snapshot(version - 1).to_pylist()]
        count = 0
        for batch in table.iter_changes(version, version + 1, options):
            for change in batch.to_pylist():
                row, count = str({name: change[name] for name in names}), count + 1
                rows.append(row) if change["_diff"] > 0 else rows.remove(row)
        assert sorted(rows) == sorted(str(row) for row in table.snapshot(version).to_pylist())
        counters = Counters.from_json(commit.counters)
        assert counters.output_count == count, f"seed {seed}"
        assert counters.is_balanced


def check_round(seed: int) -> int:
    """Check that a round is as its appends in turn; return how many versions it saved."""
    with drawn(seed) as case:
        table, other = case.table(), case.table()
        upper = table.log.head().upper
        told, apart = case.together(table)
        # What came apart came behind the others.
        order = [index for index in range(len(told)) if index not in apart] + apart
        expected = {index: case.alone(other, index) for index in order}
        assert [verdict(each) for each in told] == [
            verdict(expected[index]) for index in range(len(told))
        ], f"seed {seed}"
        assert shown(table) == shown(other), f"seed {seed}"
        check_changes(table, upper, seed)
        commits = sum(isinstance(each, Commit) for each in told)
        return commits - (table.log.head().upper - upper)
