"""Limits that are reached, sides that are dropped, and orders that do not depend on time."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.task import (
    Aggregate,
    ArrowLookup,
    ArrowScan,
    AssignUniqueId,
    Group,
    HashJoin,
    IndexLookupJoin,
    JoinKeys,
    JoinType,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Task,
)
from spark_upsert.task.lifecycle import Phase
from tests.support.tasks import numbers, rows_of, run, scan

WAIT_SECONDS = 120
"""Only a test that hangs comes to it."""

DRIVERS = pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])


def rows_at_the_end(task: Task) -> int:
    count = 0
    while True:
        batch, future = task.next()
        count += 0 if batch is None else batch.num_rows
        if batch is None and future is None:
            return count
        if future is not None:
            waited: Future[Any] = future
            waited.result(WAIT_SECONDS)


@DRIVERS
def test_a_limit_over_groups_is_reached_behind_the_last_splits(drivers: int) -> None:
    """The groups come all at once, and more of them than a batch has."""
    plan = Limit(
        id="few", input=Group(id="groups", input=scan(), keys=("n",), batch_rows=10), count=15
    )
    with Task(plan, drivers=drivers) as task:
        task.add_split("rows", numbers(*range(400), batch_rows=100))
        task.no_more_splits("rows")
        assert rows_at_the_end(task) == 15
        assert task.phase is Phase.FINISHED


@DRIVERS
def test_a_count_over_a_limit_that_was_reached_has_a_row_at_each_barrier(drivers: int) -> None:
    plan = Group(
        id="count",
        input=Limit(id="few", input=scan(), count=5),
        aggregates=(Aggregate.of("count", "count"),),
    )
    sets = [{"rows": [numbers(1, 2, 3)]} for _ in range(4)]
    with Task(plan, drivers=drivers) as task:
        assert run(task, sets, is_ended=True) == [[(3,)], [(2,)], [(0,)], [(0,)], [(0,)]]


@DRIVERS
@pytest.mark.parametrize("kind", [MergeJoin, HashJoin], ids=lambda kind: kind.kind)
def test_the_right_side_of_a_join_below_a_limit_that_was_reached_is_not_waited_for(
    kind: type[MergeJoin | HashJoin], drivers: int
) -> None:
    """Its queue is full, nothing takes of it any more, and yet the barrier comes."""
    right = ArrowScan(id="right", schema=pa.schema([("m", pa.int64())]))
    joined = kind(
        id="joined",
        left=scan("left"),
        right=right,
        how=JoinType.LEFT,
        on=JoinKeys.pairs(("n",), ("m",)),
        batch_rows=1,
    )
    plan = MixedUnion(id="both", parts=(Limit(id="few", input=joined, count=1),))
    more = [batch.rename_columns(["m"]) for batch in numbers(*range(50))]
    with Task(plan, drivers=drivers) as task:
        for expected in (1, 0, 0):
            task.add_split("left", numbers(*range(50)))
            task.add_split("right", more)
            task.request_barrier()
            assert rows_at_the_end(task) == expected


@pytest.mark.parametrize("join", [JoinType.LEFT, JoinType.ANTI], ids=lambda kind: kind.value)
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_rows_without_a_key_keep_their_place_in_a_merge_join(
    join: JoinType, batch_rows: int
) -> None:
    """Clustered rows stay clustered: no group comes twice."""
    values = (7, 7, None, None, 8, 9, 9)
    joined = MergeJoin(
        id="joined",
        left=scan("left"),
        right=ArrowScan(id="right", schema=pa.schema([("m", pa.int64())])),
        how=join,
        on=JoinKeys.pairs(("n",), ("m",)),
    )
    plan = Group(
        id="groups",
        input=joined,
        keys=("n",),
        aggregates=(Aggregate.of("count", "count"),),
        is_clustered=True,
    )
    with Task(plan) as task:
        [found] = run(
            task,
            [
                {
                    "left": [numbers(*values, batch_rows=batch_rows)],
                    "right": [[pa.record_batch({"m": pa.array([1], pa.int64())})]],
                }
            ],
        )
    assert found == [(7, 2), (None, 2), (8, 1), (9, 2)]


def test_a_right_row_without_a_key_stands_behind_the_key_before_it() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    joined = MergeJoin(
        id="joined",
        left=scan("left"),
        right=ArrowScan(id="right", schema=schema),
        how=JoinType.RIGHT,
        on=JoinKeys.pairs(("n",), ("b",)),
    )
    rows = [(0, None), (0, 1), (1, None), (1, 2), (1, None), (1, 2), (2, 3), (3, None)]
    right = pa.RecordBatch.from_pylist([{"a": a, "b": b} for a, b in rows], schema=schema)
    with Task(joined) as task:
        [found] = run(task, [{"left": [numbers(1, 2, 2)], "right": [[right]]}])
    given = [row[1:] for row in found]
    assert [a for a, _ in given] == sorted(a for a, _ in given)
    assert sorted(map(repr, given)) == sorted(map(repr, [*rows, (1, 2), (1, 2)]))


def below(counter: str) -> Node:
    if counter == "limit":
        return Limit(id="few", input=scan("left"), count=7)
    return AssignUniqueId(id="ids", input=scan("left"), column="id")


@DRIVERS
@pytest.mark.parametrize("counter", ["limit", "numbers"])
def test_a_side_that_is_dropped_goes_on_counting(counter: str, drivers: int) -> None:
    """The right side is empty, so that no left row is needed; how many were read must not show."""
    plan = MergeJoin(
        id="joined",
        left=below(counter),
        right=ArrowScan(id="right", schema=pa.schema([("m", pa.int64())])),
        how=JoinType.INNER,
        on=JoinKeys.pairs(("n",), ("m",)),
    )
    one = [batch.rename_columns(["m"]) for batch in numbers(1, 5, batch_rows=2)]
    with Task(plan, drivers=drivers) as task:
        assert run(task, [{"left": [numbers(1, 2, 3, 4, 5)]}]) == [[]]
        [found] = run(task, [{"left": [numbers(1, 2, 3, 4, 5)], "right": [one]}])
    assert found == ([(1, 1)] if counter == "limit" else [(1, 5, 1), (5, 9, 5)])


class BatchDelay(ArrowLookup):
    """Finds what rows find, when it is let."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.go = Event()

    def look_up(self, keys: Any) -> Any:
        assert self.go.wait(WAIT_SECONDS)
        return super().look_up(keys)


def test_look_ups_below_a_local_partition_give_one_order_however_long_they_take() -> None:
    found = []
    for first in ("a", "b"):
        rows = pa.table({"k": [1, 2, 3], "m": [10, 20, 30]})
        lookups = {name: BatchDelay(rows, ["k"], ["m"]) for name in "ab"}
        parts = tuple(
            IndexLookupJoin(id=name, input=scan(f"of {name}"), how=JoinType.INNER, keys=("n",))
            for name in "ab"
        )
        with Task(LocalPartition(id="all", parts=parts), lookups=lookups) as task:
            task.add_split("of a", numbers(1, 2))
            task.add_split("of b", numbers(3))
            task.request_barrier()
            lookups[first].go.set()
            given: list[Any] = []
            batch, future = task.next()
            while batch is not None or future is not None:
                if batch is not None:
                    given.append(batch)
                else:
                    lookups["b" if first == "a" else "a"].go.set()
                    assert future is not None
                    future.result(WAIT_SECONDS)
                batch, future = task.next()
            found.append(rows_of(given))
    assert found[0] == found[1] == [(1, 10), (3, 30), (2, 20)]
