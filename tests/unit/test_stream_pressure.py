"""A stream that cannot keep up: what it tells its tables, how often, and whom it defers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, ThrottledError
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.pressure import LASTS_MS_MAX, LASTS_MS_MIN
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.retention.lag import report_path
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.support.streams import options_of

COLUMNS = pa.schema({"id": pa.int64()})
HEEDS = {"backpressure": "true"}


class Flood:
    """A table that heeds its consumers, and a stream of one epoch a batch in another process."""

    def __init__(
        self, properties: Mapping[str, str] = HEEDS, *, history: int = 0, **options: Any
    ) -> None:
        self.now = Now()
        self.store = MemoryStore()
        self.steps = Steps()
        self.table = Table(self.store, clock=self.now)
        self.table.ensure(TableSchema.of(COLUMNS, keys=["id"]), properties)
        self.write(history)
        given = {"consumerId": "reader", "startingVersion": "earliest", "maxEpochsPerTrigger": 1}
        parsed = options_of(**{**given, "latencyTarget": "5s", **options})
        self._options = parsed
        self.restart()
        self.offset: Mapping[str, Any] = self.stream.initial()

    def restart(self) -> None:
        """Give the query another process, which knows its offset and nothing else."""
        parsed = self._options
        own = Table(FaultyStore(self.store, self.steps), clock=self.now)
        self.stream = Stream(
            NamedInputs({UNNAMED: TableInput(parsed, read_columns(own.log, parsed), table=own)}),
            parsed.query,
            clock=self.now,
            wall=self.now,
        )

    def write(self, count: int) -> None:
        for number in range(count):
            self.table.upsert(pa.table({"id": [number]}), disable_backpressure=True)

    def batch(self, *, takes_s: float = 1.0) -> bool:
        """Run a batch; return whether there was one."""
        before, self.offset = self.offset, self.stream.latest(self.offset)
        self.now.advance(takes_s)
        return self.offset != before

    def keep_up(self) -> None:
        while self.batch():
            pass

    @property
    def puts(self) -> int:
        """How often something was told."""
        return self.steps.names.count(f"put {report_path('reader')}")


@pytest.fixture
def flooded() -> Flood:
    """Return a stream that had kept up until fifty epochs came at once."""
    flood = Flood()
    flood.keep_up()
    flood.write(50)
    return flood


def test_a_stream_that_cannot_keep_up_holds_up_its_writers_until_it_can(flooded: Flood) -> None:
    for _ in range(30):
        assert flooded.batch()
    [said] = flooded.table.pressure()
    assert (said.consumer, said.rung) == ("reader", 4)
    with pytest.raises(ThrottledError) as refused:
        flooded.table.upsert(pa.table({"id": [1]}))
    assert refused.value.fields["retry_after_ms"] == said.retry_after_ms
    flooded.keep_up()
    assert flooded.table.pressure() == []
    assert report_path("reader") not in flooded.store.objects
    flooded.now.advance(1)
    assert flooded.table.upsert(pa.table({"id": [1]})) is not None


def test_the_rungs_come_one_after_the_other_and_stand_in_the_log(
    flooded: Flood, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        flooded.keep_up()
    told = [each.getMessage() for each in caplog.records if "pressure of the stream" in each.msg]
    rungs = [int(text.partition("rung=")[2].partition(" ")[0]) for text in told]
    assert rungs[0] in (1, 2)
    assert max(rungs) == 4
    assert rungs[-1] == 0
    assert "waiting=1" in told[0]


def test_an_input_that_is_gone_is_not_made_anew_to_be_told(
    flooded: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        flooded.batch()
    assert flooded.table.pressure()
    monkeypatch.setattr(flooded.stream._pressure, "_inputs", {})
    flooded.stream._pressure.rest()
    assert flooded.table.pressure() == []


def test_who_begins_with_the_history_of_a_table_presses_nobody() -> None:
    flood = Flood(history=60)
    for _ in range(50):
        assert flood.batch()
    assert flood.puts == 0
    assert flood.stream._pressure.governor.rung == 0


def test_a_restart_amid_the_history_of_a_table_presses_nobody_either() -> None:
    flood = Flood(history=60)
    for _ in range(50):
        flood.restart()
        assert flood.batch()
    assert flood.puts == 0


@pytest.mark.parametrize("batches", [1, 3], ids=["each batch", "each third batch"])
def test_a_query_that_restarts_under_overload_presses_all_the_same(
    flooded: Flood, batches: int
) -> None:
    for number in range(30):
        if number % batches == 0:
            flooded.restart()
        assert flooded.batch()
    [said] = flooded.table.pressure()
    assert (said.consumer, said.rung) == ("reader", 4)
    with pytest.raises(ThrottledError):
        flooded.table.upsert(pa.table({"id": [1]}))


def test_a_process_that_restarts_knows_what_the_one_before_did(flooded: Flood) -> None:
    for _ in range(20):
        flooded.batch(takes_s=7)
    before = flooded.stream._pressure
    flooded.restart()
    assert flooded.batch()
    [said] = flooded.table.pressure()
    assert said.ttl_ms == 14_000, "it does not outlast the batch that follows"
    assert said.rung == before.governor.rung == 4
    assert flooded.stream._pressure.defers_lowest == before.defers_lowest is True


def test_a_query_that_restarts_at_rest_is_pressure_no_sooner_than_another(flooded: Flood) -> None:
    flooded.keep_up()
    flooded.restart()
    flooded.write(50)
    assert flooded.batch()
    assert flooded.stream._pressure.governor.rung < 4
    assert flooded.batch()
    assert "pressure" in flooded.offset["state"]


def test_an_offset_says_nothing_of_pressure_where_nothing_waits(flooded: Flood) -> None:
    flooded.keep_up()
    assert flooded.offset["state"] == {}


@pytest.mark.parametrize(
    "record",
    [
        None,
        7,
        {},
        {"is_behind": False},
        {
            "busy": -1,
            "cuts": 2,
            "high": 0,
            "is_deferring": False,
            "latency_ms": 1,
            "sampled_ms": 1,
        },
        {
            "busy": 1,
            "cuts": 2,
            "high": 0,
            "is_deferring": False,
            "latency_ms": 0.5,
            "sampled_ms": 1,
        },
    ],
    ids=["null", "number", "empty", "not behind", "negative", "fraction"],
)
@pytest.mark.sweep(2)
def test_a_memory_that_is_none_of_this_source_is_an_error(flooded: Flood, record: Any) -> None:
    flooded.batch()
    flooded.restart()
    flooded.offset = {**flooded.offset, "state": {"pressure": record}}
    with pytest.raises(OptionError, match="no offset of this source"):
        flooded.batch()


@pytest.mark.parametrize(
    ("properties", "options"),
    [
        pytest.param({}, {}, id="a table that heeds nobody"),
        pytest.param(HEEDS, {"maxEpochsPerTrigger": ""}, id="a stream without limits"),
    ],
)
def test_nothing_is_told(properties: dict[str, str], options: dict[str, Any]) -> None:
    flood = Flood(properties, **options)
    flood.keep_up()
    flood.write(40)
    flood.keep_up()
    assert not [name for name in flood.steps.names if "_pressure" in name]


def test_a_stream_without_a_lease_tells_nothing() -> None:
    flood = Flood(consumerId="")
    flood.keep_up()
    flood.write(40)
    flood.keep_up()
    assert not [name for name in flood.steps.names if "_pressure" in name]


def test_it_is_told_once_a_second_at_most(flooded: Flood) -> None:
    for _ in range(40):
        flooded.batch(takes_s=0.25)
    assert 5 <= flooded.puts <= 11


@pytest.mark.parametrize(
    ("takes_s", "lasts_ms"),
    [
        pytest.param(0.5, LASTS_MS_MIN, id="short batches"),
        pytest.param(10, 20_000, id="twice as long as a batch"),
        pytest.param(3600, LASTS_MS_MAX, id="batches without end"),
    ],
)
def test_what_is_told_outlasts_the_batch(flooded: Flood, takes_s: float, lasts_ms: int) -> None:
    for _ in range(10):
        flooded.batch(takes_s=takes_s)
    flooded.now.advance(-takes_s)  # Right behind the last one.
    [said] = flooded.table.pressure()
    assert said.ttl_ms == lasts_ms


def test_a_storage_that_fails_stops_no_stream(
    flooded: Flood, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr("spark_upsert.streams.inputs.table.report", fail)
    for _ in range(20):
        assert flooded.batch()
    assert "pressure is not told: read only" in caplog.text


@pytest.mark.parametrize("back_s", [3600, 10**9], ids=["an hour", "before 1970"])
def test_a_clock_that_goes_back_stops_nothing(flooded: Flood, back_s: int) -> None:
    for _ in range(10):
        flooded.batch()
    flooded.now.advance(-back_s)
    flooded.table.hold("reader", 0)
    for _ in range(30):
        assert flooded.batch()
    flooded.keep_up()
    assert flooded.stream._pressure.governor.rung == 0


class TestDeferral:
    """The lowest band waits while others have something, and never longer."""

    @staticmethod
    def stream(**query: Any) -> tuple[Stream, dict[str, Table]]:
        now = Now()
        tables = {}
        for name, priority in (("high", "0"), ("low", "-500")):
            tables[name] = Table(MemoryStore(), clock=now)
            given = {"priority": priority}
            tables[name].ensure(TableSchema.of(COLUMNS, keys=["id"]), given)
            for number in range(2):
                tables[name].upsert(pa.table({"id": [number]}))
        parsed = options_of(startingVersion="earliest", maxEpochsPerTrigger=1, **query)
        inputs = {
            name: TableInput(parsed, read_columns(table.log, parsed), table=table)
            for name, table in tables.items()
        }
        stream = Stream(NamedInputs(inputs), parsed.query, clock=now, wall=now)
        governor = stream._pressure._governor
        stream._pressure._governor = replace(governor, is_deferring=True, pressure=0.9)
        stream._pressure._has_kept_up = False  # The governor stays as it is.
        return stream, tables

    def test_others_are_served_first_and_then_the_lowest(self) -> None:
        stream, _ = self.stream()
        offset: Mapping[str, Any] = stream.initial()
        uppers = []
        while (reached := stream.latest(offset)) != offset:
            offset = reached
            at = {name: each["upper"] for name, each in offset["positions"].items()}
            uppers.append((at["high"], at["low"]))
        assert [low for high, low in uppers if high < 3] == [0]
        assert uppers[-1] == (3, 3)

    def test_who_ends_at_what_there_is_defers_nobody(self) -> None:
        stream, _ = self.stream()
        stream.freeze()
        offset: Mapping[str, Any] = stream.initial()
        for _ in range(10):
            offset = stream.latest(offset)
        assert stream.latest(offset) == offset
        uppers = {name: each["upper"] for name, each in offset["positions"].items()}
        assert uppers == {"high": 3, "low": 3}
