"""Exact orders through Spark: the sequence does not depend on limits, nor on where a query stopped."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from integration.queries import drain, forget_last_commit
from integration.tables import Row, append, make_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def given(tables: Mapping[str, Path], **order: Any) -> dict[str, str]:
    """Return the options that read all changes of some tables in an order."""
    texts = {name: str(value) for name, value in order.items()}
    return {
        "inputs": ",".join(tables),
        **{f"input.{name}.path": str(path) for name, path in tables.items()},
        "readChangeFeed": "true",
        "startingVersion": "earliest",
        "mergeColumns": "_input,_merge_seq",
        **texts,
    }


class RemovedRange:
    """What a query's batches hold, in their order; it falls where it is told to.

    Parameters
    ----------
    falls : set of int
        Numbers of batches behind whose rows the query fails, once each: they come again.
    """

    def __init__(self, falls: set[int]) -> None:
        self.falls = falls
        self.batches: dict[int, list[Row]] = {}
        self.repeated = 0

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.toArrow().to_pylist()
        if number in self.batches:
            self.repeated += 1
        assert self.batches.setdefault(number, rows) == rows, f"batch {number} comes otherwise"
        if number in self.falls:
            self.falls.remove(number)
            raise InterruptedError("it falls")

    @property
    def rows(self) -> list[Row]:
        return [row for _, batch in sorted(self.batches.items()) for row in batch]


def streamed(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, taken: RemovedRange
) -> list[Row]:
    """Read all there is, again after each fall."""
    changes = spark.readStream.format("upsertflow").options(**options).load()
    writer = changes.writeStream.foreachBatch(taken)
    writer = writer.option("checkpointLocation", str(checkpoint))
    while taken.falls:
        with pytest.raises(StreamingQueryException, match="it falls"):
            drain(writer)
    drain(writer)
    return taken.rows


def read(spark: SparkSession, options: Mapping[str, str]) -> list[Row]:
    frame = spark.read.format("upsertflow").options(**options).load()
    rows: list[Row] = frame.toArrow().to_pylist()
    return rows


@pytest.mark.parametrize(
    "order",
    [{"merge": "concat"}, {"merge": "roundrobin"}, {"interleaveSeed": 42}],
    ids=["concat", "roundrobin", "seed 42"],
)
def test_small_batches_with_restarts_are_one_large_batch_and_a_batch_read(
    spark: SparkSession, tmp_path: Path, order: dict[str, Any]
) -> None:
    dice = random.Random(str(order))
    tables = {name: tmp_path / name for name in ("east", "north", "west")}
    for name, path in tables.items():
        table = make_table(path)
        for _ in range(dice.randint(2, 4)):
            keys = dice.sample(range(6), dice.randint(2, 4))
            append(table, {k: dice.choice([None, f"{name} {k}", "same"]) for k in keys})
    options = given(tables, **order)

    whole = read(spark, options)
    assert streamed(spark, options, tmp_path / "once", RemovedRange(set())) == whole
    small = {**options, "maxRowsPerTrigger": str(dice.randint(3, 5))}
    taken = RemovedRange({0, dice.randint(1, 2)})
    assert streamed(spark, small, tmp_path / "small", taken) == whole
    assert taken.repeated == 2
    assert len(taken.batches) > 2
    assert [row["_merge_seq"] for row in whole] == list(range(len(whole)))
    assert {row["_input"] for row in whole} == {*tables}


SPEC = [
    pytest.param({"merge": "concat"}, {"a": 3, "b": 3}, "a1 a2 a3 b1 b2 b3", id="1 concat"),
    pytest.param({"merge": "roundrobin"}, {"a": 2, "b": 2}, "a1 b1 a2 b2", id="5 round robin"),
    pytest.param(
        {"merge": "roundrobin"}, {"a": 3, "b": 1}, "a1 b1 a2 a3", id="6 round robin, b is short"
    ),
    pytest.param({"interleaveSeed": 42}, {"a": 3, "b": 3}, "b1 a1 b2 a2 b3 a3", id="9 seed 42"),
    pytest.param({"interleaveSeed": 7}, {"a": 3, "b": 3}, "b1 a1 b2 a2 a3 b3", id="12 seed 7"),
    pytest.param(
        {"interleaveSeed": 123},
        {"a": 5, "b": 1, "c": 3},
        "c1 b1 c2 c3 a1 a2 a3 a4 a5",
        id="14 seed 123, three inputs",
    ),
]


@pytest.mark.parametrize(("order", "counts", "expected"), SPEC)
def test_the_spec(
    spark: SparkSession,
    tmp_path: Path,
    order: dict[str, Any],
    counts: dict[str, int],
    expected: str,
) -> None:
    tables = {name: tmp_path / name for name in counts}
    for name, count in counts.items():
        make_table(tables[name], *({row + 1: name} for row in range(count)))
    options = given(tables, **order)
    checkpoint, taken = tmp_path / "checkpoint", RemovedRange(set())
    streamed(spark, {**options, "maxRowsPerTrigger": "4"}, checkpoint, taken)
    forget_last_commit(checkpoint)
    found = streamed(spark, options, checkpoint, taken)
    for rows in (found, read(spark, options)):
        assert " ".join(f"{row['_input']}{row['k']}" for row in rows) == expected
    assert taken.repeated == 1
