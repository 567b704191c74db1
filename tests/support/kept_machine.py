"""Processes that keep groups of a join of two tables, by refreshes and by queries, in memory.

One of the tables has a prefix and an index. What is kept must be what plain Python makes of the
tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, Join, JoinKeys, JoinType, Scan
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import INDEX_BY
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views import view as view_module
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.view import View
from tests.support.grouped import expected, shown
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Steps,
    forget_runs_and_logs,
)
from tests.support.view_queries import Query

BATCHES_MAX = 5_000
"""More than any query has: one that comes here does not end."""

ORDERS = TableSchema.of(
    pa.schema([(name, pa.int64()) for name in ("region", "id", "customer", "amount")]),
    keys=["region", "id"],
    hash_prefix=1,
)
CUSTOMERS = TableSchema.of(pa.schema({"no": pa.int64(), "country": pa.string()}), keys=["no"])
SCHEMAS = {"orders": ORDERS, "customers": CUSTOMERS}

PLAN = Group(
    input=Join(
        left=Scan.of("orders", ORDERS.columns, ORDERS.keys),
        right=Scan.of("customers", CUSTOMERS.columns, CUSTOMERS.keys),
        on=(JoinKeys("customer", "no"),),
        how=JoinType.LEFT,
    ),
    keys=("country",),
    aggregates=(
        Aggregate("n", AggregateKind.COUNT),
        Aggregate("total", AggregateKind.SUM, "amount"),
        Aggregate("least", AggregateKind.MIN, "amount"),
    ),
)

State = Mapping[str, Mapping[str, bytes]]
"""All objects of each store."""


class Machine:
    """Processes that come to the stores one after the other; what Spark notes is not failed."""

    def __init__(self, state: State, fault: Fault | None = None) -> None:
        self.stores: dict[str, MemoryStore] = {}
        for name in ("orders", "customers", "kept", "checkpoint"):
            self.stores[name] = MemoryStore()
            self.stores[name].objects = dict(state.get(name, {}))
        self.steps = Steps(fault)
        self._process = 0

    @property
    def state(self) -> State:
        return {name: dict(store.objects) for name, store in self.stores.items()}

    def store(self, path: str, storage: object = None) -> Store:
        """Return a store as the process that runs reaches it."""
        return FaultyStore(self.stores[path], self.steps, process=self._process)

    def table(self, path: str) -> Table:
        return Table(self.store(path))

    def has(self, path: str) -> bool:
        """Return whether a table lies there."""
        return Table(self.stores[path]).log.try_refresh() is not None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let plans find their tables here."""
        with patch.object(view_module, "open_store", self.store):
            yield

    def beside(self) -> Machine:
        """Return another process on the same stores, no step of which fails."""
        other = Machine({})
        other.stores, other._process = self.stores, -1
        return other

    def die(self) -> None:
        """Let another process come."""
        forget_runs_and_logs()
        self._process += 1
        self.steps.is_dead = False

    def forget_notes(self) -> None:
        """Remove the checkpoint."""
        self.stores["checkpoint"].objects.clear()

    def begin_anew(self) -> None:
        """Remove what is kept, the checkpoint and all leases; another process comes."""
        self.forget_notes()
        self.stores["kept"].objects.clear()
        for table in map(Table, (self.stores["orders"], self.stores["customers"])):
            for lease in table.consumers():
                table.release(lease.consumer)
        self.die()

    def note(self, name: str, value: Any = None) -> Any:
        """Note a value as Spark does in a checkpoint, or return what is noted."""
        objects = self.stores["checkpoint"].objects
        if value is not None:
            objects[name] = json.dumps(value).encode()
        return json.loads(objects.get(name, b"null"))


def write(number: int, path: str, *rows: tuple[Any, ...], gone: int = 0) -> Callable[..., Any]:
    """Return what writes an epoch, the last ``gone`` rows of which are deletes."""

    def act(machine: Machine) -> None:
        table, schema = machine.table(path), SCHEMAS[path]
        table.ensure(schema, {INDEX_BY: "customer"} if path == "orders" else {})
        names = schema.columns.names
        given = pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows])
        given = given.select(names).cast(schema.columns)
        flags = [place >= len(rows) - gone for place in range(len(rows))]
        given = given.append_column("gone", pa.array(flags))
        table.upsert(given, deletes="gone", transaction=Transaction(writer="w", number=number))

    return act


def refreshed(machine: Machine) -> None:
    refresh(View(PLAN), machine.table("kept"))


def kept_by_query(machine: Machine) -> None:
    """Run a query until it has caught up, from its checkpoint or from where the table is.

    As Spark does it: an end is noted before its batch runs, and a batch that is noted and not
    known to be done runs again, to the same end.
    """
    view = View(PLAN)
    assert view.grouping is not None
    kept = MaterializedView.create(machine.table("kept"), view.grouping, PLAN.to_json())
    options = {"consumerId": "view", "maxEpochsPerTrigger": "1", "splits": "2"}
    if kept.position() != NOTHING:
        options["startingPosition"] = kept.position()
    query = Query(PLAN, **options)
    query.offset = machine.note("done") or query.offset
    for _ in range(BATCHES_MAX):
        planned = machine.note("planned")
        if planned == query.offset or planned is None:
            planned = dict(query.stream.latest(query.offset))
            if planned == query.offset:
                return
            machine.note("planned", planned)
        batch = query.read(query.offset, planned)
        kept.table.upsert(pa.Table.from_pylist(batch, schema=kept.table.schema.columns))
        machine.note("done", planned)
        query.stream.commit(planned)
        query.offset = planned
    raise AssertionError("the query does not come to its end")


def swept(machine: Machine) -> None:
    """Compact all tables that are there, and expire what no lease holds."""
    for path in filter(machine.has, ("orders", "customers", "kept")):
        machine.table(path).compact(full=True)
        machine.table(path).expire(retain_versions=1, safety_ms=0)
        machine.table(path).vacuum(grace_ms=0)


def rows_of(machine: Machine) -> list[tuple[Any, ...]]:
    """Return what is grouped, in plain Python: amounts, and the countries of their customers."""
    customers = Table(machine.stores["customers"]).snapshot().to_pylist()
    country = {row["no"]: row["country"] for row in customers}
    orders = Table(machine.stores["orders"]).snapshot().to_pylist()
    return [(order["amount"], country.get(order["customer"])) for order in orders]


def require_right(machine: Machine) -> None:
    """Check the tables, what the index finds and, behind a refresh, what is kept."""
    machine.die()
    for path in ("orders", "customers"):
        if machine.has(path):
            assert Table(machine.stores[path]).check().is_sound
    if not machine.has("kept"):
        return
    orders = Table(machine.stores["orders"])
    wanted = [row for row in orders.snapshot().to_pylist() if row["customer"] in (7, 9)]
    found = orders.rows_having("customer", [7, 9]).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    refreshed(machine)
    kept = MaterializedView.open(Table(machine.stores["kept"]))
    assert shown(kept.grouping, kept.rows()) == expected(kept.grouping, rows_of(machine))
    assert kept.table.check().is_sound


def survived(machine: Machine, act: Callable[[Machine], Any]) -> bool:
    """Do an operation, once more behind the fault; return whether there was one."""
    try:
        act(machine)
    except BrokenError:
        act(machine)
    except KilledError:
        machine.die()
        act(machine)
    return machine.steps.struck
