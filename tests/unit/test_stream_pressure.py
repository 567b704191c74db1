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


@pytest.mark.parametrize(
    "batches", [99, 1, 3], ids=["no restart", "restart each batch", "restart each third batch"]
)
def test_a_stream_that_cannot_keep_up_holds_up_its_writers_until_it_can(
    flooded: Flood, caplog: pytest.LogCaptureFixture, batches: int
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(30):
        if batches < 99 and number % batches == 0:
            flooded.restart()
        assert flooded.batch()
    [report] = flooded.table.pressure()
    assert (report.consumer, report.rung) == ("reader", 4)
    with pytest.raises(ThrottledError) as refused:
        flooded.table.upsert(pa.table({"id": [1]}))
    assert refused.value.fields["retry_after_ms"] == report.retry_after_ms
    flooded.keep_up()
    assert flooded.offset["state"] == {}
    assert flooded.table.pressure() == []
    assert report_path("reader") not in flooded.store.objects
    flooded.now.advance(1)
    assert flooded.table.upsert(pa.table({"id": [1]})) is not None
    logged = [each.getMessage() for each in caplog.records if "pressure of the stream" in each.msg]
    rungs = [int(text.partition("rung=")[2].partition(" ")[0]) for text in logged]
    assert (max(rungs), rungs[-1]) == (4, 0)
    assert batches < 99 or (rungs[0] in (1, 2) and "waiting=1" in logged[0])


def test_an_input_that_is_gone_is_not_made_anew_to_be_told(
    flooded: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(30):
        flooded.batch()
    assert flooded.table.pressure()
    monkeypatch.setattr(flooded.stream._pressure, "_inputs", {})
    flooded.stream._pressure.record_idle()
    assert flooded.table.pressure() == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_that_begins_with_the_history_of_a_table_presses_nobody(restarts: bool) -> None:
    flood = Flood(history=60)
    for _ in range(50):
        if restarts:
            flood.restart()
        assert flood.batch()
    assert flood.puts == 0
    assert flood.stream._pressure.governor.rung == 0


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


MEMORY = {"cuts": 2, "high": 0, "is_deferring": False, "sampled_ms": 1}


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(None, id="null"),
        pytest.param(7, id="number"),
        pytest.param({}, id="empty"),
        pytest.param({"is_behind": False}, id="not behind"),
        pytest.param({**MEMORY, "busy": -1, "latency_ms": 1}, id="negative"),
        pytest.param({**MEMORY, "busy": 1, "latency_ms": 0.5}, id="fraction"),
    ],
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
        pytest.param(HEEDS, {"consumerId": ""}, id="a stream without a lease"),
    ],
)
def test_no_pressure_is_reported(properties: dict[str, str], options: dict[str, Any]) -> None:
    flood = Flood(properties, **options)
    flood.keep_up()
    flood.write(40)
    flood.keep_up()
    assert not [name for name in flood.steps.names if "_pressure" in name]


@pytest.mark.parametrize(
    ("takes_s", "lasts_ms"),
    [
        pytest.param(0.25, LASTS_MS_MIN, id="short batches"),
        pytest.param(10, 20_000, id="twice as long as a batch"),
        pytest.param(3600, LASTS_MS_MAX, id="batches without end"),
    ],
)
def test_a_report_outlasts_the_batch_and_comes_once_a_second_at_most(
    flooded: Flood, takes_s: float, lasts_ms: int
) -> None:
    for _ in range(40):
        flooded.batch(takes_s=takes_s)
    assert takes_s > 1 or 5 <= flooded.puts <= 11
    flooded.now.advance(-takes_s)  # Right behind the last one.
    [report] = flooded.table.pressure()
    assert report.ttl_ms == lasts_ms


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


def deferring_stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Return a stream of a high and a low table that defers its lowest band."""
    now = Now()
    parsed = options_of(startingVersion="earliest", maxEpochsPerTrigger=1)
    inputs = {}
    for name, priority in (("high", "0"), ("low", "-500")):
        table = Table(MemoryStore(), clock=now)
        table.ensure(TableSchema.of(COLUMNS, keys=["id"]), {"priority": priority})
        for number in range(2):
            table.upsert(pa.table({"id": [number]}))
        inputs[name] = TableInput(parsed, read_columns(table.log, parsed), table=table)
    stream = Stream(NamedInputs(inputs), parsed.query, clock=now, wall=now)
    governor = replace(stream._pressure._governor, is_deferring=True, pressure=0.9)
    monkeypatch.setattr(stream._pressure, "_governor", governor)
    monkeypatch.setattr(stream._pressure, "_has_kept_up", False)  # The governor stays as it is.
    return stream


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_lowest_band_is_deferred_while_others_have_rows_unless_the_stream_is_frozen(
    monkeypatch: pytest.MonkeyPatch, is_frozen: bool
) -> None:
    stream = deferring_stream(monkeypatch)
    if is_frozen:
        stream.freeze()
    offset: Mapping[str, Any] = stream.initial()
    uppers = []
    while (reached := stream.latest(offset)) != offset:
        offset = reached
        uppers.append({name: each["upper"] for name, each in offset["positions"].items()})
    assert uppers[-1] == {"high": 3, "low": 3}
    assert is_frozen or [each["low"] for each in uppers if each["high"] < 3] == [0]
