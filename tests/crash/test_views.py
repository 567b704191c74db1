"""Fail any step of what keeps a view, try it again, and find the view as if nothing had happened.

A work of several processes on two tables, one with a prefix and an index, and on the table that
keeps groups of their join. Each operation is failed at its steps, by an error or a kill, before and
after the effect of the step, and done again, by the same process behind an error and by another one
behind a kill. What is kept must then be what plain Python makes of the tables.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.model.schema import TableSchema
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, How, Join, On, Scan
from spark_upsert.store import Store
from spark_upsert.table.log.indexed import INDEX_BY
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import NOTHING
from spark_upsert.views import view as view_module
from spark_upsert.views.groups.kept import Kept
from spark_upsert.views.groups.refresh import refresh
from spark_upsert.views.view import View
from tests.support.grouped import expected, shown
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)
from tests.support.view_queries import Query

EVERY = int(os.environ.get("CRASH_STRIDE", "131"))
"""One of so many steps fails, another one in each operation and way; 1 tries them all."""

STEPS_MAX = 5_000
"""More than any operation takes: a sweep that comes here does not end."""

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
        on=(On("customer", "no"),),
        how=How.LEFT,
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

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let plans find their tables here."""
        with patch.object(view_module, "open_store", self.store):
            yield

    def die(self) -> None:
        """Let another process come."""
        forget_runs_and_logs()
        self._process += 1
        self.steps.is_dead = False

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
        table.append(given, deletes="gone", transaction=Transaction(writer="w", number=number))

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
    kept = Kept.made(machine.table("kept"), view.grouping, PLAN.to_json())
    options = {"consumerId": "view", "maxEpochsPerTrigger": "1", "splits": "2"}
    if kept.position() != NOTHING:
        options["startingPosition"] = kept.position()
    query = Query(PLAN, **options)
    query.offset = machine.note("done") or query.offset
    for _ in range(STEPS_MAX):
        planned = machine.note("planned")
        if planned == query.offset or planned is None:
            planned = dict(query.stream.latest(query.offset))
            if planned == query.offset:
                return
            machine.note("planned", planned)
        batch = query.read(query.offset, planned)
        kept.table.append(pa.Table.from_pylist(batch, schema=kept.table.schema.columns))
        machine.note("done", planned)
        query.stream.commit(planned)
        query.offset = planned
    raise AssertionError("the query does not come to its end")


def swept(machine: Machine) -> None:
    """Compact all tables, and expire what nobody holds."""
    for path in ("orders", "customers", "kept"):
        machine.table(path).compact(full=True)
        machine.table(path).expire(retain_versions=1, safety_ms=0)
        machine.table(path).vacuum(grace_ms=0)


OPERATIONS: Mapping[str, Callable[[Machine], Any]] = {
    "first orders": write(0, "orders", (1, 1, 7, 10), (1, 2, 8, 5), (2, 1, 7, -1), (2, 2, None, 3)),
    "first customers": write(0, "customers", (7, "NO"), (8, None)),
    "first refresh": refreshed,
    "orders change": write(1, "orders", (1, 1, 8, 11), (3, 1, 9, 4), (1, 2, 0, 0), gone=1),
    "customers change": write(1, "customers", (9, "SE"), (7, "FI")),
    "refresh": refreshed,
    "more orders": write(2, "orders", (1, 3, 9, 2), (2, 1, 9, 8)),
    "more customers": write(2, "customers", (8, "SE"), (9, None), gone=1),
    "a query begins where the table is": kept_by_query,
    "orders go": write(3, "orders", (1, 1, 0, 0), (3, 1, 0, 0), gone=2),
    "customers come again": write(3, "customers", (9, "NO"), (7, "SE")),
    "the query goes on": kept_by_query,
    "all is swept": swept,
    "last orders": write(4, "orders", (1, 1, 7, 1), (2, 2, 9, 6)),
    "the query goes on behind it": kept_by_query,
    "last customers": write(4, "customers", (8, "NO")),
    "last refresh": refreshed,
}


@cache
def states() -> list[State]:
    """Return the state before each operation, and behind the last."""
    machine, found = Machine({}), []
    with machine.running():
        for act in OPERATIONS.values():
            found.append(machine.state)
            act(machine)
            machine.die()
    return [*found, machine.state]


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
        if machine.stores[path].objects:
            assert Table(machine.stores[path]).check().is_sound
    if not machine.stores["kept"].objects:
        return
    orders = Table(machine.stores["orders"])
    wanted = [row for row in orders.snapshot().to_pylist() if row["customer"] in (7, 9)]
    found = orders.rows_having("customer", [7, 9]).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    refreshed(machine)
    kept = Kept.opened(Table(machine.stores["kept"]))
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


@pytest.mark.parametrize("kind", [KilledError, BrokenError], ids=["a kill", "an error"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_and_a_retry_leave_the_view_as_if_nothing_had_happened(
    name: str, kind: type[BaseException]
) -> None:
    index = list(OPERATIONS).index(name)
    for way, moment in enumerate(Moment, start=2 * (kind is BrokenError)):
        for step in itertools.count((4 * index + way) % EVERY, EVERY):
            assert step < STEPS_MAX, "the sweep does not end"
            fault = Fault(step, moment, kind)
            machine = Machine(states()[index], fault)
            forget_runs_and_logs()
            with machine.running():
                try:
                    if not survived(machine, OPERATIONS[name]):
                        break
                    require_right(machine)
                except (AssertionError, UpsertFlowError) as error:
                    error.add_note(f"{fault}: {machine.steps.names[step]}")
                    raise


def test_every_operation_does_something() -> None:
    """Else nothing that is swept would be wrong."""
    idle = [
        name
        for name, (before, after) in zip(OPERATIONS, itertools.pairwise(states()), strict=True)
        if before == after
    ]
    assert idle == []
    assert len(Table(Machine(states()[-1]).stores["orders"]).snapshot()) > 3
