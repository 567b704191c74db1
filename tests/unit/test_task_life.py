"""The life of a task, case by case: what may be asked of it when, whatever its drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import PlanError, TaskError
from spark_upsert.task import (
    Filter,
    LocalPartition,
    MixedUnion,
    Node,
    Phase,
    TableScan,
    Task,
    Values,
)
from spark_upsert.task.lifecycle import (
    Action,
    AddSplit,
    NoMoreSplits,
    Plain,
    ReadSplit,
    SetMark,
    State,
    step,
)
from tests.support.tasks import NUMBERS, Boom, Watched, numbers, run, scan, values_of

WAIT_SECONDS = 120
"""Only a test that hangs comes to it."""

TEN = numbers(*range(10))


@pytest.fixture(params=[1, 3], ids=["one driver", "three drivers"])
def drivers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


Make = Callable[..., Task]


@pytest.fixture
def make(drivers: int) -> Iterator[Make]:
    tasks: list[Task] = []

    def made(plan: Node | None = None, **settings: object) -> Task:
        task = Task(plan or scan(), drivers=drivers, **settings)  # type: ignore[arg-type]
        tasks.append(task)
        return task

    yield made
    for task in tasks:
        task.close()


def pull(task: Task) -> pa.RecordBatch | None:
    """Pull once, and wait if that is asked for."""
    while True:
        batch, future = task.next()
        if future is None:
            return batch
        future.result(WAIT_SECONDS)


def is_done(future: Future[None]) -> bool:
    future.result(WAIT_SECONDS)
    return True


def test_case_2_no_barrier_behind_the_last_split(make: Make) -> None:
    task = make()
    task.no_more_splits("rows")
    with pytest.raises(TaskError, match="node 'rows': a barrier was requested, but no more splits"):
        task.request_barrier()
    assert task.statistics.barriers == 0


def test_case_3_no_split_under_a_barrier_which_completes_all_the_same(make: Make) -> None:
    task = make()
    task.add_split("rows", TEN)
    done = task.request_barrier()
    with pytest.raises(TaskError, match="node 'rows': a split was added under a barrier"):
        task.add_split("rows", TEN)
    assert sorted(values_of(task.iter_batches())) == list(range(10))
    assert is_done(done)
    assert task.add_split("rows", TEN), "behind the barrier it is welcome"


def test_case_4_two_who_ask_wait_for_one_barrier(make: Make) -> None:
    task = make()
    first, second = task.request_barrier(), task.request_barrier()
    assert not first.done()
    assert not second.done()
    assert pull(task) is None
    assert is_done(first)
    assert is_done(second)
    assert task.statistics.barriers == 1


def test_case_5_nothing_is_pulled_without_an_aim(make: Make) -> None:
    task = make()
    task.add_split("rows", TEN)
    with pytest.raises(TaskError, match="there is no barrier, and rows may get more splits"):
        task.next()


def test_case_6_batches_then_the_barrier_then_the_end(make: Make) -> None:
    task = make()
    task.add_split("rows", TEN)
    task.request_barrier()
    assert [pull(task) is not None for _ in range(11)] == [*[True] * 10, False]
    with pytest.raises(TaskError, match="there is no barrier"):
        task.next()
    task.no_more_splits("rows")
    assert pull(task) is None
    assert task.phase is Phase.FINISHED
    with pytest.raises(TaskError, match="a task that is finished"):
        task.next()


def test_case_7_an_abort_fulfils_the_future_and_finishes_no_split(make: Make) -> None:
    reader = Watched()
    task = make(readers={"rows": reader})
    task.add_split("rows", numbers(*range(100)))
    done = task.request_barrier()
    assert sum(pull(task) is not None for _ in range(50)) == 50
    task.abort()
    assert is_done(done)
    assert task.phase is Phase.ABORTED
    assert task.statistics.barriers == 1
    assert task.statistics.splits.finished == 0
    assert (reader.opened, reader.closed) == (1, 1)
    with pytest.raises(TaskError, match="a task that is aborted"):
        task.next()


def failing(split: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from split
    raise Boom("the disk is gone")


def test_case_8_a_failure_under_a_barrier(make: Make, drivers: int) -> None:
    task = make(readers={"rows": failing})
    task.add_split("rows", numbers(*range(5)))
    done = task.request_barrier()
    taken: list[pa.RecordBatch] = []
    with pytest.raises(Boom, match="the disk is gone") as caught:
        taken.extend(task.iter_batches())
    assert caught.value.__notes__ == ["It is about the node 'rows' of the plan."]
    assert is_done(done)
    assert task.phase is Phase.FAILED
    with pytest.raises(TaskError, match="a task that is failed"):
        task.next()


def test_case_8_with_one_driver_all_before_the_failure_comes_out() -> None:
    with Task(scan(), readers={"rows": failing}) as task:
        task.add_split("rows", numbers(*range(5)))
        task.request_barrier()
        assert values_of(pull(task) for _ in range(5)) == list(range(5))
        with pytest.raises(Boom):
            task.next()


def test_case_9_a_barrier_of_a_finished_task_is_over_already(make: Make) -> None:
    task = make()
    task.no_more_splits("rows")
    assert pull(task) is None
    assert task.request_barrier().done()
    assert task.statistics.barriers == 0
    assert not task.add_split("rows", TEN), "who comes too late is passed by"


def test_case_10_barriers_are_no_splits(make: Make) -> None:
    names = ("a", "b", "c")
    task = make(LocalPartition(id="all", parts=tuple(map(scan, names)), keys=("n",)))
    sets: list[dict[str, list[Any]]] = [
        {name: [numbers(7 * cycle, 7 * cycle + 1)] for name in names} for cycle in range(5)
    ]
    for cycle, rows in enumerate(run(task, sets)):
        assert sorted(rows) == sorted([(7 * cycle,), (7 * cycle + 1,)] * 3)
    statistics = task.statistics
    assert statistics.barriers == 5
    assert (statistics.splits.total, statistics.splits.queued, statistics.splits.finished) == (
        *(15, 0),
        15,
    )
    assert statistics.rows == 30


def test_case_11_a_barrier_behind_nothing_is_reached_at_once(make: Make) -> None:
    task = make()
    for count in (1, 2, 3):
        done = task.request_barrier()
        assert pull(task) is None
        assert is_done(done)
        assert task.statistics.barriers == count
    assert task.statistics.rows == 0


def test_case_11a_splits_that_are_done_are_passed_by(make: Make) -> None:
    task = make()
    task.set_max_sequence("rows", 5)
    splits = {4: numbers(4), 5: numbers(5), 6: numbers(6)}
    added = [task.add_split("rows", split, number) for number, split in splits.items()]
    assert added == [False, False, True]
    task.request_barrier()
    assert values_of(task.iter_batches()) == [6]
    assert task.add_split("rows", numbers(6), 6), "adding does not move the mark"
    task.set_max_sequence("rows", 3)
    assert not task.add_split("rows", numbers(5), 5), "the mark never falls"
    assert task.add_split("rows", numbers(1)), "a split without a number has no mark"


def test_the_end_without_any_barrier(make: Make) -> None:
    task = make()
    task.add_split("rows", TEN)
    task.no_more_splits("rows")
    assert sorted(values_of(task.iter_batches())) == list(range(10))
    assert task.phase is Phase.FINISHED


def test_a_leaf_may_end_under_a_barrier(make: Make) -> None:
    task = make()
    task.add_split("rows", TEN)
    task.request_barrier()
    task.no_more_splits("rows")
    assert sorted(values_of(task.iter_batches())) == list(range(10))
    before = task.phase
    assert pull(task) is None
    assert (before, task.phase) == (Phase.OPEN, Phase.FINISHED)


def test_a_barrier_takes_time_which_is_counted_by_the_second() -> None:
    times = iter([0.0, 0.5, 10.0, 12.999, 100.0, 200.0])
    with Task(scan(), clock=lambda: next(times)) as task:
        run(task, [{"rows": []}] * 3)
        histogram = task.statistics.histogram
    assert len(histogram) == 30
    assert {second: count for second, count in enumerate(histogram) if count} == {0: 1, 2: 1, 29: 1}


def test_closing_twice_is_harmless(make: Make) -> None:
    task = make()
    task.close()
    task.close()
    assert task.phase is Phase.ABORTED


def test_nothing_is_left_behind_a_failure(make: Make) -> None:
    """A part that fails takes the others with it, which are closed where they stand."""
    other = Watched()
    plan = LocalPartition(id="both", parts=(scan("a"), scan("b")))
    task = make(plan, readers={"a": failing, "b": other})
    task.add_split("b", numbers(*range(1000)))
    task.add_split("a", numbers(1))
    done = task.request_barrier()
    with pytest.raises(Boom):
        for _ in task.iter_batches():
            pass
    assert is_done(done)
    assert other.opened == other.closed
    assert not any(thread.is_alive() for thread in task._threads)


# -- a split and its barrier at once


@pytest.mark.parametrize(
    "plan",
    [scan(), Filter(id="odd", input=scan(), where="n % 2 = 1")],
    ids=["a scan alone", "a filter above it"],
)
def test_one_read_is_a_split_and_a_barrier(make: Make, plan: Node) -> None:
    at_once, apart = make(plan), make(plan)
    for batches in (TEN, [], numbers(1, 3, 5, batch_rows=2)):
        if batches:
            rows = pa.Table.from_batches(batches)
        else:
            rows = NUMBERS.empty_table()
        apart.add_split("rows", rows)
        apart.request_barrier()
        wanted = values_of(apart.iter_batches())
        assert sorted(values_of(at_once.read("rows", rows))) == sorted(wanted)
        assert at_once.phase is Phase.OPEN
    assert at_once.statistics == apart.statistics
    at_once.no_more_splits("rows")
    assert not values_of(at_once.iter_batches())
    assert at_once.phase is Phase.FINISHED


def test_a_read_comes_behind_the_splits_that_wait(make: Make) -> None:
    task = make()
    task.add_split("rows", pa.Table.from_batches(numbers(1, 2)))
    found = values_of(task.read("rows", pa.Table.from_batches(numbers(3))))
    assert sorted(found) == [1, 2, 3]
    assert task.statistics.splits.finished == 2


def test_a_read_is_refused_under_a_barrier_and_behind_the_end(make: Make) -> None:
    task = make()
    task.add_split("rows", pa.Table.from_batches(TEN))
    task.request_barrier()
    with pytest.raises(TaskError, match="under a barrier"):
        list(task.read("rows", pa.Table.from_batches(TEN)))
    assert len(values_of(task.iter_batches())) == 10
    task.abort()
    with pytest.raises(TaskError, match="aborted"):
        list(task.read("rows", pa.Table.from_batches(TEN)))


def test_a_read_that_fails_closes_all(make: Make) -> None:
    watched = Watched()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from numbers(1)
        raise Boom

    task = make(TableScan(id="rows"), readers={"rows": watched})
    with pytest.raises(Boom):
        list(task.read("rows", failing()))
    assert task.phase is Phase.FAILED
    assert watched.opened == watched.closed == 1


def test_a_read_ends_with_the_task(make: Make) -> None:
    watched = Watched()
    task = make(TableScan(id="rows"), readers={"rows": watched})
    rows = task.read("rows", numbers(1, 2, 3))
    next(rows)
    task.abort()
    with pytest.raises(TaskError, match="aborted"):
        list(rows)
    assert watched.opened == watched.closed == 1


def test_a_task_that_is_not_pulled_waits_within_bounds() -> None:
    reader = Watched()
    with Task(scan(), drivers=2, readers={"rows": reader}) as task:
        task.add_split("rows", numbers(*range(1000)))
        task.request_barrier()
        batch, future = task.next()
        while batch is None and future is not None:
            future.result(WAIT_SECONDS)
            batch, future = task.next()
        assert reader.batches < 20


@pytest.mark.parametrize(
    ("plan", "readers", "message"),
    [
        pytest.param(
            TableScan(id="t", schema=NUMBERS), {}, "node 't': a table_scan has no reader", id="none"
        ),
        pytest.param(
            scan(), {"rwos": failing}, "(?s)for 'rwos'.*Did you mean 'rows'", id="unknown"
        ),
        pytest.param(
            Filter(id="f", input=scan(), where="m > 1"),
            {},
            "node 'f': there is no column 'm' among n",
            id="a column that is not there",
        ),
        pytest.param(
            Filter(id="f", input=scan(), where="n + 1"),
            {},
            "node 'f': a condition is true or false, 'n \\+ 1' is int64",
            id="no condition",
        ),
        pytest.param(MixedUnion(id="u", parts=()), {}, "node 'u': it has no parts", id="no parts"),
        pytest.param(
            LocalPartition(id="p", parts=(scan(),), keys=("m",)),
            {},
            "node 'p': there is no column 'm'",
            id="no key",
        ),
        pytest.param(
            LocalPartition(
                id="p", parts=(scan("a"), scan("b", pa.schema([pa.field("n", pa.int32())])))
            ),
            {},
            "node 'b': its columns are not those of the part before it: n int32, and n int64",
            id="parts that differ",
        ),
    ],
)
def test_a_plan_that_cannot_run_is_refused(
    make: Make, plan: Node, readers: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        make(plan, readers=readers)


def test_a_split_for_nobody_is_refused(make: Make) -> None:
    task = make()
    for call in (task.no_more_splits, lambda name: task.add_split(name, TEN)):
        with pytest.raises(PlanError, match=r"(?s)no scan 'row' in the plan.*Did you mean 'rows'"):
            call("row")
    given = make(Values(id="v", rows=pa.table({"n": [1]})))
    with pytest.raises(PlanError, match=r"(?s)no scan 'v'.*no leaf that takes splits"):
        given.add_split("v", TEN)


def test_a_split_of_other_columns_is_refused(make: Make) -> None:
    task = make()
    task.add_split("rows", pa.table({"m": [1]}))
    task.request_barrier()
    with pytest.raises(PlanError, match="node 'rows': a split has the columns m int64, its scan"):
        pull(task)


@pytest.mark.parametrize("drivers", [0, -1])
def test_there_is_a_driver(drivers: int) -> None:
    with pytest.raises(PlanError, match="at least 1"):
        Task(scan(), drivers=drivers)


def test_threads_have_a_bound() -> None:
    with pytest.raises(PlanError, match="the plan needs 100 threads with 100 drivers, at most 64"):
        Task(scan(), drivers=100)


# -- the table itself ------------------------------------------------------------------------

OPEN = State(leaves=frozenset({"a", "b"}))
UNDER = step(OPEN, Plain.REQUEST_BARRIER)[0]
ENDED = step(step(OPEN, NoMoreSplits("a"))[0], NoMoreSplits("b"))[0]
FINISHED = step(ENDED, Plain.ALL_ENDED)[0]
FAILED = step(UNDER, Plain.FAIL)[0]
ABORTED = step(UNDER, Plain.ABORT)[0]
MARKED = step(OPEN, SetMark("a", 5))[0]
OVER = [FINISHED, FAILED, ABORTED]

ROWS = [
    *[(OPEN, AddSplit("a"), Action.QUEUE), (OPEN, AddSplit("a", 1), Action.QUEUE)],
    *[(MARKED, AddSplit("a", 5), Action.PASS_BY), (MARKED, AddSplit("a", 6), Action.QUEUE)],
    *[(MARKED, AddSplit("b", 5), Action.QUEUE), (MARKED, AddSplit("a"), Action.QUEUE)],
    *[(state, AddSplit("a"), Action.PASS_BY) for state in OVER],
    *[(state, ReadSplit("a"), Action.QUEUE) for state in (OPEN, MARKED)],
    *[(state, NoMoreSplits("a"), Action.END_LEAF) for state in (OPEN, UNDER, ENDED)],
    *[(state, NoMoreSplits("a"), Action.NOTHING) for state in OVER],
    *[(state, SetMark("a", 1), Action.NOTHING) for state in (OPEN, UNDER, *OVER)],
    (OPEN, Plain.REQUEST_BARRIER, Action.BEGIN_BARRIER),
    (UNDER, Plain.REQUEST_BARRIER, Action.JOIN_BARRIER),
    *[(state, Plain.REQUEST_BARRIER, Action.ALREADY_OVER) for state in OVER],
    *[(state, Plain.PULL, Action.NOTHING) for state in (UNDER, ENDED)],
    (UNDER, Plain.ALL_DRAINED, Action.END_BARRIER),
    *[(state, Plain.ALL_DRAINED, Action.NOTHING) for state in OVER],
    *[(state, Plain.ALL_ENDED, Action.RELEASE) for state in (UNDER, ENDED)],
    *[
        (state, event, Action.RELEASE)
        for state in (OPEN, UNDER)
        for event in (Plain.FAIL, Plain.ABORT)
    ],
    *[(state, event, Action.NOTHING) for state in OVER for event in (Plain.FAIL, Plain.ABORT)],
]


@pytest.mark.parametrize(
    ("state", "event", "action"),
    ROWS,
    ids=[f"{state.phase.value}, {event}: {action.name}" for state, event, action in ROWS],
)
def test_what_is_done(state: State, event: object, action: Action) -> None:
    after, found = step(state, event)  # type: ignore[arg-type]
    assert found is action
    begins = action is Action.BEGIN_BARRIER or isinstance(event, ReadSplit)
    assert after.barriers == state.barriers + begins
    if begins:
        assert after.phase is Phase.UNDER_BARRIER
    if not state.phase.is_running:
        assert after == state, "nothing changes any more"


@pytest.mark.parametrize(
    ("state", "event"),
    [
        *[(UNDER, AddSplit("a")), (ENDED, AddSplit("a")), (ENDED, Plain.REQUEST_BARRIER)],
        *[(state, Plain.PULL) for state in (OPEN, *OVER)],
        *[(state, ReadSplit("a")) for state in (UNDER, ENDED, *OVER)],
    ],
    ids=lambda case: case.phase.value if isinstance(case, State) else str(case),
)
def test_what_is_refused(state: State, event: object) -> None:
    with pytest.raises(TaskError):
        step(state, event)  # type: ignore[arg-type]
