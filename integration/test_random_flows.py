"""Random graphs under random plans give on Spark what plain Python gives: in batch, and as streams.

``FLOW_GRAPHS`` says how many graphs run in batch, a fourth as many as streams; the first is
``FLOW_FIRST``.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.queries import end, forget_last_commit
from pyspark_upsertflow import flow as flows
from spark_upsert.flow import ArrowSource, TableSink, TableSource, Work
from spark_upsert.table.table import Table
from spark_upsert.task import ArrowScan, Project, ProjectedColumn
from tests.support.flow_recipes import (
    SOURCES,
    Recipe,
    drawn,
    graph_of,
    model_of,
    plan_of,
    rewidened,
)
from tests.support.flow_runs import ROWS, Rows, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GRAPHS = int(os.environ.get("FLOW_GRAPHS", "8"))
FIRST = int(os.environ.get("FLOW_FIRST", "0"))

COUNTED = Project(
    id="counted",
    input=ArrowScan(id="input", schema=ROWS),
    columns=(ProjectedColumn("k", "k"), ProjectedColumn("v", "v"), ProjectedColumn("n", "1")),
)
"""Rows that are alike are one of a table; so it adds up how many there are."""

SUMMED = {"keys": "k,v", "mergeEngine": "aggregation", "aggregate.n": "sum"}

EPOCH_BY_EPOCH = {"maxEpochsPerTrigger": "1", "startingVersion": "earliest"}


def counts_in(root: Path, recipe: Recipe) -> dict[str, Counter[tuple[int, ...]]]:
    """Return how often each row came to each sink."""
    found = {name: Table.open(str(root / name)).snapshot() for name in recipe.ends}
    return {
        name: Counter({(row["k"], row["v"]): row["n"] for row in table.to_pylist()})
        for name, table in found.items()
    }


def counted(*found: dict[str, Rows]) -> dict[str, Counter[tuple[int, ...]]]:
    return {name: Counter(row for rows in found for row in rows[name]) for name in found[0]}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + GRAPHS))
def test_a_random_graph_gives_the_rows_of_plain_python(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    draw = Random(seed)
    recipe = drawn(draw, steps_max=4)
    rows = {name: rows_of(draw.choice([0, 1, 12, 20])) for name in SOURCES.values()}
    sources: dict[str, Work] = {name: ArrowSource(table) for name, table in rows.items()}
    graph = graph_of(
        recipe,
        sources,
        sink_of=lambda name: TableSink(str(tmp_path / name), SUMMED),
        ahead=COUNTED,
    )
    plan = plan_of(graph, draw)
    flows.run(spark, plan)
    assert counts_in(tmp_path, recipe) == counted(model_of(recipe, rows)), f"{recipe} {plan}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(2, GRAPHS // 4)))
def test_a_random_graph_gives_as_a_stream_what_each_batch_gives_in_plain_python(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """It is ended behind a batch that is done but not noted, and goes on at other widths."""
    draw = Random(f"stream {seed}")
    recipe = drawn(draw, steps_max=3)
    epochs: list[dict[str, pa.Table]] = []
    read = {name: str(tmp_path / name) for name in SOURCES.values()}
    tables = {name: Table.create(path, ROWS, keys=["k", "v"]) for name, path in read.items()}
    for begun, batches in ((0, 2), (1, 1)):
        for _ in range(batches):
            # None is a row of before, which would be no change.
            first = 20 * len(epochs)
            epochs.append({name: rows_of(draw.randint(1, 9), first=first) for name in read})
            for name, rows in epochs[-1].items():
                tables[name].upsert(rows)
        graph = graph_of(
            recipe,
            {name: TableSource(path, EPOCH_BY_EPOCH) for name, path in read.items()},
            sink_of=lambda name: TableSink(str(tmp_path / name), SUMMED),
            ahead=COUNTED,
        )
        if begun:
            forget_last_commit(tmp_path / "checkpoint")
        plan = plan_of(graph, draw)
        end(flows.start(spark, plan, str(tmp_path / "checkpoint"), available_now=True))
        expected = counted(*(model_of(recipe, rows) for rows in epochs))
        assert counts_in(tmp_path, recipe) == expected, f"{recipe} {plan}"
        recipe = rewidened(recipe, draw)
