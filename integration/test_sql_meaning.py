"""What an expression means is what Spark means by it, or a difference that docs/tasks.md lists.

Random expressions over random rows (`tests.support.sql_cases`) are computed by us and by Spark, row
by row: the value, the kind of its type, and whether a row has none. What we refuse when the plan is
made counts as right. `SQL_CASES` says how many; a failure prints its seed.
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.spark_judge import Judge
from spark_upsert.errors import DataError
from spark_upsert.task import Aggregate, ArrowScan, Group, Task
from tests.support.sql_answers import Answers, Refused, answers_here, differences
from tests.support.sql_cases import ExpressionCase, Expressions, random_rows
from tests.support.sql_differences import DIFFERENCES, FEWEST_DIGITS, NO_VALUE, Difference

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_CASES = int(os.environ.get("SQL_CASES", "2000"))
_BATCH = 400
"""Expressions over one frame, of which Spark computes a projection at once."""

_ROWS, _DEPTH = 12, 3

_REFUSED_MAX = 0.4
"""Of all: a comparison of nothing but refusals would say nothing."""

EPOCH = datetime.datetime(1970, 1, 1)

ONE_ROW = pa.record_batch({"row": [1]})


@pytest.fixture(scope="module")
def judge(spark: SparkSession) -> Iterator[Judge]:
    with Judge(spark).presiding() as judge:
        yield judge


def told(
    case: ExpressionCase, index: int | str, rows: pa.RecordBatch, *answers: Answers | Refused
) -> str:
    if isinstance(index, str):
        return f"{case.text}: {index}"
    row = {name: value for name, value in rows.to_pylist()[index].items() if name in case.text}
    here, there = (each.values[index] for each in answers if isinstance(each, Answers))
    return f"{case.text} of {row}: {here!r}, by Spark {there!r}"


def mistakes(judge: Judge, seed: int) -> tuple[list[str], int]:
    """Return what differs of the expressions of a seed, and how many are refused."""
    chance = random.Random(seed)
    rows, expressions = random_rows(chance, _ROWS), Expressions(chance)
    cases = [expressions.any(chance.randint(1, _DEPTH)) for _ in range(_BATCH)]
    here = [answers_here(case.text, rows) for case in cases]
    computed = [place for place, each in enumerate(here) if isinstance(each, Answers)]
    there = judge.answers([cases[place].spark for place in computed], rows)
    found = [
        f"seed {seed}: {told(cases[place], index, rows, here[place], spark)}"
        for place, spark in zip(computed, there, strict=True)
        for index in differences(
            here[place], spark, is_near_enough=FEWEST_DIGITS in cases[place].spark
        )[:1]
    ]
    return found, len(cases) - len(computed)


def test_an_expression_means_what_it_means_to_spark(judge: Judge) -> None:
    found: list[str] = []
    refused_count, seeds = 0, range(max(_CASES // _BATCH, 1))
    for seed in seeds:
        more, refused = mistakes(judge, seed)
        found += more
        refused_count += refused
    print(f"{len(seeds) * _BATCH} expressions, {refused_count} refused, {len(found)} differ")
    assert not found, "\n".join(found[:40])
    assert refused_count < _REFUSED_MAX * len(seeds) * _BATCH


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.what)
def test_a_difference_is_as_it_is_listed(judge: Judge, difference: Difference) -> None:
    here = answers_here(difference.text, ONE_ROW)
    there, instead = judge.answers([difference.text, difference.instead], ONE_ROW)
    assert shown(here) == difference.here
    assert isinstance(there, Answers)
    assert shown(there) == difference.spark
    assert shown(instead) == difference.here


AVERAGED = {
    (5, 2): ("1.50", "2.25", "-9.99"),
    (20, 5): ("1.5", "2"),
    (36, 0): ("1", "2"),
    (38, 0): ("1", "2", "4"),
    (38, 18): ("1234567890.5", "0.000000000000000001"),
    (38, 38): ("0.5", "-0.25", "0.1"),
    (37, 0): ("9" * 37,),
    (38, 37): ("1.5",),
}


@pytest.mark.parametrize("digits", AVERAGED, ids=str)
def test_an_average_of_decimals_is_that_of_spark(judge: Judge, digits: tuple[int, int]) -> None:
    values = pa.array(map(Decimal, AVERAGED[digits]), pa.decimal128(*digits))
    rows = pa.record_batch({"d": values})
    plan = Group(
        id="group",
        input=ArrowScan(id="rows", schema=rows.schema),
        aggregates=(Aggregate.of("mean", "avg", "d"),),
    )
    there = judge.aggregate("avg(d)", rows)
    mean = there.as_py()
    with Task(plan) as task:
        assert task.schema.field("mean").type == there.type
        task.add_split("rows", rows)
        task.no_more_splits("rows")
        if mean is None:
            with pytest.raises(DataError, match="does not fit"):
                next(iter(task.iter_batches()))
        else:
            [batch] = task.iter_batches()
            assert batch["mean"].to_pylist() == [mean]


def shown(answers: Answers | Refused) -> str:
    """Return the one value as the page shows it; a constant without a value is refused at once."""
    if isinstance(answers, Refused):
        return NO_VALUE
    [value] = answers.values
    if value is None:
        return "NULL"
    if value == NO_VALUE:
        return NO_VALUE
    if answers.kind == "double":
        return str(float.fromhex(value))
    if answers.kind == "moment":
        return str(EPOCH + datetime.timedelta(microseconds=value))
    return str(value)
