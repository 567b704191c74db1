"""Fail every step of a version that several appends share: behind a retry each is applied once.

The appends add to sums, so that one that is applied twice, or not at all, is seen in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.group_commit import (
    APART,
    Append,
    AppendResult,
    append_together,
    sealed,
)
from spark_upsert.table.write.stage import Stash
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

COUNT = 4
STEPS_MAX = 200

SCHEMA = TableSchema.of(
    pa.schema({"k": pa.int64(), "total": pa.int64()}),
    keys=["k"],
    engine=MergeEngine(Engine.AGGREGATION, {"total": Rule.SUM}),
)

FAULTS = [
    pytest.param(kind, moment, id=f"{kind.__name__} {moment.value}")
    for kind in (KilledError, BrokenError)
    for moment in Moment
]


def rows(index: int) -> pa.Table:
    """Return rows of which one key is of all appends, and one of this alone."""
    return pa.table({"k": [0, 1 + index], "total": [10**index, 1]})


def call(table: Table, index: int) -> Append:
    head = table.log.head()
    with Stash(head.schema) as stash:
        for batch in rows(index).to_batches():
            stash.add(envelope_of_rows(head.schema, batch.schema, deletes=None).commands(batch))
        found = sealed(head.schema, stash, own(index), LateRows.FAIL)
    assert found is not None
    return found


def own(index: int) -> Transaction:
    return Transaction(writer=f"w{index}", number=0)


def together(table: Table) -> list[AppendResult]:
    """Append all as one round."""
    calls = [call(table, index) for index in range(COUNT)]
    return append_together(table.log, table.at(), calls, table.commit, admission=table.admission(0))


def one_by_one(table: Table) -> list[AppendResult]:
    """Append each by itself, the last one first."""
    return [table.upsert(rows(i), transaction=own(i)) for i in reversed(range(COUNT))]


def new_store() -> MemoryStore:
    store = MemoryStore()
    table = Table(store)
    table.ensure(SCHEMA)
    table.upsert(pa.table({"k": [0], "total": [5]}))
    return store


def try_under(store: Store, steps: Steps) -> list[AppendResult]:
    """Append all as one round in a process that may fail; a dead one tells nothing."""
    forget_runs_and_logs()
    try:
        return together(Table(FaultyStore(store, steps)))
    except KilledError:
        return []
    except BrokenError as error:  # Before the round: a look at the table.
        return [error] * COUNT


def faults(
    kind: type[BaseException], moment: Moment
) -> Iterator[tuple[Store, Steps, list[AppendResult]]]:
    for step in range(STEPS_MAX):
        store, steps = new_store(), Steps(Fault(step, moment, kind))
        told = try_under(store, steps)
        if not steps.struck:
            return
        yield store, steps, told
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("again", [together, one_by_one])
@pytest.mark.parametrize(("kind", "moment"), FAULTS)
def test_behind_a_fault_at_any_step_and_a_retry_each_append_is_applied_once(
    kind: type[BaseException], moment: Moment, again: Callable[[Table], list[AppendResult]]
) -> None:
    count = 0
    for store, steps, told in faults(kind, moment):
        count += 1
        forget_runs_and_logs()
        fresh = Table(store)
        seen = len(fresh.log.head().transactions)
        assert seen in (0, COUNT), f"a part of a version is there: {steps.names[-1]}"
        if told:
            errors = [each for each in told if isinstance(each, Exception)]
            assert len(errors) in (0, COUNT), "all of them are told the same"
            assert not (errors == [] and seen == 0), "told, and not there"
            assert APART not in told
        for each in again(fresh):
            assert isinstance(each, Commit) is (seen == 0)
        totals = dict(
            zip(
                *(fresh.snapshot().sort_by("k").column(n).to_pylist() for n in ("k", "total")),
                strict=True,
            )
        )
        assert totals == {0: 5 + 1111, 1: 1, 2: 1, 3: 1, 4: 1}
        assert all(again_told is None for again_told in together(fresh))
        assert fresh.check().is_sound
    assert count > 10
