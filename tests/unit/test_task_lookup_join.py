"""Index lookup joins: what is under way, what waits, and where keys are looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import PlanError
from spark_upsert.plan.nodes import ArrowScan, IndexLookupJoin, JoinType
from spark_upsert.table.table import Table
from spark_upsert.task import Task
from spark_upsert.task.lookup_join import (
    ArrowLookup,
    Lookup,
    LookupJoinRows,
    LookupResult,
    TableLookup,
)
from tests.support.chains import Chain, rows_of

LEFT = pa.schema({"a": pa.int64()})
NAMES = pa.table({"id": pa.array([1, 2, 2, None]), "name": ["one", "two", "too", "none"]})


def plan(
    kind: JoinType = JoinType.INNER, keys: Sequence[str] = ("a",), **settings: Any
) -> IndexLookupJoin:
    scan = ArrowScan(id="rows", schema=LEFT)
    return IndexLookupJoin(id="found", input=scan, how=kind, keys=tuple(keys), **settings)


def batch(*keys: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=LEFT)


class BatchDelay:
    """Doubles each key; a look-up ends when it is let go, by its first key."""

    def __init__(self) -> None:
        self.keys = [pa.field("k", pa.int64())]
        self.schema = pa.schema({"double": pa.int64()})
        self.begun = {key: Event() for key in range(10)}
        self.may_end = {key: Event() for key in range(10)}
        self.error: Exception | None = None

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        first = keys[0][0].as_py()
        self.begun[first].set()
        assert self.may_end[first].wait(60)
        if self.error is not None:
            raise self.error
        doubles = pa.RecordBatch.from_arrays([pa.array(np.asarray(keys[0]) * 2)], names=["double"])
        count = len(keys[0])
        return LookupResult(doubles, np.arange(count), np.ones(count, dtype=np.int64))


@contextmanager
def joining(lookup: Lookup, **settings: Any) -> Iterator[LookupJoinRows]:
    operator = LookupJoinRows(plan(**settings), LEFT, lookup)
    try:
        yield operator
    finally:
        if isinstance(lookup, BatchDelay):
            for event in lookup.may_end.values():
                event.set()
        operator.close()


def let_go(held: BatchDelay, key: int, operator: LookupJoinRows) -> None:
    """Let the look-up end that the operator waits for, and wait for it."""
    future = operator.waiting_on()
    assert future is not None
    held.may_end[key].set()
    future.result(timeout=60)


def awaited(operator: LookupJoinRows) -> pa.RecordBatch:
    """Return the next batch as a driver gets it: what it waits for is asked where there is none."""
    while (found := operator.output()) is None:
        future = operator.waiting_on()
        assert future is not None
        future.result(timeout=60)
    return found


def test_rows_come_in_the_order_of_the_input_whichever_look_up_ends_first() -> None:
    held = BatchDelay()
    with joining(held) as operator:
        operator.add_input(batch(1))
        operator.add_input(batch(2))
        held.may_end[2].set()
        assert held.begun[2].wait(60)
        assert operator.output() is None, "the first look-up is under way"
        let_go(held, 1, operator)
        waited = operator.waiting_on()
        assert waited is not None, "else its end would not be noticed between two looks"
        assert waited.done()
        assert rows_of([awaited(operator), awaited(operator)]) == [
            {"a": 1, "double": 2},
            {"a": 2, "double": 4},
        ]
        assert operator.waiting_on() is None


def test_no_more_look_ups_are_under_way_than_prefetch_says() -> None:
    held = BatchDelay()
    with joining(held, prefetch=2) as operator:
        assert operator.needs_input()
        operator.add_input(batch(1))
        assert operator.needs_input()
        operator.add_input(batch(2))
        assert not operator.needs_input()
        assert held.begun[1].wait(60)
        assert held.begun[2].wait(60), "both are looked up at once"
        let_go(held, 1, operator)
        assert operator.output() is not None
        assert operator.needs_input()


def test_it_drains_if_something_is_under_way_and_takes_nothing_until_it_has() -> None:
    held = BatchDelay()
    with joining(held) as operator:
        assert not operator.start_drain(), "nothing is under way"
        operator.add_input(batch(1))
        assert operator.start_drain()
        assert not operator.needs_input()
        assert not operator.is_drained()
        let_go(held, 1, operator)
        assert operator.output() is not None
        assert operator.output() is None
        assert operator.is_drained()
        assert operator.needs_input(), "the next barrier begins"


def test_an_error_of_a_look_up_is_raised_where_its_rows_would_come_and_names_the_node() -> None:
    held = BatchDelay()
    held.error = OSError("the storage is gone")
    with joining(held) as operator:
        operator.add_input(batch(1))
        with pytest.raises(OSError, match="the storage is gone"):
            let_go(held, 1, operator)
        with pytest.raises(OSError, match="the storage is gone") as caught:
            operator.output()
        assert caught.value.__notes__ == ["It is about the node 'found' of the plan."]


def test_close_waits_for_what_is_under_way_and_releases_it() -> None:
    held = BatchDelay()
    with joining(held, prefetch=2) as operator:
        operator.add_input(batch(1))
        assert held.begun[1].wait(60)
        held.may_end[1].set()
        operator.close()
        assert operator.waiting_on() is None
        assert operator.output() is None
        operator.close()


def test_an_abort_under_a_barrier_leaves_no_look_up_behind() -> None:
    held = BatchDelay()
    for event in held.may_end.values():
        event.set()
    task = Task(plan(), lookups={"found": held})
    task.add_split("rows", [batch(key) for key in range(10)])
    done = task.request_barrier()
    task.next()
    task.abort()
    assert done.done()
    assert not [each.name for each in enumerate_threads() if each.name.startswith("lookup-found")]


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT], ids=["inner", "left"])
@pytest.mark.parametrize(
    "policy", [ErrorPolicy.FAIL, ErrorPolicy.QUARANTINE], ids=lambda p: p.value
)
def test_rows_of_a_table_are_found_as_of_a_version(
    kind: JoinType, policy: ErrorPolicy, tmp_path: Path
) -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["k"], on_error=policy)
    table.upsert(pa.table({"k": [1, 2], "v": ["a", "b"], "gone": [False, False]}), deletes="gone")
    table.upsert(
        pa.table({"k": [1, 2, 3], "v": [None, "B", "c"], "gone": [True, False, False]}),
        deletes="gone",
    )
    expected = {
        1: [(3, None), (1, "a"), (2, "b"), (1, "a"), (9, None)],
        2: [(3, "c"), (1, None), (2, "B"), (1, None), (9, None)],
    }
    for version, rows in expected.items():
        driver = Chain([LookupJoinRows(plan(kind), LEFT, TableLookup(table.at(version)))])
        (joined, _) = driver.run([[batch(3, 1, 2), batch(1, 9)]])
        driver.close()
        if kind is JoinType.INNER:
            rows = [(key, value) for key, value in rows if value is not None]
        assert [(row["a"], row["v"]) for row in rows_of(joined)] == rows


def refused_join(rows: pa.Table = NAMES, **settings: Any) -> Callable[[], object]:
    return lambda: LookupJoinRows(plan(**settings), LEFT, ArrowLookup(rows, ["id"]))


INT32 = NAMES.set_column(0, "id", NAMES["id"].cast(pa.int32()))
SAME_NAME = NAMES.rename_columns(["id", "a"])
REFUSED = {
    "node 'found': an index lookup join is inner or left, found full": (
        refused_join(kind=JoinType.FULL)
    ),
    "node 'found': rows are looked up by id, but there are 2 keys": refused_join(keys=["a", "a"]),
    "node 'found': there is no column 'b' among a": refused_join(keys=["b"]),
    "node 'found': .* 'a' is int64 and 'id' is int32": refused_join(INT32),
    "node 'found': both sides have a column 'a'": refused_join(SAME_NAME),
    "no column 'x' among id, name": lambda: ArrowLookup(NAMES, ["x"]),
    "no column 'y' among id, name": lambda: ArrowLookup(NAMES, ["id"], ["y"]),
}


@pytest.mark.parametrize(("message", "call"), REFUSED.items(), ids=REFUSED)
def test_a_lookup_that_cannot_be_is_refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(PlanError, match=message):
        call()
