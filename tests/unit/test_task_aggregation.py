"""Aggregations: their functions, order, bounds and refusals; `test_task_cases` has the barriers."""

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


HASH_AND_STREAMING = pytest.mark.parametrize(
    "is_clustered", [False, True], ids=["hash", "streaming"]
)


@HASH_AND_STREAMING
def test_groups_come_in_bounded_batches_in_the_order_in_which_they_first_appear(
    is_clustered: bool,
) -> None:
    keys = [(7919 * key) % 10_007 for key in range(5000)]
    plan = node(is_clustered=is_clustered, aggregates=[COUNT], batch_rows=2000)
    (batches, _) = chain(plan).run([[batch([(key, 1) for key in keys for _ in range(2)])]])
    assert [each.num_rows for each in batches] == [2000, 2000, 1000]
    assert [(row["k"], row["n"]) for row in rows_of(batches)] == [(key, 2) for key in keys]


def test_21_groups_that_do_not_fit_are_an_error_that_names_the_node() -> None:
    driver = chain(node(memory_bytes_max=10_000))
    with pytest.raises(MemoryLimitError, match=r"node 'sums': .* groups have") as caught:
        driver.run([[batch([(key, 1) for key in range(10_000)])]])
    assert (caught.value.fields["node"], caught.value.fields["limit"]) == ("sums", 10_000)


NAN = float("nan")


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
NINES = Decimal("9" * 38)
CENTS, WHOLE = pa.decimal128(4, 2), pa.decimal128(38, 0)
TINY, SHARES = pa.decimal128(38, 38), pa.decimal128(38, 4)
CENT = Decimal("0.01")
ANSWERS = [
    Answer("a count passes over nulls", "count", pa.string(), ["a", None, "b"], 2, pa.int64()),
    Answer("a sum of bytes has room", "sum", pa.int8(), [127, 127, None], 254, pa.int64()),
    Answer("a partial sum may overflow", "sum", pa.int64(), [TOP, TOP, -TOP], TOP, pa.int64()),
    Answer("a sum of unsigned", "sum", pa.uint64(), [TOP, TOP, 1], 2**64 - 1, pa.uint64()),
    Answer("a sum of decimals", "sum", CENTS, [CENT, CENT], 2 * CENT, pa.decimal128(14, 2)),
    Answer("a sum of floats", "sum", pa.float32(), [0.5, 1.0], 1.5, pa.float64()),
    Answer("NaN is the greatest", "max", pa.float64(), [1.0, NAN, 2.0], "nan", pa.float64()),
    Answer("the least is no NaN", "min", pa.float64(), [NAN, 2.0, None], 2.0, pa.float64()),
    Answer("the least of NaN only", "min", pa.float32(), [NAN, None], "nan", pa.float32()),
    Answer("the greatest text by bytes", "max", pa.string(), ["b", "é", None], "é", pa.string()),
    Answer("the greatest truth", "max", pa.bool_(), [False, True], True, pa.bool_()),
    Answer("an average beyond int64", "avg", pa.int64(), [TOP, TOP], float(TOP), pa.float64()),
    Answer(
        "an average of decimals rounds half away from zero",
        "avg",
        TINY,
        [Decimal("-1e-38"), Decimal(0)],
        Decimal("-1e-38"),
        TINY,
    ),
    Answer(
        "an average of decimals whose sums on the way have no type",
        "avg",
        WHOLE,
        [*[NINES] * 3, *[NINES.copy_negate()] * 3, Decimal(4)],
        Decimal("0.5714"),
        SHARES,
    ),
    Answer(
        "an average of decimals whose sum has no type",
        "avg",
        WHOLE,
        [Decimal("9" * 34)] * 20_000,
        Decimal("9" * 34 + ".0000"),
        SHARES,
    ),
    Answer("an average of nulls is null", "avg", pa.int64(), [None], None, pa.float64()),
]


@HASH_AND_STREAMING
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


def test_streaming_aggregation_gives_complete_groups_before_the_barrier() -> None:
    driver = chain(node(is_clustered=True, batch_rows=2))
    early = list(driver.feed([batch([(key, 1) for key in range(6)])]))
    assert [each.column("k").to_pylist() for each in early] == [[0, 1], [2, 3]]


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(PlanError, match=r"there is no aggregate 'sums'(?s:.*)Did you mean 'sum'"):
        Aggregate.of("s", "sums", "v")


@HASH_AND_STREAMING
def test_small_batches_are_grouped_together(is_clustered: bool) -> None:
    folded: list[int] = []
    original = GroupComputation._fold_by

    def counted(self: GroupComputation, states: pa.Table, by: list[str]) -> pa.Table:
        folded.append(states.num_rows)
        return original(self, states, by)

    with patch.object(GroupComputation, "_fold_by", counted):
        rows = [[batch([(key // 2, 1)]) for key in range(3000)]]
        (batches, _) = chain(node(is_clustered=is_clustered)).run(rows)
    assert len(rows_of(batches)) == 1500
    assert len(folded) <= 4
    assert sum(folded) < 3100, "each row once"
