"""What has no order is judged at the version that it comes behind: a delete forgotten by then is
no longer newer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.table.state.snapshot import read_quarantine
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.simulation.wire import Wire, batch_of
from tests.support.reference import NO_ORDER, Command
from tests.support.stores import MemoryStore

SCHEMA = TableSchema.of(
    pa.schema([("key", pa.int32()), ("x", pa.int32())]),
    keys=["key"],
    order=[pa.field("order", pa.int64())],
    scope=Scope.TABLE,
    on_error=ErrorPolicy.QUARANTINE,
)

BAD_KEY = b"!"
ROW, DELETE = (7,), None


@pytest.fixture
def table() -> Table:
    return deleted()


def deleted() -> Table:
    """Return a table whose newest epoch deleted what no key could be read of, of order 13."""
    table = Table(MemoryStore())
    table.ensure(SCHEMA, {"tombstoneRetention": "0 epochs"})
    table.commit(planned(table, Command(5, ROW, 1)))
    table.commit(planned(table, Command(BAD_KEY, DELETE, 13)))
    return table


def planned(table: Table, *commands: Command) -> WriteSet:
    base = table.at()
    batch = Wire(SCHEMA, ("x",)).commands(batch_of(commands, ("x",)))
    return WriteSet(base=base, staged=(stage(base, [batch]),), transactions=())


def counted(table: Table, write_set: WriteSet) -> dict[str, int]:
    commit = table.commit(write_set)
    assert commit is not None
    return {name: number for name, number in commit.counters.items() if number and name != "rows"}


def listed(table: Table) -> int:
    return sum(batch.num_rows for batch in read_quarantine(table.at()))


CASES = pytest.mark.parametrize(
    ("values", "outcome"),
    [(ROW, "quarantined"), (DELETE, "absent")],
    ids=["a row", "a delete"],
)


@CASES
def test_a_delete_that_is_forgotten_by_then_is_not_newer(
    table: Table, values: tuple[int, ...] | None, outcome: str
) -> None:
    ahead = planned(table, Command(BAD_KEY, values, NO_ORDER))
    assert table.compact(full=True)
    assert table.log.head().forgot == table.log.head().version
    assert counted(table, ahead) == {outcome: 1}
    assert listed(table) == (1 if values else 0)


@CASES
def test_a_delete_that_is_known_is_newer(
    table: Table, values: tuple[int, ...] | None, outcome: str
) -> None:
    ahead = planned(table, Command(BAD_KEY, values, NO_ORDER))
    table.commit(planned(table, Command(6, ROW, 2)))
    assert counted(table, ahead) == {"stale": 1}
    assert listed(table) == 0
