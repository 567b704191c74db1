"""Random lives of a table with an index, and the rows that any version of it must have.

What is done is drawn from a seed: epochs, overwrites, restores, new types and columns, compactions
of the table and of the index, expiries and vacuums, steps of the index that fail or are left out
(it lags), and builds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.store import Store
from spark_upsert.table.index import build as build_module
from spark_upsert.table.index.build import Indexes
from spark_upsert.table.index.index import Index
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.tables import Ticks

Rows = dict[tuple[Any, ...], tuple[Any, ...]]
"""The rows of a version: those without the key, by the key."""

VALUES: tuple[int | None, ...] = (None, 0, 1, 2)


class IndexedTable:
    """A table that is indexed by ``c``, and what each of its versions holds.

    Parameters
    ----------
    seed : int
    store : Store, optional
    """

    def __init__(self, seed: int, store: Store | None = None) -> None:
        self.dice = random.Random(seed)
        self.store = store or MemoryStore()
        self.clock = Ticks()
        self.keys = self.dice.choice([("id",), ("id",), ("id", "c"), ("c", "id"), ("id", "part")])
        self.prefix = self.dice.randrange(len(self.keys))
        engine = self.dice.choice([Engine.DEDUPLICATE, Engine.DEDUPLICATE, Engine.PARTIAL_UPDATE])
        columns = pa.schema({n: pa.int32() for n in ("id", "c", "part", "v")})
        self.schema = TableSchema.of(
            columns,
            keys=self.keys,
            hash_prefix=self.prefix,
            scope=Scope.ARRIVAL,
            engine=MergeEngine(engine),
            hash_seed=seed,
        )
        self.table = Table(self.store, clock=self.clock)
        self.table.ensure(self.schema, {"indexBy": "c", "tombstoneRetention": "0 epochs"})
        self.rows: dict[int, Rows] = {0: {}}
        self._number = 0

    # -- what is done ------------------------------------------------------------------

    def live(self, acts: int, look: Callable[[], None]) -> None:
        """Do some things, and look behind each."""
        for _ in range(acts):
            act = self.dice.choice(
                [self.append] * 8
                + [self.append_unseen] * 2
                + [self.overwrite, self.restore, self.compact, self.widen]
                + [self.expire, self.build, self.forget]
            )
            act()
            head = self.table.log.head().version
            last = max(self.rows)
            for version in range(last + 1, head + 1):
                self.rows[version] = self.rows[last]
            look()

    def append(self, *, overwrite: bool = False) -> None:
        """Commit an epoch, through this object or through one that was never used."""
        rows = dict({} if overwrite else self.rows[max(self.rows)])
        given: dict[tuple[Any, ...], dict[str, Any]] = {}
        for _ in range(self.dice.randrange(1, 6)):
            self._number += 1
            row = {
                "id": self.dice.randrange(5),
                "c": self.dice.choice(VALUES),
                "part": self.dice.randrange(2),
                "v": self._number,
                "gone": self.dice.random() < 0.3,
            }
            given[tuple(row[name] for name in self.keys)] = row
        for key, row in given.items():
            old = rows.pop(key, (None,) * len(self.others))
            if not row["gone"]:
                new = tuple(row[name] for name in self.others)
                if self.schema.engine.kind is Engine.PARTIAL_UPDATE:
                    new = tuple(o if n is None else n for o, n in zip(old, new, strict=True))
                rows[key] = new
        names = ("id", "c", "part", "v")
        fields = {n: self.table.schema.columns.field(n).type for n in names}
        batch = pa.Table.from_pylist(
            list(given.values()), schema=pa.schema({**fields, "gone": pa.bool_()})
        )
        columns = self.table.schema.columns.names
        if "note" in columns:
            batch = batch.append_column("note", pa.nulls(len(batch), pa.string()))
        table = self.table if self.dice.random() < 0.7 else Table(self.store, clock=self.clock)
        commit = table.upsert(batch, deletes="gone", overwrite=overwrite)
        assert commit is not None
        self.rows[commit.version] = rows

    @property
    def others(self) -> list[str]:
        """The columns beside the key, but those that were added."""
        return [name for name in ("id", "c", "part", "v") if name not in self.keys]

    def append_unseen(self) -> None:
        """Commit an epoch behind which the index is not brought up to date."""
        with patch.object(Indexes, "follow", lambda self, commit: None):
            self.append()

    def overwrite(self) -> None:
        """Replace the contents."""
        self.append(overwrite=True)

    def restore(self) -> None:
        """Bring back the contents of a version."""
        head = self.table.log.head()
        version = self.dice.randint(head.since, head.version)
        commit = self.table.restore(version)
        if commit is not None:
            self.rows[commit.version] = self.rows[version]

    def compact(self) -> None:
        """Compact the table, or the index."""
        table = self.dice.choice([self.table, Table(self.index.store, clock=self.clock)])
        if table.log.try_head() is not None:
            table.compact(full=self.dice.random() < 0.5)

    def widen(self) -> None:
        """Widen a column, or add one."""
        own = self.table.schema
        wider = [
            field.with_type(pa.int64()) if field.name == "c" else field for field in own.columns
        ]
        added = [
            *own.columns,
            *([] if "note" in own.columns.names else [pa.field("note", pa.string())]),
        ]
        columns = self.dice.choice([wider, added])
        self.table.alter(replace(own, columns=pa.schema(columns)))

    def expire(self) -> None:
        """Give up the past, of the table and of the index."""
        self.table.expire(retain_versions=self.dice.randrange(4), safety_ms=0)
        self.table.vacuum(grace_ms=0)

    def build(self) -> None:
        """Build the index, or bring it up to date."""
        self.table.build_indexes(rebuild=self.dice.random() < 0.3)

    def forget(self) -> None:
        """Open the table anew."""
        self.table = Table(self.store, clock=self.clock)

    # -- what is there -----------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index on ``c``."""
        [index] = self.table.indexes()
        return index

    def having(self, version: int, values: set[Any]) -> Rows:
        """Return the rows of a version with some values of ``c``."""
        found = {}
        for key, others in self.rows[version].items():
            row = dict(zip((*self.keys, *self.others), (*key, *others), strict=True))
            if row["c"] in values and row["c"] is not None:
                found[key] = others
        return found

    def read(self, batches: pa.Table) -> Rows:
        """Return rows as they were read, each of another key."""
        records = batches.to_pylist()
        found = {
            tuple(r[name] for name in self.keys): tuple(r[name] for name in self.others)
            for r in records
        }
        assert len(found) == len(records), f"a key stands twice in {records}"
        return found

    def entries(self) -> set[tuple[Any, ...]]:
        """Return what the index holds: values of ``c`` and keys."""
        own = self.index.log.head()
        rows = [
            row for batch in Snapshot(self.index.store, own).read() for row in batch.to_pylist()
        ]
        return {(row["c"], *(row[name] for name in self.keys)) for row in rows}


@contextmanager
def small_steps(rows: int) -> Iterator[None]:
    """Let a step behind a commit read so few entries."""
    with (
        patch.object(build_module, "STEP_ROWS", rows),
        patch.object(build_module, "_COMMIT_FACTOR", 1),
    ):
        yield
