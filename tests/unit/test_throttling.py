"""Consumers that cannot keep up hold up who writes, in other processes, for as long as they say."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

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
    POLL_MS,
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
        properties = {"backpressure": "true"} if properties is None else properties
        self.table.ensure(TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"]), properties)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += int(seconds * 1000)
        self.when_slept()

    def report(self, rung: int = 4, *, ttl_ms: int = TTL_MS) -> PressureReport:
        pressure = PressureReport(
            consumer="reader",
            rung=rung,
            pressure=1.0,
            reported_ms=self.now_ms,
            ttl_ms=ttl_ms,
            retry_after_ms=1500,
        )
        report(self.store, pressure)
        return pressure

    def looks(self) -> list[str]:
        """Return the requests for pressure since the last call."""
        looks = [name for name in self.steps.names if "_pressure" in name]
        del self.steps.names[:]
        return looks


def test_write_is_refused_before_anything_is_stored() -> None:
    held = BatchDelay()
    transaction = Transaction(writer="w", number=3)
    held.table.upsert(ROW, transaction=transaction)
    held.report()
    objects = dict(held.store.objects)
    held.now_ms += POLL_MS
    with pytest.raises(ThrottledError) as refused:
        held.table.upsert(ROW)
    assert held.store.objects == objects
    assert refused.value.code == "THROTTLED"
    assert refused.value.fields == {
        "path": held.store.url,
        "consumer": "reader",
        "pressure": 1.0,
        "retry_after_ms": 1500,
    }
    assert held.slept == []
    assert held.table.upsert(ROW, transaction=transaction) is None, "it was committed before"


def test_writes_are_not_refused_by_lower_rungs_and_withdrawn_reports() -> None:
    for rung in range(RUNG_MAX):
        held = BatchDelay()
        held.report(rung)
        assert held.table.upsert(ROW) is not None
    held = BatchDelay()
    held.report()
    withdraw(held.store, "reader")
    withdraw(held.store, "reader")
    assert held.table.upsert(ROW) is not None
    assert held.table.pressure() == []


def test_write_without_back_pressure_heeds_caps_alone() -> None:
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
        pytest.param(1 - TTL_MS, True, id="by a clock that is a little behind"),
        pytest.param(-TTL_MS, False, id="from the future"),
        pytest.param(-NOW_MS, False, id="by a clock that starts with 1970"),
    ],
)
def test_report_is_heeded(later_ms: int, is_refused: bool) -> None:
    held = BatchDelay()
    held.report()
    held.now_ms += later_ms
    with pytest.raises(ThrottledError) if is_refused else nullcontext():
        held.table.admission().require(held.table.log.head())
    if later_ms == 0:
        held.now_ms += TTL_MS
        assert held.table.upsert(ROW) is not None, "a report that was seen expires, too"


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


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_damaged_report_is_no_pressure_and_a_warning(
    damage: bytes | dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    held = BatchDelay()
    record = held.report().to_json()
    whole = encode(record)
    data = encode({**record, **damage}) if isinstance(damage, dict) else damage
    held.store.objects[report_path("reader")] = whole[: len(whole) // 2] if data is None else data
    with caplog.at_level(logging.WARNING):
        assert held.table.upsert(ROW) is not None
    assert report_path("reader") in caplog.text
    report(held.store, replace(held.report(), consumer="z"))
    held.store.objects[report_path("reader")] = b"{}"
    held.now_ms += POLL_MS
    with pytest.raises(ThrottledError):
        held.table.upsert(ROW)


def test_table_that_heeds_nobody_is_asked_nothing() -> None:
    for properties in ({}, {"backpressure": "false"}):
        held = BatchDelay(properties)
        held.report()
        assert held.table.upsert(ROW) is not None
        assert held.looks() == []
    for text in ("", "yes", "1"):
        with pytest.raises(OptionError, match="'true' or 'false'"):
            BatchDelay({"backpressure": text})


def test_many_writes_look_once_a_second() -> None:
    held = BatchDelay()
    for _ in range(5):
        held.table.upsert(ROW)
    assert held.looks() == ["list _pressure"]
    held.now_ms += POLL_MS
    held.table.upsert(ROW)
    assert held.looks() == ["list _pressure"]
    held.report(rung=1)
    held.now_ms -= 3_600_000
    held.table.upsert(ROW)
    looks = ["list _pressure", f"read {report_path('reader')}"]
    assert held.looks() == looks, "a clock that goes back makes nobody wait"


@pytest.mark.parametrize(
    ("then", "options", "waited_s"),
    [
        pytest.param(withdraw, {}, 1.5, id="waits until there is relief"),
        pytest.param(None, {"onFullTimeout": "4s"}, 4.0, id="gives up at its bound"),
        pytest.param(None, {"disableBackpressure": "true"}, 0.0, id="passes by if told to"),
    ],
)
def test_driver_under_pressure(
    then: Callable[..., object] | None,
    options: dict[str, str],
    waited_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = BatchDelay()
    held.report()
    held.when_slept = partial(then, held.store, "reader") if then else held.report
    monkeypatch.setattr("spark_upsert_sink.writers.Table", lambda *_: held.table)
    options = {"path": "/t", "keys": "id", "checkpointLocation": "c", **options}
    writer = UpsertStreamWriter(options, StructType([StructField("id", LongType())]), False)
    refusal = writer._write._plan.refusal
    assert isinstance(refusal, ThrottledError) if waited_s == 4 else refusal is None
    if refusal is None:
        pickle.dumps(writer)
    assert sum(held.slept) == pytest.approx(waited_s)


def test_pressure_view_shows_backlogs_and_reports() -> None:
    held = BatchDelay({"backpressure": "true", "maxBacklogEpochs": "9"})

    def shown() -> list[dict[str, Any]]:
        view = VIEWS[Metadata.PRESSURE]
        return [row for batch in view.read(held.table) for row in batch.to_pylist()]

    held.table.hold("reader", 0)
    held.table.hold("gone", 0, ttl_ms=1)
    held.now_ms += 1
    held.table.upsert(ROW)
    held.table.hold("other", 1)
    pressure = held.report()
    other, reader = shown()
    assert (other["consumer"], other["backlog_epochs"], other["backlog_bytes"]) == ("other", 0, 0)
    assert other["rung"] is None
    assert (reader["consumer"], reader["backlog_epochs"]) == ("reader", 1)
    assert (reader["epochs_max"], reader["bytes_max"]) == (9, None)
    assert reader["backlog_bytes"] > 0
    assert (reader["rung"], reader["pressure"], reader["refuses"]) == (4, 1.0, True)
    assert reader["expires"] - reader["reported"] == timedelta(milliseconds=pressure.ttl_ms)
    held.now_ms += pressure.ttl_ms
    assert [row["rung"] for row in shown()] == [None, None]
    held.store.objects[lease_path("damaged")] = b"{"
    assert len(shown()) == 2


def test_reports_of_dead_consumers_do_not_hide_one_that_is_overloaded(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    pressure = replace(BatchDelay().report(), consumer="z", pressure=0.123)
    with pytest.raises(OptionError):
        replace(pressure, consumer="a/b")
    for number in range(200):
        dead = replace(pressure, consumer=f"a{number}", reported_ms=NOW_MS - TTL_MS_MAX)
        report(store, dead)
        os.utime(tmp_path / report_path(dead.consumer), (number, number))
    report(store, pressure)
    assert reports(store, NOW_MS) == [pressure]
