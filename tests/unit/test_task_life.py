"""The life of a task, case by case: what may be asked of it when, whatever its drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

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
    Event,
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
    sets = [{name: [numbers(7 * cycle, 7 * cycle + 1)] for name in names} for cycle in range(5)]
    for cycle, rows in enumerate(run(task, sets)):
        assert sorted(rows) == sorted([(7 * cycle,), (7 * cycle + 1,)] * 3)
    statistics = task.statistics
    assert statistics.barriers == 5
    splits = statistics.splits
    assert (splits.total, splits.queued, splits.finished) == (15, 0, 15)
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
        rows = pa.Table.from_batches(batches, NUMBERS)
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
    task = make(TableScan(id="rows"), readers={"rows": watched})
    with pytest.raises(Boom):
        list(task.read("rows", failing(numbers(1))))
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
        pull(task)
        assert reader.batches < 20


INT32 = pa.schema([pa.field("n", pa.int32())])
REFUSED: dict[str, Node] = {
    "node 't': a table_scan has no reader": TableScan(id="t", schema=NUMBERS),
    "node 'f': there is no column 'm' among n": Filter(id="f", input=scan(), where="m > 1"),
    "node 'f': a condition is true or false, 'n \\+ 1' is int64": Filter(
        id="f", input=scan(), where="n + 1"
    ),
    "node 'u': it has no parts": MixedUnion(id="u", parts=()),
    "node 'p': there is no column 'm'": LocalPartition(id="p", parts=(scan(),), keys=("m",)),
    "node 'b': its columns are not those of the part before it: n int32, and n int64": (
        LocalPartition(id="p", parts=(scan("a"), scan("b", INT32)))
    ),
}


@pytest.mark.parametrize(("message", "plan"), REFUSED.items(), ids=REFUSED)
def test_a_plan_that_cannot_run_is_refused(make: Make, message: str, plan: Node) -> None:
    with pytest.raises(PlanError, match=message):
        make(plan)


def test_a_reader_for_nobody_is_refused() -> None:
    with pytest.raises(PlanError, match=r"(?s)for 'rwos'.*Did you mean 'rows'"):
        Task(scan(), readers={"rwos": failing})


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


@pytest.mark.parametrize(
    ("drivers", "message"),
    [(0, "at least 1"), (-1, "at least 1"), (100, "the plan needs 100 threads with 100 drivers")],
)
def test_a_number_of_drivers_that_cannot_be_is_refused(drivers: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Task(scan(), drivers=drivers)


# -- the states

OPEN = State(leaves=frozenset({"a", "b"}))
UNDER_BARRIER = step(OPEN, Plain.REQUEST_BARRIER)[0]
ENDED = step(step(OPEN, NoMoreSplits("a"))[0], NoMoreSplits("b"))[0]
OVER = {
    "finished": step(ENDED, Plain.ALL_ENDED)[0],
    "failed": step(UNDER_BARRIER, Plain.FAIL)[0],
    "aborted": step(UNDER_BARRIER, Plain.ABORT)[0],
}


@pytest.mark.parametrize("state", OVER.values(), ids=OVER)
def test_a_task_that_is_over_does_not_change_any_more(state: State) -> None:
    assert step(state, AddSplit("a")) == (state, Action.PASS_BY)
    assert step(state, Plain.REQUEST_BARRIER) == (state, Action.ALREADY_OVER)
    late: list[Event] = [NoMoreSplits("a"), SetMark("a", 1)]
    for event in (*late, Plain.ALL_DRAINED, Plain.FAIL, Plain.ABORT):
        assert step(state, event) == (state, Action.NOTHING)


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (OPEN, [Plain.PULL]),
        (UNDER_BARRIER, [AddSplit("a"), ReadSplit("a")]),
        (ENDED, [AddSplit("a"), ReadSplit("a"), Plain.REQUEST_BARRIER]),
        *[(state, [ReadSplit("a"), Plain.PULL]) for state in OVER.values()],
    ],
    ids=["open", "under a barrier", "ended", *OVER],
)
def test_events_that_a_state_refuses(state: State, events: list[Event]) -> None:
    for event in events:
        with pytest.raises(TaskError):
            step(state, event)
