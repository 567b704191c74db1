"""Joins in a task: how the rows of their right side reach them, whatever its drivers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, MemoryLimitError, PlanError
from spark_upsert.task import (
    ArrowLookup,
    Group,
    HashJoin,
    IndexLookupJoin,
    JoinKeys,
    JoinType,
    MergeJoin,
    Node,
    Project,
    ProjectedColumn,
    Task,
)
from spark_upsert.task.driver import QUEUED_BATCHES, Exchange
from spark_upsert.task.lifecycle import Monitor
from spark_upsert.task.operator import Signal
from tests.support.tasks import NUMBERS, numbers, run, scan

WAIT_SECONDS = 120
"""Only a test that hangs comes to it."""


def join(kind: type[MergeJoin | HashJoin], how: JoinType) -> Node:
    right = Project(id="renamed", input=scan("right"), columns=(ProjectedColumn("m", "n"),))
    return kind(
        id="joined", left=scan("left"), right=right, how=how, on=JoinKeys.pairs(("n",), ("m",))
    )


def rows_at_barrier(task: Task) -> int:
    """Return how many rows come before the barrier."""
    count = 0
    while True:
        batch, future = task.next()
        count += 0 if batch is None else batch.num_rows
        if batch is None and future is None:
            return count
        if future is not None:
            waited: Future[Any] = future
            waited.result(WAIT_SECONDS)


@pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])
@pytest.mark.parametrize("kind", [MergeJoin, HashJoin], ids=lambda kind: kind.kind)
def test_a_right_side_of_many_batches_is_joined_in_every_barrier(
    kind: type[MergeJoin | HashJoin], drivers: int
) -> None:
    with Task(join(kind, JoinType.FULL), drivers=drivers) as task:
        for left, right in [(5, 9 * QUEUED_BATCHES), (9 * QUEUED_BATCHES, 5), (40, 40)]:
            task.add_split("left", numbers(*range(left)))
            task.add_split("right", numbers(*range(right)))
            task.request_barrier()
            assert rows_at_barrier(task) == max(left, right)


def test_a_consumer_is_told_once_that_it_stands_at_a_barrier() -> None:
    exchange = Exchange(Monitor(), NUMBERS)
    producer, consumer = exchange.add_producer(), exchange.consumer()
    for _ in range(2):
        assert consumer.poll() is Signal.WAIT
        producer.drained()
        assert consumer.poll() is Signal.DRAINED
        assert consumer.poll() is Signal.WAIT
        exchange.pass_barrier()


@pytest.mark.parametrize("is_dropped", [False, True], ids=["a batch is taken", "all is dropped"])
def test_who_was_stopped_by_a_full_queue_is_told_that_there_is_room(is_dropped: bool) -> None:
    progress = Monitor()
    exchange = Exchange(progress, NUMBERS, capacity=2)
    told: list[bool] = []
    producer, consumer = exchange.add_producer(), exchange.consumer()
    producer.add_input(numbers(1)[0])
    producer.add_input(numbers(2)[0])
    assert not producer.needs_input()
    changed = progress.future(progress.changes)
    changed.add_done_callback(lambda _: told.append(producer.needs_input()))
    if is_dropped:
        consumer.drop()
    else:
        consumer.poll()
    assert told == [True]


NAMES = pa.table({"id": pa.array([1, 2, 2]), "name": ["one", "two", "too"]})


def lookup_join(how: JoinType = JoinType.LEFT) -> Node:
    return IndexLookupJoin(id="found", input=scan(), how=how, keys=("n",), prefetch=3)


@pytest.mark.parametrize("drivers", [1, 3], ids=["one driver", "three drivers"])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT], ids=lambda how: how.value)
def test_keys_are_looked_up_before_the_barrier_is_reached(how: JoinType, drivers: int) -> None:
    lookups = {"found": ArrowLookup(NAMES, ["id"])}
    with Task(lookup_join(how), drivers=drivers, lookups=lookups) as task:
        found = run(task, [{"rows": [numbers(*[1, 3, 2] * 9), numbers(2)]}, {}, {"rows": []}])
        lone = [(3, None)] * 9 if how is JoinType.LEFT else []
        expected = sorted([*[(1, "one")] * 9, *lone, *[(2, "two"), (2, "too")] * 10], key=repr)
        assert [sorted(rows, key=repr) for rows in found] == [expected, [], []]


def test_looked_up_rows_come_in_the_order_of_the_input() -> None:
    with Task(lookup_join(), lookups={"found": ArrowLookup(NAMES, ["id"])}) as task:
        (found,) = run(task, [{"rows": [numbers(2, 1, 3, 1)]}])
    assert [row[1] for row in found] == ["two", "too", "one", None, "one"]


def test_a_lookup_join_without_a_lookup_is_refused() -> None:
    with pytest.raises(PlanError, match="node 'found': nothing says where its keys are looked up"):
        Task(lookup_join())


def test_a_lookup_for_nobody_is_refused() -> None:
    lookups = {"fond": ArrowLookup(NAMES, ["id"])}
    with pytest.raises(PlanError, match="there is a lookup for 'fond'") as caught:
        Task(lookup_join(), lookups=lookups)
    assert caught.value.hint == "Did you mean 'found'?"


@pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])
@pytest.mark.parametrize(
    "plan",
    [
        HashJoin(
            id="small",
            left=scan("left"),
            right=Project(id="renamed", input=scan("right"), columns=(ProjectedColumn("m", "n"),)),
            how=JoinType.INNER,
            on=JoinKeys.pairs(("n",), ("m",)),
            memory_bytes_max=100,
        ),
        Group(id="small", input=scan("right"), keys=("n",), memory_bytes_max=100),
    ],
    ids=lambda plan: plan.kind,
)
def test_21_too_much_under_a_barrier_fails_the_task_and_names_the_node(
    plan: Node, drivers: int
) -> None:
    with Task(plan, drivers=drivers) as task:
        task.add_split("right", numbers(*range(100), batch_rows=20))
        done = task.request_barrier()
        with pytest.raises(MemoryLimitError, match="node 'small'"):
            rows_at_barrier(task)
        assert done.done()
        assert task.request_barrier().done(), "it runs no more"


@pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])
def test_a_side_that_does_not_ascend_fails_the_task_and_names_the_node(drivers: int) -> None:
    with Task(join(MergeJoin, JoinType.INNER), drivers=drivers) as task:
        task.add_split("left", numbers(2, 1))
        task.add_split("right", numbers(1, 2))
        task.request_barrier()
        with pytest.raises(DataError, match="node 'joined': the left side must ascend by n"):
            rows_at_barrier(task)
