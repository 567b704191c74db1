"""Joins, limits and look-ups in a task, whatever its drivers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import MemoryLimitError, PlanError
from spark_upsert.task import (
    Aggregate,
    ArrowLookup,
    ArrowScan,
    AssignUniqueId,
    Filter,
    Group,
    HashJoin,
    IndexLookupJoin,
    JoinKeys,
    JoinType,
    Limit,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    ProjectedColumn,
    Task,
    pipelines,
)
from spark_upsert.task.driver import QUEUED_BATCHES, Exchange
from spark_upsert.task.lifecycle import Monitor, Phase
from spark_upsert.task.operator import Streaming
from tests.support.tasks import NUMBERS, numbers, run, scan

DRIVERS = pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])


def join(
    kind: type[MergeJoin | HashJoin], how: JoinType, left: Node | None = None, **settings: Any
) -> MergeJoin | HashJoin:
    right = Project(id="renamed", input=scan("right"), columns=(ProjectedColumn("m", "n"),))
    on = JoinKeys.pairs(("n",), ("m",))
    return kind(id="joined", left=left or scan("left"), right=right, how=how, on=on, **settings)


def row_count(task: Task) -> int:
    """Return how many rows come before the barrier or the end."""
    return sum(batch.num_rows for batch in task.iter_batches())


@DRIVERS
@pytest.mark.parametrize("kind", [MergeJoin, HashJoin], ids=lambda kind: kind.kind)
def test_a_right_side_of_many_batches_is_joined_in_every_barrier(
    kind: type[MergeJoin | HashJoin], drivers: int
) -> None:
    with Task(join(kind, JoinType.FULL), drivers=drivers) as task:
        for left, right in [(5, 9 * QUEUED_BATCHES), (9 * QUEUED_BATCHES, 5), (40, 40)]:
            task.add_split("left", numbers(*range(left)))
            task.add_split("right", numbers(*range(right)))
            task.request_barrier()
            assert row_count(task) == max(left, right)


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


def test_a_lookup_for_nobody_and_a_join_without_a_lookup_are_refused() -> None:
    with pytest.raises(PlanError, match="node 'found': nothing says where its keys are looked up"):
        Task(lookup_join())
    with pytest.raises(PlanError, match=r"(?s)there is a lookup for 'fond'.*Did you mean 'found'"):
        Task(lookup_join(), lookups={"fond": ArrowLookup(NAMES, ["id"])})


@DRIVERS
@pytest.mark.parametrize(
    "plan",
    [
        join(HashJoin, JoinType.INNER, memory_bytes_max=100),
        Group(id="joined", input=scan("right"), keys=("n",), memory_bytes_max=100),
    ],
    ids=lambda plan: plan.kind,
)
def test_21_too_much_under_a_barrier_fails_the_task_and_names_the_node(
    plan: Node, drivers: int
) -> None:
    with Task(plan, drivers=drivers) as task:
        task.add_split("right", numbers(*range(100), batch_rows=20))
        done = task.request_barrier()
        with pytest.raises(MemoryLimitError, match="node 'joined'"):
            row_count(task)
        assert done.done()
        assert task.request_barrier().done(), "it runs no more"


# -- limits


@DRIVERS
def test_a_limit_over_groups_is_reached_behind_the_last_splits(drivers: int) -> None:
    """The groups come all at once, and more of them than a batch has."""
    plan = Limit(
        id="few", input=Group(id="groups", input=scan(), keys=("n",), batch_rows=10), count=15
    )
    with Task(plan, drivers=drivers) as task:
        task.add_split("rows", numbers(*range(400), batch_rows=100))
        task.no_more_splits("rows")
        assert row_count(task) == 15
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
    limit = Limit(id="few", input=join(kind, JoinType.LEFT, batch_rows=1), count=1)
    plan = MixedUnion(id="both", parts=(limit,))
    with Task(plan, drivers=drivers) as task:
        for expected in (1, 0, 0):
            task.add_split("left", numbers(*range(50)))
            task.add_split("right", numbers(*range(50)))
            task.request_barrier()
            assert row_count(task) == expected


@pytest.mark.parametrize("how", [JoinType.LEFT, JoinType.ANTI], ids=lambda kind: kind.value)
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_rows_without_a_key_keep_their_place_in_a_merge_join(
    how: JoinType, batch_rows: int
) -> None:
    """Clustered rows stay clustered: no group comes twice."""
    values = (7, 7, None, None, 8, 9, 9)
    plan = Group(
        id="groups",
        input=join(MergeJoin, how),
        keys=("n",),
        aggregates=(Aggregate.of("count", "count"),),
        is_clustered=True,
    )
    with Task(plan) as task:
        left = numbers(*values, batch_rows=batch_rows)
        [rows] = run(task, [{"left": [left], "right": [numbers(1)]}])
    assert rows == [(7, 2), (None, 2), (8, 1), (9, 2)]


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
@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        (Limit(id="few", input=scan("left"), count=7), [(1, 1)]),
        (AssignUniqueId(id="ids", input=scan("left"), column="id"), [(1, 5, 1), (5, 9, 5)]),
    ],
    ids=["limit", "numbers"],
)
def test_a_side_that_is_dropped_goes_on_counting(
    counter: Node, expected: list[tuple[int, ...]], drivers: int
) -> None:
    """The right side is empty, so that no left row is needed; how many were read must not show."""
    with Task(join(MergeJoin, JoinType.INNER, counter), drivers=drivers) as task:
        left = numbers(1, 2, 3, 4, 5)
        sets = [{"left": [left]}, {"left": [left], "right": [numbers(1, 5, batch_rows=2)]}]
        assert run(task, sets) == [[], expected]


# -- what is waited for


class Late(Streaming):
    """Gives a batch when what it waits for is there, which comes right behind the look at it."""

    def __init__(self) -> None:
        super().__init__(NUMBERS, lambda batch: batch)
        self._found: Future[None] = Future()

    def output(self) -> Any:
        if self._found.done():
            return super().output()
        self._found.set_result(None)
        return None

    def waiting_on(self) -> Future[Any] | None:
        return self._found


@DRIVERS
def test_what_came_between_two_looks_is_not_waited_for(
    drivers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Late] = []

    def late(*_: object) -> Late:
        made.append(Late())
        return made[-1]

    monkeypatch.setattr(pipelines._Builder, "_operator", late)
    plan = Filter(id="late", input=scan(), where="TRUE")
    with Task(plan, drivers=drivers) as task:
        assert run(task, [{"rows": [numbers(1), numbers(2)]}]) in ([[(1,), (2,)]], [[(2,), (1,)]])
    assert len(made) == drivers
