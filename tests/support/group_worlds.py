"""A query that writes tables below a root, batch by batch, and dies between any two commits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.routed.group import Batch, GroupTable, Member, SourcePosition
from spark_upsert.store import LocalStore
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.streams import Query, Row

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})

Rows = dict[int, int]
"""Key to value."""

Tables = dict[str, Rows]
"""By folder."""


@dataclass
class RoutedBatch:
    """Tables below a root, the query that writes them, and what each should hold at each batch."""

    root: Path
    writer: str = "query:one"
    number: int = 0
    """Of the next batch."""
    now: Tables = field(default_factory=dict)
    """What each table holds."""
    at_batch: Tables = field(default_factory=dict)
    """What each held right behind its last batch."""
    whole: list[Tables] = field(default_factory=list)
    """What all held at each batch that is whole."""
    waiting: dict[str, Rows] = field(default_factory=dict)
    """Of a batch that is under way: the tables that do not have it."""
    under_way: dict[str, Rows] | None = None
    """What the batch that is under way brings each table."""
    source: SourcePosition | None = None
    """Of the next batches, if they follow a database."""

    @property
    def group(self) -> GroupTable:
        return GroupTable(LocalStore(str(self.root)))

    def table(self, folder: str) -> Table:
        path = self.root / folder
        if (path / "_log").exists():
            return Table.open(str(path))
        return Table.create(str(path), COLUMNS, keys=["k"])

    def begin(self, rows: dict[str, Rows]) -> None:
        """Begin a batch, or repeat the one that is under way."""
        if self.under_way is None:
            self.under_way, self.waiting = rows, dict(rows)

    def commit_next(self) -> None:
        """Let one more table have the batch; behind the last one it is whole."""
        assert self.under_way is not None
        if self.waiting:
            folder = next(iter(self.waiting))
            rows = self.waiting.pop(folder)
            transaction = Transaction(writer=self.writer, number=self.number)
            self.write(folder, rows, transaction)
            self.at_batch[folder] = dict(self.now[folder])
            return
        places = {folder: self.table(folder) for folder in self.under_way}
        self.record({folder: self._place_of(table) for folder, table in places.items()})
        self.whole.append({folder: dict(rows) for folder, rows in self.at_batch.items()})
        self.under_way, self.number = None, self.number + 1

    def _place_of(self, table: Table) -> Any:
        """Return the version that has the batch, whatever came behind it."""
        for version in reversed(range(table.log.head().upper)):
            commit = table.log.commit(version)
            if any(each.number == self.number for each in commit.transactions):
                return table.log.version_ref(version)
        raise AssertionError("no version has the batch")

    def record(self, places: dict[str, Any], **asked: bool) -> None:
        """Record that the batch is whole."""
        members = [
            Member(
                folder=folder,
                name=folder,
                values=(folder,),
                place=place,
                writer=self.writer,
                batch=self.number,
                rows=len((self.under_way or {}).get(folder, ())),
            )
            for folder, place in places.items()
        ]
        rows = sum(each.rows for each in members)
        batch = Batch(
            template="{t}",
            writer=self.writer,
            number=self.number,
            rows=rows,
            source=self.source,
        )
        transaction = Transaction(writer=self.writer, number=self.number, is_consecutive=True)
        self.group.append(batch, members, transaction, **asked)

    def batch(self, **rows: Rows) -> None:
        """Write a batch as a whole."""
        self.begin(rows)
        while self.under_way is not None:
            self.commit_next()

    def write(self, folder: str, rows: Rows, transaction: Transaction | None = None) -> None:
        """Write into one table, as the query or as somebody else."""
        table = self.table(folder)
        found = pa.table({"k": list(rows), "v": list(rows.values())}, schema=COLUMNS)
        table.upsert(found, transaction=transaction)
        self.now.setdefault(folder, {}).update(rows)

    # -- reading ---------------------------------------------------------------------

    def plan(self, pattern: str = "*", **given: Any) -> ReadPlan:
        root = {"path": str(self.root), "inputsPattern": pattern, "mergeColumns": "_input"}
        told = {name: str(value) for name, value in {**root, **given}.items() if value is not None}
        return ReadPlan.parse(told)

    def read(self, **given: Any) -> Tables:
        """Return what a batch read finds; by default a consistent one."""
        plan = self.plan(**({"consistent": "true"} | given))
        read = MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)
        rows = [row for pack in read.splits() for b in read.read(pack) for row in b.to_pylist()]
        found: Tables = {}
        for row in rows:
            own = found.setdefault(row["_input"], {})
            assert row["k"] not in own, f"{row} came twice"
            own[row["k"]] = row["v"]
        return found

    def stream(self, **given: Any) -> Stream:
        plan = self.plan(readChangeFeed="true", **({"consistent": "true"} | given))
        inputs = stream_inputs(plan, plan_columns(plan))
        return Stream(inputs, plan.query, offsets=stream_offsets(plan), clock=Now(), wall=Now())

    def query(self, **given: Any) -> Query:
        """Return a query over all tables; each of its processes has seen nothing."""
        return Query(lambda: self.stream(**given))


def folds(batches: list[list[Row]]) -> Tables:
    """Return what the changes of some micro-batches amount to, table by table."""
    found: Tables = {}
    for batch in batches:
        ordered = sorted(batch, key=lambda row: (row["_commit_version"], row["_diff"]))
        for row in ordered:
            own = found.setdefault(row["_input"], {})
            if row["_diff"] < 0:
                assert own.pop(row["k"], None) == row["v"], f"{row} retracts no row"
            else:
                assert row["k"] not in own, f"{row} inserts a second row"
                own[row["k"]] = row["v"]
    return found


def present(tables: Tables) -> Tables:
    """Return the tables that have rows: of others a read shows nothing."""
    return {folder: rows for folder, rows in tables.items() if rows}


def some_rows(dice: random.Random) -> Rows:
    """Return a few rows of few keys."""
    return {dice.randrange(4): dice.randrange(100) for _ in range(dice.randrange(1, 4))}
