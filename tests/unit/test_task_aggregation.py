"""Aggregations that end at a barrier: the rows of a set of splits, and of no two."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, MemoryLimitError, PlanError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import ArrowScan, Group
from spark_upsert.task.aggregation import GroupComputation, aggregation
from tests.support.chains import Chain, rows_of

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})
SUM = Aggregate.of("s", "sum", "v")
COUNT = Aggregate.of("n", "count")


def node(
    schema: pa.Schema = ROWS,
    keys: Sequence[str] = ("k",),
    aggregates: Sequence[Aggregate] = (SUM,),
    **settings: Any,
) -> Group:
    scan = ArrowScan(id="rows", schema=schema)
    return Group(id="sums", input=scan, keys=tuple(keys), aggregates=tuple(aggregates), **settings)


def chain(plan: Group) -> Chain:
    assert isinstance(plan.input, ArrowScan)
    return Chain([aggregation(plan, plan.input.schema)])


def batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = ROWS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )


class Case(NamedTuple):
    """Sets of rows, what comes out of each and at the end, and what comes out without barriers."""

    words: str
    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    is_clustered: bool
    sets: list[list[tuple[Any, Any]]]
    expected: list[list[tuple[Any, ...]]]
    without_barriers: list[tuple[Any, ...]]

    def __str__(self) -> str:
        return self.words


CASES = [
    Case(
        "12 hash aggregation: each barrier has sums of its own",
        ("k",),
        (SUM,),
        False,
        [[(1, 10), (1, 20), (2, 70)], [(1, 50), (3, 130), (4, 80)]],
        [[(1, 30), (2, 70)], [(1, 50), (3, 130), (4, 80)], []],
        [(1, 80), (2, 70), (3, 130), (4, 80)],
    ),
    Case(
        "12a streaming aggregation: a key goes on behind the barrier as another row",
        ("k",),
        (SUM,),
        True,
        [[(1, 10), (2, 5)], [(2, 7), (3, 1)]],
        [[(1, 10), (2, 5)], [(2, 7), (3, 1)], []],
        [(1, 10), (2, 12), (3, 1)],
    ),
    Case(
        "15 global sum: NULL of the rows behind the last barrier",
        (),
        (SUM,),
        False,
        [[(0, 100)], [(0, 260)]],
        [[(100,)], [(260,)], [(None,)]],
        [(360,)],
    ),
    Case(
        "16 global count: 0 of the rows behind the last barrier",
        (),
        (COUNT,),
        False,
        [[(0, 1), (0, 2)], [(0, None)]],
        [[(2,)], [(1,)], [(0,)]],
        [(3,)],
    ),
    Case(
        "17 distinct: a value may come again behind a barrier",
        ("k",),
        (),
        False,
        [[(1, 0), (2, 0), (1, 0)], [(1, 0), (3, 0), (4, 0)]],
        [[(1,), (2,)], [(1,), (3,), (4,)], []],
        [(1,), (2,), (3,), (4,)],
    ),
    Case(
        "11 nothing since the last barrier: no groups, but the one of no key",
        ("k",),
        (SUM,),
        False,
        [[], [(1, 1)], []],
        [[], [(1, 1)], [], []],
        [(1, 1)],
    ),
    Case(
        "one row for each barrier without keys, with or without rows before it",
        (),
        (COUNT, SUM),
        False,
        [[], [(1, 1)], []],
        [[(0, None)], [(1, 1)], [(0, None)], [(0, None)]],
        [(1, 1)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_barrier_ends_the_groups(case: Case) -> None:
    plan = node(keys=case.keys, aggregates=case.aggregates, is_clustered=case.is_clustered)
    given = chain(plan).run([[batch(rows)] for rows in case.sets])
    assert [[tuple(row.values()) for row in rows_of(each)] for each in given] == case.expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_barriers_the_groups_end_with_the_rows(case: Case) -> None:
    plan = node(keys=case.keys, aggregates=case.aggregates, is_clustered=case.is_clustered)
    driver = chain(plan)
    given = [*driver.feed(batch(rows) for rows in case.sets), *driver.end()]
    assert [tuple(row.values()) for row in rows_of(given)] == case.without_barriers


CLUSTERED: list[list[int | None]] = [[1, 2, None, 3, 4], [9, 10, 11, 12], [17, 18, 19]]


def test_13_streaming_aggregation_gives_a_batch_at_each_barrier() -> None:
    given = chain(node(is_clustered=True, batch_rows=20)).run(
        [[batch([(key, 1)]) for key in keys for _ in range(2)] for keys in CLUSTERED]
    )
    assert [[each.column("k").to_pylist() for each in batches] for batches in given] == [
        *([keys] for keys in CLUSTERED),
        [],
    ]


def test_13_without_barriers_it_gives_one_batch() -> None:
    driver = chain(node(is_clustered=True, batch_rows=20))
    rows = [batch([(key, 1)]) for keys in CLUSTERED for key in keys for _ in range(2)]
    (one,) = [*driver.feed(rows), *driver.end()]
    assert one.column("k").to_pylist() == [key for keys in CLUSTERED for key in keys]
    assert set(one.column("s").to_pylist()) == {2}


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
def test_answers_come_in_batches_of_bounded_size(is_clustered: bool) -> None:
    plan = node(is_clustered=is_clustered, batch_rows=3)
    (given, _) = chain(plan).run([[batch([(key, 1) for key in range(8)])]])
    assert [each.num_rows for each in given] == [3, 3, 2]


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
def test_groups_come_in_the_order_in_which_they_first_appear(is_clustered: bool) -> None:
    keys = [(7919 * key) % 10_007 for key in range(5000)]
    plan = node(is_clustered=is_clustered, aggregates=[Aggregate.of("n", "count")])
    (given, _) = chain(plan).run([[batch([(key, 1) for key in keys for _ in range(2)])]])
    assert [(row["k"], row["n"]) for row in rows_of(given)] == [(key, 2) for key in keys]


def test_streaming_aggregation_gives_what_is_complete_before_the_barrier() -> None:
    driver = chain(node(is_clustered=True, batch_rows=2))
    early = list(driver.feed([batch([(key, 1) for key in range(6)])]))
    assert [each.column("k").to_pylist() for each in early] == [[0, 1], [2, 3]]


def test_21_groups_that_do_not_fit_are_an_error_that_names_the_node() -> None:
    driver = chain(node(memory_bytes_max=10_000))
    with pytest.raises(MemoryLimitError, match=r"node 'sums': .* groups have") as caught:
        driver.run([[batch([(key, 1) for key in range(10_000)])]])
    assert caught.value.fields["node"] == "sums"
    assert caught.value.fields["limit"] == 10_000


def test_many_rows_of_few_groups_fit() -> None:
    driver = chain(node(memory_bytes_max=10_000))
    batches = [batch([(key % 7, 1) for key in range(1000)]) for _ in range(200)]
    (given, _) = driver.run([batches])
    assert sum(row["s"] for row in rows_of(given)) == 200_000


NAN = float("nan")
FLOATS = pa.schema({"k": pa.float32(), "v": pa.float64()})


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
def test_null_is_null_nan_is_nan_and_both_zeros_are_one_in_a_key(is_clustered: bool) -> None:
    rows = [(None, 1), (None, 2), (NAN, 3), (-NAN, 4), (0.0, 5), (-0.0, 6)]
    plan = node(FLOATS, is_clustered=is_clustered)
    (given, _) = chain(plan).run([[batch(rows[:3], FLOATS), batch(rows[3:], FLOATS)]])
    assert [(str(row["k"]), row["s"]) for row in rows_of(given)] == [
        ("None", 3.0),
        ("nan", 7.0),
        ("0.0", 11.0),
    ]


class Answer(NamedTuple):
    """An aggregate of some values of a type."""

    words: str
    function: str
    type: pa.DataType
    values: list[Any]
    expected: Any
    gives: pa.DataType

    def __str__(self) -> str:
        return self.words


TOP = 2**63 - 1
ANSWERS = [
    Answer("a count passes over nulls", "count", pa.string(), ["a", None, "b"], 2, pa.int64()),
    Answer("a sum of bytes has room", "sum", pa.int8(), [127, 127, None], 254, pa.int64()),
    Answer("a partial sum may overflow", "sum", pa.int64(), [TOP, TOP, -TOP], TOP, pa.int64()),
    Answer("a sum of unsigned", "sum", pa.uint64(), [TOP, TOP, 1], 2**64 - 1, pa.uint64()),
    Answer("a sum of nulls is null", "sum", pa.int64(), [None, None], None, pa.int64()),
    Answer(
        "a sum of decimals has ten more digits",
        "sum",
        pa.decimal128(4, 2),
        [Decimal("99.99"), Decimal("99.99")],
        Decimal("199.98"),
        pa.decimal128(14, 2),
    ),
    Answer("a sum of floats", "sum", pa.float32(), [0.5, 1.0], 1.5, pa.float64()),
    Answer("NaN is the greatest", "max", pa.float64(), [1.0, NAN, 2.0], "nan", pa.float64()),
    Answer("the least is no NaN", "min", pa.float64(), [NAN, 2.0, None], 2.0, pa.float64()),
    Answer("the least of NaN only", "min", pa.float32(), [NAN, None], "nan", pa.float32()),
    Answer("the least float is negative", "min", pa.float32(), [1.0, -2.5], -2.5, pa.float32()),
    Answer("the least of nulls is null", "min", pa.float64(), [None, None], None, pa.float64()),
    Answer("the greatest text by bytes", "max", pa.string(), ["b", "é", None], "é", pa.string()),
    Answer("the greatest truth", "max", pa.bool_(), [False, True], True, pa.bool_()),
    Answer("an average", "avg", pa.int32(), [1, 2, None], 1.5, pa.float64()),
    Answer("an average beyond int64", "avg", pa.int64(), [TOP, TOP], float(TOP), pa.float64()),
    Answer("an average of floats", "avg", pa.float64(), [0.5, None, 1.0], 0.75, pa.float64()),
    Answer(
        "an average of decimals has four more digits",
        "avg",
        pa.decimal128(4, 2),
        [Decimal("0.01"), None, Decimal("0.00"), Decimal("0.01")],
        Decimal("0.006667"),
        pa.decimal128(8, 6),
    ),
    Answer(
        "an average of decimals rounds half away from zero",
        "avg",
        pa.decimal128(38, 38),
        [Decimal("-1e-38"), Decimal(0)],
        Decimal("-1e-38"),
        pa.decimal128(38, 38),
    ),
    Answer(
        "an average of decimals of 38 digits has four behind the point, too",
        "avg",
        pa.decimal128(38, 0),
        [Decimal(1), Decimal(2), None],
        Decimal("1.5000"),
        pa.decimal128(38, 4),
    ),
    Answer(
        "an average of decimals whose sums on the way have no type",
        "avg",
        pa.decimal128(38, 0),
        [*[Decimal("9" * 38)] * 3, *[Decimal("-" + "9" * 38)] * 3, Decimal(4)],
        Decimal("0.5714"),
        pa.decimal128(38, 4),
    ),
    Answer(
        "an average of decimals whose sum has no type",
        "avg",
        pa.decimal128(38, 0),
        [Decimal("9" * 34)] * 20_000,
        Decimal("9" * 34 + ".0000"),
        pa.decimal128(38, 4),
    ),
    Answer("an average of nulls is null", "avg", pa.int64(), [None], None, pa.float64()),
]


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
@pytest.mark.parametrize("answer", ANSWERS, ids=str)
@pytest.mark.sweep(12)
def test_answers_are_those_of_the_table_of_functions(answer: Answer, is_clustered: bool) -> None:
    schema = pa.schema({"k": pa.int64(), "v": answer.type})
    plan = node(
        schema, aggregates=[Aggregate.of("a", answer.function, "v")], is_clustered=is_clustered
    )
    # Cut into batches of one row, so that states are folded more than once.
    rows = [batch([(1, value)], schema) for value in answer.values]
    ((given,), _) = chain(plan).run([rows])
    found = given.column("a")
    assert found.type == answer.gives
    (value,) = found.to_pylist()
    assert (str(value) if answer.expected == "nan" else value) == answer.expected


def test_a_sum_that_does_not_fit_is_an_error_that_names_node_and_column() -> None:
    with pytest.raises(DataError, match=r"node 'sums': the sum 's' .* does not fit") as caught:
        chain(node()).run([[batch([(1, TOP), (1, 1)])]])
    assert caught.value.fields == {"column": "v", "node": "sums"}


LISTS = pa.schema({"k": pa.list_(pa.int8()), "v": pa.int64()})
TRUTHS = pa.schema({"k": pa.int8(), "v": pa.bool_()})

REFUSED = {
    "there is no column 'kk' among k, v": node(keys=["kk"]),
    "there is no column 'w'": node(aggregates=[Aggregate.of("s", "sum", "w")]),
    "'s' has a scale": node(aggregates=[Aggregate("s", AggregateKind.SUM, "v", scale=2)]),
    "there is no sum of rows": node(aggregates=[Aggregate.of("s", "sum")]),
    "there would be two columns 'k'": node(aggregates=[Aggregate.of("k", "sum", "v")]),
    "it has neither keys nor aggregates": node(keys=[], aggregates=[]),
    "'k' cannot be grouped by, because it is list": node(LISTS),
    "there is no sum of 'v', which is bool": node(TRUTHS),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_plan_that_cannot_be_is_refused_by_name(message: str) -> None:
    with pytest.raises(PlanError, match=f"node 'sums': {message}") as caught:
        chain(REFUSED[message])
    assert caught.value.fields["node"] == "sums"


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
def test_small_batches_are_grouped_together(is_clustered: bool) -> None:
    folded: list[int] = []
    original = GroupComputation._folded

    def counted(self: GroupComputation, states: pa.Table, by: list[str]) -> pa.Table:
        folded.append(states.num_rows)
        return original(self, states, by)

    with patch.object(GroupComputation, "_folded", counted):
        (given, _) = chain(node(is_clustered=is_clustered)).run(
            [[batch([(key // 2, 1)]) for key in range(3000)]]
        )
    assert len(rows_of(given)) == 1500
    assert len(folded) <= 4
    assert sum(folded) < 3100, "each row once"


@pytest.mark.parametrize("is_clustered", [False, True], ids=["hash", "streaming"])
def test_close_releases_what_is_held(is_clustered: bool) -> None:
    driver = chain(node(is_clustered=is_clustered))
    list(driver.feed([batch([(1, 1), (2, 2)])]))
    driver.close()
    assert list(driver.flow(0)) == []


def test_a_function_that_there_is_not_is_refused() -> None:
    with pytest.raises(PlanError, match=r"there is no aggregate 'sums'(?s:.*)Did you mean 'sum'"):
        Aggregate.of("s", "sums", "v")
