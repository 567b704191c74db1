"""Rows of plans at each barrier, case by case, with one driver and with several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, PlanError
from spark_upsert.task import (
    Aggregate,
    AssignUniqueId,
    Filter,
    Group,
    HashJoin,
    JoinKeys,
    JoinType,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    ProjectedColumn,
    Task,
    Unnest,
    Values,
)
from spark_upsert.task.driver import (
    BatchDistributor,
    ChainStage,
    Driver,
    Exchange,
    partition_by_keys,
)
from spark_upsert.task.lifecycle import Monitor
from spark_upsert.task.operator import Signal, Streaming
from tests.support.tasks import NUMBERS, Fed, Watched, numbers, rows_of, run, scan, values_of

PAIRS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
Rows = list[tuple[Any, ...]]


def pairs(*rows: tuple[int | None, int | None]) -> list[pa.RecordBatch]:
    """Return a split of pairs, one batch."""
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return [pa.record_batch(columns, schema=PAIRS)]


def singles(*values: Any) -> Rows:
    return [(value,) for value in values]


def sums(*, is_clustered: bool = False, batch_rows: int = 1 << 14) -> Node:
    return Group(
        id="sums",
        input=scan(schema=PAIRS),
        keys=("k",),
        aggregates=(Aggregate.of("s", "sum", "v"),),
        is_clustered=is_clustered,
        batch_rows=batch_rows,
    )


def of_all(function: str, column: str | None) -> Node:
    return Group(id="all", input=scan(), aggregates=(Aggregate.of("a", function, column),))


def project(*columns: tuple[str, str]) -> Node:
    return Project(
        id="made", input=scan(), columns=tuple(ProjectedColumn(*each) for each in columns)
    )


def join(kind: type[MergeJoin | HashJoin], how: JoinType) -> Node:
    right = Project(id="renamed", input=scan("right"), columns=(ProjectedColumn("m", "n"),))
    return kind(
        id="joined", left=scan("left"), right=right, how=how, on=JoinKeys.pairs(("n",), ("m",))
    )


@dataclass(frozen=True)
class Case:
    """A plan, its sets of splits, and the rows of each; the last ones are of the end."""

    name: str
    plan: Node
    sets: list[dict[str, list[Any]]]
    expected: list[Rows]
    without: Rows | None = None
    is_ended: bool = False


def of_rows(*sets: Sequence[Any]) -> list[dict[str, list[Any]]]:
    return [{"rows": list(splits)} for splits in sets]


LISTS = pa.schema([pa.field("id", pa.int64()), pa.field("l", pa.list_(pa.int64()))])
NINE = Values(id="given", rows=pa.table({"n": [9]}))
POSITIVE = Filter(id="some", input=scan(schema=PAIRS), where="v > 0")
PARTITIONED = LocalPartition(id="shared", parts=(POSITIVE,), keys=("k",))

CASES = [
    Case(
        "1: a hash join, which the original refuses, is empty behind a barrier",
        join(HashJoin, JoinType.INNER),
        [{"left": [numbers(1, 2)], "right": [numbers(2)]}, {"left": [numbers(2)]}],
        [[(2, 2)], []],
        [(2, 2), (2, 2)],
    ),
    Case(
        "12: hash aggregation",
        sums(),
        of_rows([pairs((1, 10), (1, 20), (2, 70))], [pairs((1, 50), (3, 130), (4, 80))]),
        [[(1, 30), (2, 70)], [(1, 50), (3, 130), (4, 80)]],
        [(1, 80), (2, 70), (3, 130), (4, 80)],
    ),
    Case(
        "12a: streaming aggregation",
        sums(is_clustered=True),
        of_rows([pairs((1, 10), (2, 5))], [pairs((2, 7), (3, 1))]),
        [[(1, 10), (2, 5)], [(2, 7), (3, 1)]],
        [(1, 10), (2, 12), (3, 1)],
    ),
    Case(
        "15: global sum",
        of_all("sum", "n"),
        of_rows([numbers(100)], [numbers(260)]),
        [[(100,)], [(260,)], [(None,)]],
        [(360,)],
        is_ended=True,
    ),
    Case(
        "16: global count",
        of_all("count", None),
        of_rows([numbers(1, 2, 3)], [numbers(4)]),
        [[(3,)], [(1,)], [(0,)]],
        [(4,)],
        is_ended=True,
    ),
    Case(
        "17: distinct",
        Group(id="distinct", input=scan(), keys=("n",)),
        of_rows([numbers(1, 2, 1)], [numbers(1, 3, 4)]),
        [singles(1, 2), singles(1, 3, 4)],
        singles(1, 2, 3, 4),
    ),
    Case(
        "23: a full merge join shows the rows of both sides, of one barrier each",
        join(MergeJoin, JoinType.FULL),
        [
            {"left": [numbers(1, 2)], "right": [numbers(2, 3, 4)]},
            {"left": [numbers(5)]},
            {"right": [numbers(1)]},
        ],
        [[(1, None), (2, 2), (None, 3), (None, 4)], [(5, None)], [(None, 1)]],
    ),
    Case(
        "26: mixed union",
        MixedUnion(id="mixed", parts=(scan("a"), scan("b"), scan("c"))),
        [{"a": [numbers(1, 2)], "c": [numbers(3)]}, {"b": [numbers(4)], "c": [numbers(5, 6)]}],
        [singles(1, 3, 2), singles(4, 5, 6)],
    ),
    Case(
        "filter",
        Filter(id="few", input=scan(), where="n > 1"),
        of_rows([numbers(1, None, 2)], [numbers(3), numbers(0)]),
        [singles(2), singles(3)],
        singles(2, 3),
    ),
    Case(
        "project",
        project(("m", "n * 2"), ("n", "n")),
        of_rows([numbers(1)], [numbers(None)]),
        [[(2, 1)], [(None, None)]],
        [(2, 1), (None, None)],
    ),
    Case(
        "unnest with places, which begin anew in each list",
        Unnest(id="each", input=scan(schema=LISTS), column="l", position="pos"),
        of_rows(
            [pa.table({"id": [1, 2, 3, 4], "l": [[4, 5], [], None, [6]]}, schema=LISTS)],
            [pa.table({"id": [5], "l": [[None]]}, schema=LISTS)],
        ),
        [[(1, 0, 4), (1, 1, 5), (4, 0, 6)], [(5, 0, None)]],
    ),
    Case(
        "limit and offset go on counting over barriers",
        Limit(id="few", input=scan(), count=3, offset=1),
        of_rows([numbers(1, 2)], [numbers(3)], [numbers(4, 5)]),
        [singles(2), singles(3), singles(4)],
        singles(2, 3, 4),
    ),
    Case(
        "rows of values come at each barrier, and at the end only if there was none",
        NINE,
        [{}, {}],
        [singles(9), singles(9), []],
        singles(9),
        is_ended=True,
    ),
    Case(
        "rows of values beside splits",
        MixedUnion(id="mixed", parts=(scan(), NINE)),
        of_rows([numbers(1)], []),
        [singles(1, 9), singles(9), []],
        singles(1, 9),
        is_ended=True,
    ),
    Case(
        "local partition",
        LocalPartition(id="all", parts=(scan("a"), scan("b")), keys=("n",)),
        [{"a": [numbers(1, 2)], "b": [numbers(3)]}, {"b": [numbers(4)]}],
        [singles(1, 2, 3), singles(4)],
        singles(1, 2, 3, 4),
    ),
    Case(
        "groups whose rows are partitioned by their key",
        Group(
            id="sums", input=PARTITIONED, keys=("k",), aggregates=(Aggregate.of("s", "sum", "v"),)
        ),
        of_rows(
            [pairs(*[(n % 7, 1) for n in range(70)]), pairs((1, 5), (None, 3), (2, -9))],
            [pairs((1, 1))],
        ),
        [[(None, 3), *[(k, 15 if k == 1 else 10) for k in range(7)]], [(1, 1)]],
    ),
]


def in_any_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def add_splits(task: Task, splits: dict[str, list[Any]]) -> None:
    for name, each in splits.items():
        for split in each:
            task.add_split(name, split)


@pytest.mark.parametrize("drivers", [1, 3], ids=["one driver", "three drivers"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_of_a_plan_with_and_without_barriers(case: Case, drivers: int) -> None:
    with Task(case.plan, drivers=drivers) as task:
        sets = run(task, case.sets, is_ended=case.is_ended)
    assert list(map(in_any_order, sets)) == list(map(in_any_order, case.expected))
    if isinstance(case.plan, MixedUnion):
        assert sets == case.expected, "in this very order"
    if case.without is None:
        return
    with Task(case.plan, drivers=drivers) as task:
        for splits in case.sets:
            add_splits(task, splits)
        for name in {name for splits in case.sets for name in splits}:
            task.no_more_splits(name)
        assert in_any_order(rows_of(task.iter_batches())) == in_any_order(case.without)


def test_case_13_a_batch_is_not_filled_across_a_barrier() -> None:
    sets: list[list[int | None]] = [[1, 2, None, 3, 4], [9, 10, 11, 12], [17, 18, 19]]
    splits = [pairs(*[(k, 1) for k in keys]) for keys in sets]
    with Task(sums(is_clustered=True, batch_rows=20)) as task:
        counts: list[list[int]] = []
        for split in splits:
            task.add_split("rows", split)
            task.request_barrier()
            counts.append([batch.num_rows for batch in task.iter_batches()])
        assert counts == [[5], [4], [3]]
        for split in splits:
            task.add_split("rows", split)
        task.no_more_splits("rows")
        assert [batch.num_rows for batch in task.iter_batches()] == [12]


@pytest.mark.parametrize("has_barriers", [True, False], ids=["with barriers", "without"])
def test_case_18_an_unnest_cuts_each_batch_for_itself(has_barriers: bool) -> None:
    plan = Unnest(id="each", input=scan(schema=LISTS), column="l", batch_rows=23)
    split = pa.record_batch({"id": range(100), "l": [[0, 1, 2]] * 100}, schema=LISTS)
    with Task(plan) as task:
        counts = []
        for _ in range(5):
            task.add_split("rows", split)
            if has_barriers:
                task.request_barrier()
                counts += [batch.num_rows for batch in task.iter_batches()]
        task.no_more_splits("rows")
        counts += [batch.num_rows for batch in task.iter_batches()]
    assert counts == [*[23] * 13, 1] * 5


@pytest.mark.parametrize("drivers", [1, 3], ids=["one driver", "three drivers"])
def test_case_20_numbers_are_unique_over_all_barriers(drivers: int) -> None:
    plan = AssignUniqueId(id="numbered", input=scan(), column="id", first=7)
    with Task(plan, drivers=drivers) as task:
        found = run(task, of_rows([numbers(5, 5)], [], [numbers(5, 5)]))
    assert [[row[1] for row in rows] for rows in found] == [[7, 8], [], [9, 10]]


def test_numbers_come_to_an_end() -> None:
    plan = AssignUniqueId(id="numbered", input=scan(), column="id", first=2**63 - 2)
    with Task(plan) as task:
        assert run(task, of_rows([numbers(1, 1)])) == [[(1, 2**63 - 2), (1, 2**63 - 1)]]
        with pytest.raises(DataError, match="node 'numbered': the numbers in 'id' have come"):
            run(task, of_rows([numbers(1)]))


REFUSED_COLUMNS = {
    "node 'u': there is no column 'l'": Unnest(id="u", input=scan(), column="l"),
    "node 'u': 'n' is int64, and a list is unnested": Unnest(id="u", input=scan(), column="n"),
    "node 'u': the input has a column 'id' already": Unnest(
        id="u", input=scan(schema=LISTS), column="l", position="id"
    ),
    "node 'a': there is a column 'n'": AssignUniqueId(id="a", input=scan(), column="n"),
    "node 'made': two columns are called 'a'": project(("a", "n"), ("a", "n")),
}


@pytest.mark.parametrize(("message", "plan"), REFUSED_COLUMNS.items(), ids=REFUSED_COLUMNS)
def test_columns_that_do_not_fit_are_refused(message: str, plan: Node) -> None:
    with pytest.raises(PlanError, match=message):
        Task(plan)


def test_a_limit_ends_the_task_when_it_is_reached() -> None:
    reader = Watched()
    with Task(Limit(id="few", input=scan(), count=2), readers={"rows": reader}) as task:
        task.add_split("rows", numbers(*range(100)))
        done = task.request_barrier()
        assert values_of(task.iter_batches()) == [0, 1]
        assert done.done()
        assert task.request_barrier().done(), "it runs no more"
    assert reader.batches == 2
    assert reader.closed == reader.opened == 1


# -- giving up early

LONE = [(None, n) for n in range(3, 1001)]


@pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])
@pytest.mark.parametrize(
    ("how", "is_early", "expected"),
    [
        pytest.param(JoinType.INNER, True, [(2, 2)], id="22: inner, the rest is not read"),
        pytest.param(JoinType.LEFT, True, [(1, None), (2, 2)], id="left, the rest is not read"),
        pytest.param(JoinType.ANTI, True, [(1,)], id="24: anti, the rest is not read"),
        pytest.param(JoinType.SEMI, False, [(2,)], id="semi, all is read"),
        pytest.param(JoinType.FULL, False, [(1, None), (2, 2), *LONE], id="23: full, all is read"),
    ],
)
@pytest.mark.sweep(3)
def test_a_side_that_nobody_needs(
    how: JoinType, is_early: bool, expected: Rows, drivers: int
) -> None:
    reader = Watched()
    with Task(join(MergeJoin, how), drivers=drivers, readers={"right": reader}) as task:
        sets = [{"left": [numbers(1, 2)], "right": [numbers(*range(2, 1001))]}]
        for count in (1, 2):
            assert run(task, sets) == [expected], "and behind the barrier all is as before"
            assert task.statistics.splits.finished == 2 * count
            assert task.statistics.splits.queued == 0
            assert (reader.opened, reader.closed) == (count, count)
    assert (reader.batches < 2 * 999) is is_early


def tens(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array([10 * n for n in batch["n"].to_pylist()])], schema=NUMBERS)


def chain(feed: Fed) -> tuple[Driver, Exchange]:
    """Return a driver of a feed and two operators, and where its rows go."""
    exchange = Exchange(Monitor(), NUMBERS)
    stages = [ChainStage(name, Streaming(NUMBERS, tens)) for name in ("first", "second")]
    return Driver("feed", feed, stages, exchange.add_producer()), exchange


def taken(driver: Driver, exchange: Exchange) -> list[int]:
    """Let a driver work as long as it can, and return what came out."""
    found: list[pa.RecordBatch] = []
    while driver.step():
        while not isinstance(item := exchange.poll(0), Signal):
            found.append(item)
    return values_of(found)


BARRIER = Signal.DRAINED


def test_case_30_a_request_behind_the_barrier_is_ignored() -> None:
    feed = Fed(*numbers(1), BARRIER, *numbers(2), BARRIER)
    driver, exchange = chain(feed)
    assert taken(driver, exchange) == [100]
    assert driver.is_at_barrier
    driver.drop_before(2)
    driver.pass_barrier()
    exchange.pass_barrier()
    assert taken(driver, exchange) == [200]


def test_case_31_what_stands_before_is_thrown_away_and_what_stands_behind_is_not() -> None:
    driver, exchange = chain(Fed(*numbers(1, 2, 3)))
    while exchange.poll(0) is Signal.WAIT:
        driver.step()
    # The second one has given a row; of the first one and of the feed nothing comes any more.
    driver.step()
    driver.drop_before(2)
    driver.drop_before(1)
    assert taken(driver, exchange) == []


def test_case_31_rows_of_the_operator_itself_pass() -> None:
    driver, exchange = chain(Fed(*numbers(1)))
    driver.step()
    driver.step()
    driver.drop_before(2)
    assert taken(driver, exchange) == [100]


def test_case_32_behind_the_barrier_nothing_is_thrown_away() -> None:
    feed = Fed(*numbers(1), BARRIER, *numbers(2), BARRIER)
    driver, exchange = chain(feed)
    driver.drop_before(2)
    driver.step()
    assert feed.is_dropped
    assert taken(driver, exchange) == []
    driver.pass_barrier()
    exchange.pass_barrier()
    assert [feed.is_dropped, *taken(driver, exchange)] == [False, 200]


# -- exchanges


def test_case_28_a_consumer_has_drained_when_all_that_live_have_and_its_queue_is_empty() -> None:
    exchange = Exchange(Monitor(), NUMBERS)
    first, second, third = (exchange.add_producer() for _ in range(3))
    first.mark_ended()
    second.add_input(numbers(1)[0])
    second.mark_drained()
    third.mark_drained()
    assert values_of([exchange.poll(0)]) == [1]
    assert exchange.poll(0) is Signal.DRAINED
    assert exchange.poll(0) is Signal.WAIT, "which it is told once"
    exchange.pass_barrier()
    assert exchange.poll(0) is Signal.WAIT
    second.mark_ended()
    second.mark_ended()
    assert exchange.poll(0) is Signal.WAIT, "who ends twice counts once"
    third.mark_drained()
    assert exchange.poll(0) is Signal.DRAINED
    exchange.pass_barrier()
    third.mark_ended()
    assert exchange.poll(0) is Signal.ENDED


def test_equal_keys_come_to_one_consumer() -> None:
    batch = pa.record_batch({"k": [1.0, 2.0, 1.0, None, None, -0.0, 0.0], "v": range(7)})
    homes: dict[Any, set[int]] = {}
    for index, part in partition_by_keys(["k"])(batch, 3):
        for row in part.to_pylist():
            homes.setdefault(row["k"], set()).add(index)
    assert all(len(home) == 1 for home in homes.values())
    assert len(homes) == 4


def test_whole_batches_go_in_turn() -> None:
    route = BatchDistributor()
    assert [route(batch, 3)[0][0] for batch in numbers(1, 2, 3, 4)] == [0, 1, 2, 0]


# -- recovery

PLANS: dict[str, Node] = {
    "filter and project": Project(
        id="p",
        input=Filter(id="f", input=scan("a"), where="n <> 1"),
        columns=(ProjectedColumn("m", "n + 1"),),
    ),
    "sums over a partition": Group(
        id="s",
        input=LocalPartition(id="l", parts=(scan("a"), scan("b")), keys=("n",)),
        keys=("n",),
        aggregates=(Aggregate.of("c", "count"),),
    ),
    "numbered union": AssignUniqueId(
        id="i", input=MixedUnion(id="u", parts=(scan("a"), scan("b"))), column="id"
    ),
    "hash join": HashJoin(
        id="h",
        left=scan("a"),
        right=Project(id="r", input=scan("b"), columns=(ProjectedColumn("m", "n"),)),
        how=JoinType.LEFT,
        on=JoinKeys.pairs(("n",), ("m",)),
    ),
}

HISTORY = [
    {"a": [[0, 1, 2], [3]], "b": [[1, 1]]},
    {"a": [[2, 2]], "b": [[2, 0], [3, 3]]},
    {"a": [[1]], "b": [[1]]},
]


@pytest.mark.parametrize("name", PLANS)
def test_recovery_is_exact_at_every_row(name: str) -> None:
    """Cases 33 and 35: of the set that was under way, what was delivered is passed by."""
    plan = PLANS[name]
    leaves = {node.id for node in plan.walk()} & {"a", "b"}
    sets = [
        {leaf: [numbers(*split) for split in splits[leaf]] for leaf in leaves} for splits in HISTORY
    ]
    with Task(plan) as task:
        expected = run(task, sets)
    before = 0
    for splits, rows in zip(sets, expected, strict=True):
        for delivered in range(len(rows) + 1):
            # The numbers of a recovered task go on where those of earlier sets ended.
            numbered = isinstance(plan, AssignUniqueId)
            with Task(replace(plan, first=before) if numbered else plan) as task:  # type: ignore[call-arg]
                add_splits(task, splits)
                task.request_barrier()
                assert rows_of(task.iter_batches(skip=delivered)) == rows[delivered:]
        before += len(rows)


def test_case_33_a_split_of_100_rows_from_its_40th_on() -> None:
    with Task(scan()) as task:
        task.add_split("rows", numbers(*range(1, 101), batch_rows=7))
        task.request_barrier()
        assert values_of(task.iter_batches(skip=40)) == list(range(41, 101))
