"""Consumers that cannot keep up hold up who writes, in other processes, for as long as they say."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, TableFullError, ThrottledError
from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.lag import (
    LOOK_MS,
    RUNG_MAX,
    TTL_MS,
    TTL_MS_MAX,
    PressureReport,
    report,
    report_path,
    reports,
    withdraw,
)
from spark_upsert.table.retention.leases import lease_path
from spark_upsert.table.table import Table
from spark_upsert_sink import UpsertStreamWriter
from tests.support.stores import FaultyStore, MemoryStore, Steps

COLUMNS = pa.schema({"id": pa.int64()})
ROW = pa.table({"id": [1]})
NOW_MS = 1_000_000_000


class BatchDelay:
    """A table that heeds pressure, its writer, and a consumer in another process."""

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        self.now_ms = NOW_MS
        self.steps = Steps()
        self.store = MemoryStore()
        self.slept: list[float] = []
        self.when_slept: Callable[[], object] = lambda: None
        self.table = Table(
            FaultyStore(self.store, self.steps),
            clock=lambda: self.now_ms / 1000,
            sleep=self._sleep,
        )
        given = {"backpressure": "true"} if properties is None else properties
        self.table.ensure(TableSchema.of(COLUMNS, keys=["id"]), given)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += int(seconds * 1000)
        self.when_slept()

    def report(self, rung: int = 4, *, ahead_ms: int = 0, ttl_ms: int = TTL_MS) -> PressureReport:
        said = PressureReport(
            consumer="reader",
            rung=rung,
            pressure=1.0,
            reported_ms=self.now_ms + ahead_ms,
            ttl_ms=ttl_ms,
            retry_after_ms=1500,
        )
        report(self.store, said)
        return said


def test_a_write_is_refused_before_anything_is_stored() -> None:
    held = BatchDelay()
    held.report()
    before = dict(held.store.objects)
    with pytest.raises(ThrottledError) as refused:
        held.table.upsert(ROW)
    assert held.store.objects == before
    assert refused.value.code == "THROTTLED"
    assert refused.value.fields == {
        "path": held.store.url,
        "consumer": "reader",
        "pressure": 1.0,
        "retry_after_ms": 1500,
    }
    assert held.slept == []


@pytest.mark.parametrize("rung", range(RUNG_MAX), ids=lambda rung: f"rung {rung}")
def test_lower_rungs_refuse_nobody(rung: int) -> None:
    held = BatchDelay()
    held.report(rung)
    assert held.table.upsert(ROW) is not None


def test_what_was_committed_is_answered_as_done() -> None:
    held = BatchDelay()
    transaction = Transaction(writer="w", number=3)
    held.table.upsert(ROW, transaction=transaction)
    held.report()
    assert held.table.upsert(ROW, transaction=transaction) is None


def test_who_disables_it_passes_by_but_not_by_caps() -> None:
    held = BatchDelay({"backpressure": "true", "maxBacklogEpochs": "1", "onFull": "reject"})
    held.table.hold("reader", 0)
    held.report()
    assert held.table.upsert(ROW, disable_backpressure=True) is not None
    with pytest.raises(TableFullError):
        held.table.upsert(ROW, disable_backpressure=True)


@pytest.mark.parametrize(
    ("later_ms", "is_refused"),
    [
        pytest.param(0, True, id="at once"),
        pytest.param(TTL_MS - 1, True, id="right before it expires"),
        pytest.param(TTL_MS, False, id="when it has expired"),
        pytest.param(10**9, False, id="long after"),
        pytest.param(1 - TTL_MS, True, id="a clock that is a little behind"),
        pytest.param(-TTL_MS, False, id="from the future"),
        pytest.param(-NOW_MS, False, id="a clock that starts with 1970"),
    ],
)
def test_a_report_expires(later_ms: int, is_refused: bool) -> None:
    held = BatchDelay()
    held.report()
    held.now_ms += later_ms
    if is_refused:
        with pytest.raises(ThrottledError):
            held.table.upsert(ROW)
    else:
        held.table.admission().require(held.table.log.head())


def test_a_report_that_was_seen_expires_without_another_look() -> None:
    held = BatchDelay()
    held.report(ttl_ms=LOOK_MS // 2)
    with pytest.raises(ThrottledError):
        held.table.upsert(ROW)
    held.now_ms += LOOK_MS // 2
    assert held.table.upsert(ROW) is not None


def test_a_report_that_is_withdrawn_counts_no_more() -> None:
    held = BatchDelay()
    held.report()
    withdraw(held.store, "reader")
    withdraw(held.store, "reader")
    assert held.table.upsert(ROW) is not None
    assert held.table.pressure() == []


DAMAGED = {
    "nothing": b"",
    "no record": b"{}",
    "half of it": None,
    "more than a report has": b" " * 1_000_000,
    "a rung that there is not": {"rung": RUNG_MAX + 1},
    "a pressure beyond one": {"pressure": 1001},
    "a time to live without end": {"ttl_ms": TTL_MS_MAX + 1},
    "a wait without end": {"retry_after_ms": 10**12},
    "another consumer": {"consumer": "other"},
    "a name that is a path": {"consumer": "../x"},
    "no consumer": {"consumer": None},
    "a newer format": {"format": 99},
    "an earlier format": {"format": 1},
}


@pytest.mark.parametrize("how", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_report_is_no_pressure_and_a_warning(
    how: bytes | dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    held = BatchDelay()
    whole = encode(held.report().to_json())
    if how is None:
        data = whole[: len(whole) // 2]
    elif isinstance(how, bytes):
        data = how
    else:
        data = encode({**held.report().to_json(), **how})
    held.store.objects[report_path("reader")] = data
    with caplog.at_level(logging.WARNING):
        assert held.table.upsert(ROW) is not None
    assert report_path("reader") in caplog.text


def test_a_damaged_report_hides_no_other() -> None:
    held = BatchDelay()
    held.report()
    held.store.objects[report_path("before")] = b"{}"
    with pytest.raises(ThrottledError):
        held.table.upsert(ROW)


class TestRequests:
    """One listing about once a second, and none where nobody is to be heeded."""

    @staticmethod
    def looks(held: BatchDelay) -> list[str]:
        found = [name for name in held.steps.names if "_pressure" in name]
        del held.steps.names[:]
        return found

    @pytest.mark.parametrize("properties", [{}, {"backpressure": "false"}], ids=["unset", "false"])
    def test_a_table_that_heeds_nobody_is_asked_nothing(self, properties: dict[str, str]) -> None:
        held = BatchDelay(properties)
        held.report()
        assert held.table.upsert(ROW) is not None
        assert self.looks(held) == []

    def test_many_writes_look_once_a_second(self) -> None:
        held = BatchDelay()
        for _ in range(5):
            held.table.upsert(ROW)
        assert self.looks(held) == ["list _pressure"]
        held.now_ms += LOOK_MS
        held.table.upsert(ROW)
        assert self.looks(held) == ["list _pressure"]
        held.now_ms -= 3_600_000
        held.table.upsert(ROW)
        assert self.looks(held) == ["list _pressure"], "a clock that goes back makes nobody wait"

    def test_a_report_is_one_more_read(self) -> None:
        held = BatchDelay()
        held.report(rung=1)
        held.table.upsert(ROW)
        assert self.looks(held) == ["list _pressure", f"read {report_path('reader')}"]


class TestTheSink:
    """Spark's driver waits for relief for some time, and then says why it fails."""

    @staticmethod
    def writer(
        held: BatchDelay, monkeypatch: pytest.MonkeyPatch, **options: str
    ) -> UpsertStreamWriter:
        monkeypatch.setattr("spark_upsert_sink.writers.Table", lambda *_: held.table)
        given = {"path": "/t", "keys": "id", "checkpointLocation": "c", **options}
        return UpsertStreamWriter(given, StructType([StructField("id", LongType())]), False)

    def test_it_waits_until_there_is_relief(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = BatchDelay()
        held.report()
        held.when_slept = lambda: withdraw(held.store, "reader")
        pickle.dumps(self.writer(held, monkeypatch))
        assert held.slept == [1.5]

    def test_it_gives_up_at_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = BatchDelay()
        held.report()
        held.when_slept = held.report
        writer = self.writer(held, monkeypatch, onFullTimeout="4s")
        plan = writer._write._plan
        assert isinstance(plan.refusal, ThrottledError)
        assert sum(held.slept) == pytest.approx(4.0)

    def test_it_passes_by_if_it_is_told_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = BatchDelay()
        held.report()
        writer = self.writer(held, monkeypatch, disableBackpressure="true")
        assert writer._write._plan.refusal is None
        assert held.slept == []


def test_what_there_is_to_be_read_about_pressure() -> None:
    held = BatchDelay({"backpressure": "true", "maxBacklogEpochs": "9"})
    held.table.hold("reader", 0)
    held.table.hold("gone", 0, ttl_ms=1)
    held.now_ms += 1
    held.table.upsert(ROW)
    held.table.hold("other", 1)
    said = held.report()
    [batch] = VIEWS[Metadata.PRESSURE].read(held.table)
    other, reader = batch.to_pylist()
    assert other["consumer"] == "other"
    assert (other["backlog_epochs"], other["backlog_bytes"], other["rung"]) == (0, 0, None)
    assert reader["consumer"] == "reader"
    assert (reader["backlog_epochs"], reader["epochs_max"], reader["bytes_max"]) == (1, 9, None)
    assert reader["backlog_bytes"] > 0
    assert (reader["rung"], reader["pressure"], reader["refuses"]) == (4, 1.0, True)
    lasts = reader["expires"] - reader["reported"]
    assert lasts.total_seconds() * 1000 == said.ttl_ms
    held.now_ms += said.ttl_ms
    assert [row["rung"] for row in table_rows(held)] == [None, None]
    held.store.objects[lease_path("damaged")] = b"{"
    assert len(table_rows(held)) == 2


def table_rows(held: BatchDelay) -> list[dict[str, object]]:
    return [row for batch in VIEWS[Metadata.PRESSURE].read(held.table) for row in batch.to_pylist()]


def test_a_report_comes_back_as_it_was_said(tmp_path: Path) -> None:
    held = BatchDelay()
    said = replace(held.report(), pressure=0.123)
    report(held.store, said)
    assert reports(held.store, held.now_ms) == [said] == held.table.pressure()
    with pytest.raises(OptionError):
        replace(said, consumer="a/b")


def test_those_who_died_do_not_hide_one_who_is_overloaded(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    said = replace(BatchDelay().report(), consumer="z")
    for number in range(200):
        died = replace(said, consumer=f"a{number}", reported_ms=NOW_MS - TTL_MS_MAX)
        report(store, died)
        os.utime(tmp_path / report_path(died.consumer), (number, number))
    report(store, said)
    assert reports(store, NOW_MS) == [said]


@pytest.mark.parametrize("text", ["", "yes", "1"])
def test_a_property_that_is_no_truth_value_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="'true' or 'false'"):
        BatchDelay({"backpressure": text})
