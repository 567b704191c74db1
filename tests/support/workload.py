"""A fixed piece of work on one table, to be interrupted at every step.

Each operation may be repeated after a crash, as a driver repeats the batch that it did not
see committed: writes carry a transaction, and the rest is idempotent. The key has a prefix, as that
of a table that is read by the beginning of its key; what a step does is that of any table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import Scope
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, with_truncates
from tests.support.model import Command, fold
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import batch_of, changes_of, make_table, plan_epoch, rows_at, schema_of


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that a process does to a table."""

    name: str
    act: Callable[[Store], Any]
    is_quick: bool = False
    """Whether `make check` interrupts it; `make test` interrupts all."""

    def __repr__(self) -> str:
        return self.name


def epoch(
    number: int,
    *tasks: Sequence[Command],
    overwrite: bool = False,
    writers: Sequence[str] = ("query",),
) -> Callable[[Store], Any]:
    """Return what writes one epoch, of which a task may write nothing."""

    def act(store: Store) -> Any:
        table = make_table(store, SCHEMA)
        planned = plan_epoch(table, [[task] for task in tasks], overwrite=overwrite)
        transactions = tuple(Transaction(writer=writer, number=number) for writer in writers)
        return table.commit(replace(planned, transactions=transactions))

    return act


def truncate(number: int, at: int, commands: Sequence[Command]) -> Callable[[Store], Any]:
    """Return what writes an epoch with a truncate at an order key."""

    def act(store: Store) -> Any:
        table = make_table(store, SCHEMA)
        base = table.at()
        schema = base.manifest.schema
        batch = with_truncates(batch_of(schema, commands), [pa.array([at])], schema)
        transactions = (Transaction(writer="query", number=number),)
        staged = (stage(base, [batch]),)
        return table.commit(WriteSet(base=base, staged=staged, transactions=transactions))

    return act


SCHEMA = schema_of(Scope.TABLE, prefix=True)


def alter(store: Store) -> None:
    table = make_table(store, SCHEMA)
    columns = SCHEMA.columns.append(pa.field("note", pa.string()))
    table.alter(replace(SCHEMA, columns=SCHEMA.accept(columns, merge=True).columns))


def compact(store: Store) -> None:
    make_table(store, SCHEMA).compact(full=True)


def put(key: int, value: int | None, order: int) -> Command:
    return Command(key, value, order)


OPERATIONS = (
    Operation("create", lambda store: make_table(store, SCHEMA)),
    Operation("append", epoch(0, [put(1, 10, 1), put(2, 20, 1), put(3, 30, 1)])),
    Operation(
        "append by two tasks",
        epoch(1, [put(1, 11, 2), put(2, None, 2)], [put(1, 12, 3)]),
        is_quick=True,
    ),
    Operation("compact", compact, is_quick=True),
    Operation("append what is partly late", epoch(2, [put(1, 0, 1), put(2, 0, 1), put(4, 40, 1)])),
    Operation("alter", alter),
    Operation("overwrite", epoch(3, [put(3, 31, 1), put(5, 50, 1)], overwrite=True)),
    Operation("replay", epoch(1, [put(1, 11, 2), put(2, None, 2)], [put(1, 12, 3)])),
    Operation("append behind the overwrite", epoch(4, [put(5, None, 2), put(6, 60, 1)])),
    Operation(
        "append of two writers",
        epoch(5, [put(6, 61, 2)], [put(7, 70, 1)], writers=("query", "other")),
    ),
    Operation("truncate", truncate(6, 1, [put(8, 80, 1), put(9, 90, 3)])),
    Operation("replay of one of the two", epoch(5, [put(7, 70, 1)], writers=("other",))),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader sees of a table."""

    rows: dict[Any, Any] | None
    """The snapshot; None if there is no table."""
    history: tuple[tuple[Any, ...], ...]
    """Kind, transactions and counters of each version."""


ABSENT = Seen(None, ())


def observe(store: Store, *, lower: int = 0) -> Seen:
    """Open the table as a new process would and read it.

    The snapshots from version ``lower`` on, and the changes that lead from one to the next,
    are read and must agree.
    """
    forget_runs_and_logs()
    log = Log(store)
    if log.try_head() is None:
        return ABSENT
    table = Table(store)
    head = table.log.head()
    rows = rows_at(table, min(lower, head.version))
    history = []
    for version in range(head.version + 1):
        commit = log.commit(version)
        counters = Counters.from_json(commit.counters)
        assert counters.is_balanced
        history.append((commit.kind, commit.transactions, counters, commit.live_rows))
        if version > lower:
            rows = fold(changes_of(table, version, version + 1), rows)
            assert rows == rows_at(table, version), f"version {version}"
            assert len(rows) == commit.live_rows
    return Seen(rows, tuple(history))


__all__ = ["ABSENT", "OPERATIONS", "Operation", "Seen", "observe"]
