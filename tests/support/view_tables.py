"""Real tables of views: of any engine, scope, error policy and prefix, in memory or in a folder.

What a table holds at a version is noted when it is committed, by a read of the whole, which other
tests hold against models; of a plain table it is computed besides, by `view_plays.applied`.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema, Ties
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, Node, Scan
from spark_upsert.store import LocalStore
from spark_upsert.table.index.build import Indexes
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.views.grouping import Grouping
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.scan import BaseTable, TableBase
from spark_upsert.views.view import View, last_epoch, open_base
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.view_cases import TABLES, Epoch, Row, Shape
from tests.support.view_plays import Contents, Key, PlayedIndex, applied, canonical, table_of

SEQUENCE = "seq"
"""The order key of the tables that have one; it is no column of theirs."""

ADDED = ("note1", "note2")
"""Columns that a table may gain, of which no plan knows."""

_LATEST = 4
"""A late row is behind by so much."""

_BAD = "the value is undecodable"


def plain(shape: Shape) -> TableSchema:
    """Return the schema of a table of which the last command of a key is its row."""
    return TableSchema.of(shape.columns, keys=shape.key)


def of_any_kind(chance: random.Random) -> Callable[[Shape], TableSchema]:
    """Return what draws a kind of table for a shape."""

    def drawn(shape: Shape) -> TableSchema:
        engine = MergeEngine(chance.choice([Engine.DEDUPLICATE, Engine.DEDUPLICATE, *Engine]))
        if engine.kind is Engine.AGGREGATION:
            values = [f for f in shape.columns if f.name not in shape.key and f.type == pa.int64()]
            rules = [Rule.LAST, Rule.SUM, Rule.MIN, Rule.MAX]
            engine = MergeEngine(engine.kind, {f.name: chance.choice(rules) for f in values})
        policies = list(ErrorPolicy) if engine.kind is Engine.DEDUPLICATE else [ErrorPolicy.FAIL]
        scopes = [Scope.TABLE] if engine.folds else [Scope.TABLE, Scope.EPOCH]
        is_ordered = chance.random() < 0.6
        return TableSchema.of(
            shape.columns,
            keys=shape.key,
            order=[pa.field(SEQUENCE, pa.int64())] if is_ordered else [],
            scope=chance.choice(scopes),
            engine=engine,
            on_error=chance.choice(policies),
            ties=chance.choice([None, Ties.FIRST]),
            hash_prefix=chance.randrange(len(shape.key)),
        )

    return drawn


def let_time_pass(table: Table) -> None:
    """Wait for the next millisecond: commits of two tables are put in order by their times."""
    newest = table.log.head().timestamp_ms
    while time.time_ns() // 1_000_000 <= newest:
        pass


@dataclass(frozen=True, slots=True)
class _Wire:
    """The envelope of rows, some of which cannot be decoded."""

    schema: TableSchema

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands of a batch (`Envelope.commands`)."""
        bad = batch.column("bad")
        decoded = DecodedRows(
            columns={
                name: batch.column(name)
                for name in self.schema.columns.names
                if name != self.schema.error_column
            },
            order=[batch.column(SEQUENCE)] if self.schema.order else [],
            tombstones=np.asarray(batch.column("gone")),
            raw_values=lambda rows: bad.take(pa.array(rows)).cast(pa.binary()),
            bad_values=bad if bad.null_count < len(bad) else None,
        )
        return to_commands(self.schema, decoded)


@dataclass(slots=True)
class RealWorld:
    """The tables of the cases, empty at first.

    Parameters
    ----------
    chance : random.Random, optional
        Decides which version an index shows, and what is late or bad.
    has_own_indexes : bool
        Whether the tables have real indexes, which follow their commits.
    kind : callable
        The schema of a shape's table.
    folder : pathlib.Path, optional
        Where the tables lie, by their names, under the machine's clock; by default in memory.
    """

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    has_own_indexes: bool = False
    kind: Callable[[Shape], TableSchema] = plain
    folder: Path | None = None
    shapes: Mapping[str, Shape] = field(default_factory=lambda: TABLES)
    now_s: float = 1_700_000_000.0
    kept: dict[str, KeptGroups] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    held: dict[str, dict[int, Contents]] = field(default_factory=dict)
    """What each table held at each of its epochs, by the version."""
    _indexes: dict[str, dict[str, PlayedIndex]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            self.tables[name] = self.opened(name)
            self.held[name] = {0: {}}
            self._indexes[name] = {}
            if shape.is_kept:
                source = self.opened(f"{name}_source")
                self.kept[name] = KeptGroups(shape, source, self.tables[name])
                continue
            columns = ",".join(shape.indexes) if self.has_own_indexes else ""
            self.tables[name].ensure(self.kind(shape), {"indexBy": columns} if columns else {})
            self._indexes[name] = {
                column: PlayedIndex(shape, column, self.held[name], self.chance)
                for column in shape.indexes
            }

    def opened(self, name: str) -> Table:
        """Return a table as another process has it."""
        if self.folder is not None:
            return Table(LocalStore(str(self.folder / name)))
        known = self.tables.get(name)
        return Table(MemoryStore() if known is None else known.store, clock=lambda: self.now_s)

    def open(self, scan: Scan) -> BaseTable:
        """Return a table as a plan reads it."""
        if self.has_own_indexes or scan.path in self.kept:
            return open_base(scan, self.tables[scan.path])
        return _IndexedBase(scan, self.tables[scan.path], self._indexes[scan.path])

    def apply(self, epoch: Epoch, *, time: float | None = None) -> int:
        """Commit an epoch; return its version."""
        self.now_s = self.now_s + 1 if time is None else 1_700_000_000.0 + time
        name = epoch.table
        if name in self.kept:
            version = self.kept[name].apply(epoch)
            self._note(name, version)
            return version
        schema, table = self.tables[name].schema, self._writer(name)
        with ExitStack() as stack:
            if self.has_own_indexes and self.chance.random() < 0.2:  # They lag from here on.
                stack.enter_context(patch.object(Indexes, "follow", lambda self, commit: None))
            rows = self._rows(epoch, schema)
            commit = table.upsert(
                rows,
                envelope=_Wire(schema),
                overwrite=epoch.overwrite,
                late_rows=LateRows.REJECT,
            )
        assert commit is not None
        before = self.held[name][self.known_versions(name)[-1]]
        self._note(name, commit.version)
        if schema == plain(self.shapes[name]):
            wanted = applied(self.shapes[name], before, epoch)
            assert _alike(self.held[name][commit.version], wanted)
        return int(commit.version)

    def _writer(self, name: str) -> Table:
        """Return this process or another one."""
        return self.tables[name] if self.chance.random() < 0.7 else self.opened(name)

    def _rows(self, epoch: Epoch, schema: TableSchema) -> pa.Table:
        shape = self.shapes[epoch.table]
        deletes = epoch.deletes if schema.engine.takes_deletes else ()
        pad = (None,) * (len(shape.columns) - len(shape.key))
        rows = table_of(shape, [*epoch.puts, *((*key, *pad) for key in deletes)])
        chance, count = self.chance, rows.num_rows
        is_strict = schema.on_error is ErrorPolicy.FAIL
        bad = [None if is_strict or chance.random() < 0.8 else _BAD for _ in epoch.puts]
        self._number += count
        order = [max(1, self._number - chance.randrange(_LATEST) * count) for _ in range(count)]
        gone = [False] * len(epoch.puts) + [True] * len(deletes)
        given = pa.Table.from_batches([rows])
        given = given.append_column("gone", pa.array(gone, pa.bool_()))
        given = given.append_column("bad", pa.array([*bad, *(None for _ in deletes)], pa.string()))
        given = given.append_column(SEQUENCE, pa.array(order, pa.int64()))
        for name in ADDED:
            if name in schema.columns.names:
                notes = [chance.choice(["a", None]) for _ in range(count)]
                given = given.append_column(name, pa.array(notes, pa.string()))
        return given

    def alter(self, name: str) -> None:
        """Give a table one more column, or let it remember its deletes for another time."""
        self.now_s += 1
        if name in self.kept:
            return
        schema = self.tables[name].schema
        more = [column for column in ADDED if column not in schema.columns.names][:1]
        if self.chance.random() < 0.3:
            kept = self.chance.choice(["0 epochs", "2 epochs", "forever"])
            self._writer(name).alter(schema, {"tombstoneRetention": kept})
        else:
            columns = pa.schema([*schema.columns, *(pa.field(each, pa.string()) for each in more)])
            self._writer(name).alter(schema.accept(columns, merge=True))

    def mend_indexes(self, name: str) -> None:
        """Lose all indexes of a table, compact them, or bring them up to date."""
        table, way = self.tables[name], self.chance.random()
        if way < 0.3 and self.folder is not None:
            shutil.rmtree(self.folder / name / "_index", ignore_errors=True)
            forget_runs_and_logs()
        elif way < 0.5:
            for index in table.indexes():
                if index.log.try_head() is not None:
                    Table(index.store).compact(full=True)
        else:
            table.build_indexes(rebuild=way < 0.6)

    def restore(self, name: str, version: int) -> None:
        """Let a table go back to what it held at an epoch."""
        self.now_s += 1
        commit = self._writer(name).restore(version)
        if commit is None:
            return
        self._note(name, commit.version)
        assert _alike(self.held[name][commit.version], self.held[name][version])

    def _note(self, name: str, version: int) -> None:
        """Note what a table holds at a version."""
        shape = self.shapes[name]
        if name in self.kept:
            found = self.kept[name].rows(version)
        else:
            found = self.tables[name].snapshot(version, columns=shape.columns.names).to_pylist()
        rows: list[Row] = [tuple(row.values()) for row in found]
        self.held[name][version] = {_key(shape, row): row for row in rows}
        if self.folder is not None:
            let_time_pass(self.tables[name])

    def known_versions(self, path: str) -> list[int]:
        """Return the versions of a table's epochs, the oldest first."""
        return sorted(self.held[path])

    def disturb(self, chance: random.Random, needed: Mapping[str, int]) -> None:
        """Compact tables, and expire what nobody needs; neither changes an answer.

        Parameters
        ----------
        needed : mapping of str to int
            The oldest version of each table that is still read, which is what a view leases.
        """
        for path, version in needed.items():
            table = self.tables[path]
            if chance.random() < 0.4:
                table.compact(full=True)
            if chance.random() < 0.3:
                table.hold("view", version)
                self.expire(path)
                for index in self._indexes[path].values():
                    index.oldest = version

    def expire(self, path: str) -> None:
        """Forget all versions of a table that nobody holds."""
        self.tables[path].expire(retain_versions=1, safety_ms=0)
        self.tables[path].vacuum(grace_ms=0)

    def contents(self, at: Mapping[str, int]) -> Callable[[Scan], Iterable[Row]]:
        """Return what tells the rows of a scan at a position."""

        def rows(scan: Scan) -> Iterable[Row]:
            version = at[scan.path] if scan.version is None else scan.version
            return self.held[scan.path][version].values()

        return rows


class KeptGroups:
    """A table that keeps groups: those of the rows of another table, one row of which is one.

    Parameters
    ----------
    shape : Shape
        The columns of the result; the second is the greatest value of the group.
    source, table : Table
        Absent.
    """

    def __init__(self, shape: Shape, source: Table, table: Table) -> None:
        self._source, self._table = source, table
        [group], [value] = shape.key, shape.columns.names[1:]
        columns = pa.schema([("row", pa.string()), *shape.columns])
        source.ensure(TableSchema.of(columns, keys=["row"]), {})
        self._plan = Group(
            input=Scan.of("source", columns, ("row",)),
            keys=(group,),
            aggregates=(Aggregate(value, AggregateKind.MAX, value),),
        )
        self._kept = MaterializedView.create(
            table, self._view().grouping_of_rows, self._plan.to_json()
        )

    def _view(self) -> _ViewOfOne:
        return _ViewOfOne(self._plan, self._source)

    def apply(self, epoch: Epoch) -> int:
        """Let the groups be put and deleted; return the version that shows it."""
        width = self._source.schema.columns
        rows = [(repr(row[0]), *row, False) for row in epoch.puts]
        rows += [(repr(key[0]), *key, None, True) for key in epoch.deletes]
        names = [*width.names, "gone"]
        given = pa.Table.from_pylist(
            [dict(zip(names, row, strict=True)) for row in rows],
            schema=pa.schema([*width, ("gone", pa.bool_())]),
        )
        self._source.upsert(given, deletes="gone", overwrite=epoch.overwrite)
        assert refresh(self._view(), self._table)
        return last_epoch(self._table.log, self._table.log.head().version)

    def rows(self, version: int) -> list[dict[str, Any]]:
        """Return the groups at a version."""
        return [dict(row) for row in self._kept.rows(version).to_pylist()]


class _ViewOfOne(View):
    """A view over one table, wherever that lies."""

    def __init__(self, plan: Node, source: Table) -> None:
        self._source = source
        super().__init__(plan)

    @property
    def grouping_of_rows(self) -> Grouping:
        assert self.grouping is not None
        return self.grouping

    def _open(self, scan: Scan) -> BaseTable:
        self.tables[scan.path] = self._source
        self._schemas[scan.path] = self._source.schema
        return open_base(scan, self._source)


def _alike(mine: Contents, other: Contents) -> bool:
    """Return whether two contents are equal, as the engine finds."""
    sides = [{key: canonical(row) for key, row in side.items()} for side in (mine, other)]
    return sides[0] == sides[1]


def _key(shape: Shape, row: Row) -> Key:
    found: Key = canonical(row[: len(shape.key)])
    return found


class _IndexedBase(TableBase):
    """A real table with indexes that are played."""

    def __init__(self, scan: Scan, table: Table, indexes: Mapping[str, Any]) -> None:
        super().__init__(scan, table)
        self._indexes = indexes

    def is_indexed(self, column: str) -> bool:
        return column in self._indexes

    def index(self, column: str) -> Index | None:
        return self._indexes.get(column)
