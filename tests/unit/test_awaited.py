"""A read that waits for its table, which the first batch of a query makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, TableNotFoundError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.table import PAUSE_S_MAX, wait_for_table
from spark_upsert.streams.planner.formats import plan_columns
from spark_upsert.table.table import Table
from tests.support.stores import FaultyStore, MemoryStore, Steps

SCHEMA = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])


@dataclass
class Waiting:
    """A clock that a waiting read moves, and a table that is made at some time."""

    made_s: float
    store: MemoryStore = field(default_factory=MemoryStore)
    now_s: float = 100.0
    pauses: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        if self.now_s >= self.made_s:
            Table(self.store).ensure(SCHEMA)

    def read(self, timeout_ms: int | None, *, steps: Steps | None = None) -> Table:
        table = Table(FaultyStore(self.store, steps or Steps()))
        return wait_for_table(table, timeout_ms, clock=self.clock, sleep=self.sleep)


def test_a_read_waits_until_its_table_is_there() -> None:
    waiting = Waiting(made_s=160)
    assert waiting.read(5 * 60_000).log.head().version == 0
    assert 160 <= waiting.now_s <= 160 + PAUSE_S_MAX
    assert max(waiting.pauses) == PAUSE_S_MAX
    del waiting.pauses[:]
    assert waiting.read(60_000).log.head().version == 0
    assert waiting.pauses == []


def test_a_read_waits_for_no_longer_than_it_may() -> None:
    waiting = Waiting(made_s=1_000)
    with pytest.raises(TableNotFoundError, match="after 2 seconds") as found:
        waiting.read(2_000)
    assert waiting.now_s == pytest.approx(102)
    assert "Table.create" in found.value.hint


def test_a_read_without_the_option_does_not_wait_and_is_told_of_it() -> None:
    waiting = Waiting(made_s=1_000)
    with pytest.raises(TableNotFoundError) as found:
        waiting.read(None)
    assert waiting.pauses == []
    assert "table_timeout=5 minutes" in found.value.hint


def test_each_input_is_waited_for_as_long_as_it_says(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "east"), pa.schema({"id": pa.int64()}), keys=["id"])
    plan = ReadPlan.parse(
        {
            "inputs": "east,west",
            "input.east.path": str(tmp_path / "east"),
            "input.west.path": str(tmp_path / "west"),
            "input.west.tableTimeout": "1 ms",
        }
    )
    with pytest.raises(TableNotFoundError, match=r"west.*after 1 ms"):
        plan_columns(plan)


@pytest.mark.parametrize("text", ["soon", "0s", "5"])
def test_a_timeout_is_a_duration(text: str) -> None:
    plan = ReadPlan.parse({"path": "/nowhere", "tableTimeout": text})
    with pytest.raises(OptionError, match="tableTimeout"):
        plan_columns(plan)
