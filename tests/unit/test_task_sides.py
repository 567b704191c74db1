"""Joins in a task: how the rows of their right side reach them, whatever its drivers."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Condition
from typing import Any

import pytest

from spark_upsert.task import HashJoin, JoinKind, MergeJoin, Node, Project, Task
from spark_upsert.task.exchange import QUEUED_BATCHES, Exchange
from spark_upsert.task.operators.operator import Signal
from tests.support.tasks import NUMBERS, numbers, scan

WAIT_SECONDS = 120
"""Only a test that hangs comes to it."""


def join(kind: type[MergeJoin | HashJoin], how: JoinKind) -> Node:
    right = Project(id="renamed", input=scan("right"), columns=(("m", "n"),))
    return kind(
        id="joined", left=scan("left"), right=right, join=how, left_keys=("n",), right_keys=("m",)
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
    with Task(join(kind, JoinKind.FULL), drivers=drivers) as task:
        for left, right in [(5, 9 * QUEUED_BATCHES), (9 * QUEUED_BATCHES, 5), (40, 40)]:
            task.add_split("left", numbers(*range(left)))
            task.add_split("right", numbers(*range(right)))
            task.request_barrier()
            assert rows_at_barrier(task) == max(left, right)


def test_a_consumer_is_told_once_that_it_stands_at_a_barrier() -> None:
    exchange = Exchange(Condition(), NUMBERS)
    producer, consumer = exchange.add_producer(), exchange.consumer()
    for _ in range(2):
        assert consumer.poll() is Signal.WAIT
        producer.drained()
        assert consumer.poll() is Signal.DRAINED
        assert consumer.poll() is Signal.WAIT
        exchange.pass_barrier()


@pytest.mark.parametrize("is_dropped", [False, True], ids=["a batch is taken", "all is dropped"])
def test_who_was_stopped_by_a_full_queue_is_told_that_there_is_room(is_dropped: bool) -> None:
    exchange = Exchange(Condition(), NUMBERS, capacity=2)
    told: list[bool] = []
    producer, consumer = exchange.add_producer(), exchange.consumer()
    exchange.is_relieved = lambda: told.append(producer.needs_input())
    producer.add_input(numbers(1)[0])
    producer.add_input(numbers(2)[0])
    assert not producer.needs_input()
    if is_dropped:
        consumer.drop()
    else:
        consumer.poll()
    assert told == [True]
