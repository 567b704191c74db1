"""Which input is served first, through Spark: floods, priorities, and what a checkpoint remembers of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.promises import fold, rows_of
from integration.queries import Batches, drain, forget_last_commit
from integration.tables import Row, append, make_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = tuple(f"small-{number:02}" for number in range(24))
FLOODED = ("flood-0", "flood-1", "flood-2")
EPOCHS, ROWS = 8, 20
"""Of each that is flooded."""

LIMIT = 120
"""Rows of a batch: more than a part for each, and less than a round of the flooded ones."""


class Lake:
    """Tables below a folder, three of them with much before the query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder / "lake"
        self.checkpoint = folder / "checkpoint"
        self.batches = Batches()
        self.tables = {name: make_table(self.folder / name) for name in (*SMALL, *FLOODED)}

    def run(self, **more: Any) -> None:
        reader = self._spark.readStream.format("upsertflow")
        options = {"inputsPattern": "*", "mergeColumns": "_input", "readChangeFeed": "true"}
        reader = reader.options(**options, startingVersion="earliest", **more)
        drain(self.batches.collect(reader.load(str(self.folder)), self.checkpoint))

    def inputs_of(self, number: int) -> set[str]:
        """Return whose rows a batch had."""
        return {
            row["_input"] for found, rows in self.batches.runs if found == number for row in rows
        }

    def state(self) -> Any:
        """Return the state in the newest offset of the checkpoint."""
        offsets = [each for each in (self.checkpoint / "offsets").iterdir() if each.name.isdigit()]
        newest = max(offsets, key=lambda each: int(each.name))
        return json.loads(newest.read_text().splitlines()[-1])["state"]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def test_a_flood_on_three_tables_keeps_no_other_waiting(lake: Lake) -> None:
    for name in FLOODED:
        for epoch in range(EPOCHS):
            append(lake.tables[name], dict.fromkeys(range(ROWS), f"{epoch}"))
    for name in SMALL:
        append(lake.tables[name], {1: name})
    lake.run(maxRowsPerTrigger=LIMIT)
    first = lake.inputs_of(0)
    assert first >= set(SMALL), "a small one waits for the flood"
    assert first >= set(FLOODED)
    assert max(len(rows) for _, rows in lake.batches.runs) <= LIMIT
    assert len(lake.batches.runs) > 5
    forget_last_commit(lake.checkpoint)  # Its batch comes again, and is the same.
    for name in (*SMALL, *FLOODED):
        append(lake.tables[name], {1: None, 99: "last"})
    lake.run(maxRowsPerTrigger=LIMIT)
    assert lake.state() == {}, "no input waits any more"
    once = dict(lake.batches.runs)
    rows_by_input: dict[str, list[Row]] = {name: [] for name in (*SMALL, *FLOODED)}
    for _, batch in sorted(once.items()):
        for row in batch:
            rows_by_input[row["_input"]].append({**row})
    for name, rows in rows_by_input.items():
        for row in rows:
            del row["_input"]
        rows.sort(key=lambda row: (row["_commit_version"], row["_diff"]))
        assert fold(rows, ["k"]) == rows_of(lake.folder / name)


def test_the_most_urgent_tables_come_first_and_the_others_are_remembered(lake: Lake) -> None:
    urgent = SMALL[-4:]
    for name in (*SMALL, *FLOODED):
        append(lake.tables[name], {1: name})
    for name in urgent:
        table = lake.tables[name]
        table.alter(table.log.head().schema, {"priority": "800"})
    lake.run(maxEpochsPerTrigger=4)
    assert lake.inputs_of(0) == set(urgent)
    assert {row["_input"] for row in lake.batches.rows} == {*SMALL, *FLOODED}
