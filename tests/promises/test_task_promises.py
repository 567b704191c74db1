"""What holds of tasks: each set of splits for itself, in an order, and to be gone on with.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.task import (
    AssignUniqueId,
    Filter,
    JoinKeys,
    JoinType,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Project,
    ProjectedColumn,
    Task,
    Unnest,
    bind,
)
from tests.support.logic import truth, written
from tests.support.task_worlds import played as played_alone
from tests.support.tasks import NUMBERS, Watched, numbers, run, scan

by_seeds = pytest.mark.parametrize("seed", range(2), ids="seed {}".format)

Splits = list[list[int | None]]


def history(seed: int) -> list[tuple[Splits, Splits]]:
    """Return sets of splits of two scans: few values, many empty splits."""
    draw = random.Random(seed)

    def splits() -> Splits:
        values = [None, 0, 1, 2, 3]
        return [draw.choices(values, k=draw.randrange(4)) for _ in range(draw.randrange(3))]

    return [(splits(), splits()) for _ in range(4)]


def played(task: Task, sets: list[tuple[Splits, Splits]]) -> list[list[tuple[Any, ...]]]:
    return run(
        task,
        [
            {
                name: [numbers(*split) for split in each]
                for name, each in zip("ab", pair, strict=True)
            }
            for pair in sets
        ],
    )


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [(value is not None, value or 0) for value in row])


@by_seeds
def test_p2_what_comes_before_a_barrier_is_made_of_the_splits_before_it(seed: int) -> None:
    for number in range(10 * seed, 10 * seed + 5):
        sets = history(number)
        parts = LocalPartition(id="all", parts=(scan("a"), scan("b")), keys=("n",))
        plan = Project(
            id="made",
            input=Filter(id="some", input=parts, where="n <> 1"),
            columns=(ProjectedColumn("m", "n + 1"),),
        )
        expected = [
            in_order(
                [(n + 1,) for each in pair for split in each for n in split if n not in (1, None)]
            )
            for pair in sets
        ]
        with Task(plan) as task:
            assert [in_order(rows) for rows in played(task, sets)] == expected
            assert task.statistics.splits.finished == task.statistics.splits.total


@by_seeds
def test_p2_a_union_goes_in_turn_and_its_numbers_go_on(seed: int) -> None:
    for number in range(10 * seed, 10 * seed + 5):
        sets = history(number)
        union = MixedUnion(id="both", parts=(scan("a"), scan("b")))
        plan = AssignUniqueId(id="numbered", input=union, column="id", first=5)
        expected, count = [], 5
        for pair in sets:
            left, right = ([n for split in each for n in split] for each in pair)
            both = [
                n
                for place in range(max(len(left), len(right)))
                for side in (left, right)
                for n in side[place : place + 1]
            ]
            expected.append([(n, count + place) for place, n in enumerate(both)])
            count += len(both)
        with Task(plan) as task:
            assert played(task, sets) == expected


@by_seeds
def test_p2_a_limit_goes_on_counting_over_barriers(seed: int) -> None:
    for number in range(10 * seed, 10 * seed + 5):
        sets: list[tuple[Splits, Splits]] = [(left, []) for left, _ in history(number)]
        plan = Limit(
            id="few", input=MixedUnion(id="u", parts=(scan("a"), scan("b"))), count=99, offset=2
        )
        rows = [[(n,) for split in left for n in split] for left, _ in sets]
        skip, expected = 2, []
        for each in rows:
            expected.append(each[skip:])
            skip = max(0, skip - len(each))
        with Task(plan) as task:
            assert played(task, sets) == expected


def test_p2_places_in_lists_begin_anew_in_each() -> None:
    lists = [[7, 7], [], None, [7], [7, 7, 7]]
    rows = pa.table({"l": pa.array(lists, pa.list_(pa.int64()))})
    plan = Unnest(id="each", input=scan("a", rows.schema), column="l", position="at", batch_rows=2)
    with Task(plan) as task:
        [found] = run(task, [{"a": [rows]}])
    assert found == [(at, value) for each in lists for at, value in enumerate(each or [])]


def test_p2_a_side_that_was_given_up_is_read_again_behind_the_barrier() -> None:
    right = Project(id="renamed", input=scan("b"), columns=(ProjectedColumn("m", "n"),))
    plan = MergeJoin(
        id="joined",
        left=scan("a"),
        right=right,
        how=JoinType.INNER,
        on=JoinKeys.pairs(("n",), ("m",)),
    )
    reader = Watched()
    with Task(plan, readers={"b": reader}) as task:
        early = {"a": [numbers(1, 2)], "b": [numbers(*range(2, 200))]}
        late = {"a": [numbers(190)], "b": [numbers(*range(2, 200))]}
        assert run(task, [early, late, early]) == [[(2, 2)], [(190, 190)], [(2, 2)]]
    assert reader.opened == reader.closed == 3
    assert reader.batches < 2 * 198


def test_p4_splits_that_are_done_are_not_read_again() -> None:
    with Task(scan("a")) as task:
        task.set_max_sequence("a", 5)
        assert [task.add_split("a", numbers(n), n) for n in (4, 5, 6)] == [False, False, True]
        assert run(task, [{}]) == [[(6,)]]


def test_p4_a_set_goes_on_behind_what_was_delivered() -> None:
    for delivered in range(11):
        with Task(scan("a")) as task:
            task.add_split("a", numbers(*range(10), batch_rows=3))
            task.request_barrier()
            rows = [
                n for batch in task.iter_batches(skip=delivered) for n in batch["n"].to_pylist()
            ]
        assert rows == list(range(delivered, 10))


TRUTHS = (True, False, None)


def test_p2_logic_has_three_values() -> None:
    rows = pa.record_batch([pa.array([1], pa.int64())], schema=NUMBERS)

    def value(text: str) -> Any:
        return bind(text, NUMBERS)(rows)[0].as_py()

    for a in TRUTHS:
        one = written(a).replace("TRUE", "1").replace("FALSE", "3")
        assert value(f"n IN (2, {one})") is a
        trees = [(a, word, b) for b in TRUTHS for word in ("AND", "OR")]
        for tree in [("NOT", a), *trees]:
            assert value(written(tree)) is truth(tree)


def test_p2_a_number_that_is_none_equals_itself_and_is_above_all() -> None:
    rows = pa.record_batch({"f": pa.array([float("nan"), 1.0, -0.0, None])})

    def values(text: str) -> list[Any]:
        found: list[Any] = bind(text, rows.schema)(rows).to_pylist()
        return found

    assert values("f = f") == [True, True, True, None]
    assert values("f > 1e300") == [True, False, False, None]
    assert values("f <= 1.0") == [False, True, True, None]
    assert values("f = 0") == [False, False, True, None]


def test_p2_what_has_no_value_counts_only_where_it_is_looked_at() -> None:
    rows = pa.record_batch({"x": pa.array([6, 6, None]), "y": pa.array([3, 0, 1])})
    for text, expected in {
        "CASE WHEN y = 0 THEN -1 ELSE x DIV y END": [2, -1, None],
        "y <> 0 AND x DIV y = 2": [True, False, None],
        "y = 0 OR x DIV y = 2": [True, True, None],
        "coalesce(nullif(y, 1) - 1, x DIV nullif(y, 0))": [2, -1, None],
    }.items():
        assert bind(text, rows.schema)(rows).to_pylist() == expected


def test_p2_a_decimal_is_equal_to_the_double_that_is_written_alike() -> None:
    texts = [f"{whole}.{cents:02}" for whole in range(10, 30) for cents in range(100)]
    rows = pa.record_batch({"price": list(map(float, texts)), "text": texts})
    equal = "price = CAST(text AS DECIMAL(4, 2))"
    assert all(bind(equal, rows.schema)(rows).to_pylist())
    for text in ("price = 19.99", "price IN (1, 19.99)", "price BETWEEN 19.99 AND 19.99"):
        assert bind(text, rows.schema).true_rows(rows)["text"].to_pylist() == ["19.99"]


def test_p2_any_plan_gives_what_plain_python_gives() -> None:
    """Of one driver in that order; of several, between the same barriers."""
    for seed in range(100):
        for found, expected in played_alone(seed, 1):
            assert found == expected
    for seed in range(60):
        for found, expected in played_alone(seed, 3):
            assert sorted(map(repr, found)) == sorted(map(repr, expected))
