"""Metrics of batches: what each did to its table, how far behind it is, and what means trouble."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.metrics import (
    QUERIES_MAX,
    TROUBLES,
    BatchNumbers,
    Progress,
    SinkNumbers,
    Sinks,
    SinkTarget,
    Totals,
)
from spark_upsert.store.open import open_store
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.state.reduce import STALE_MIN, Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import ties
from tests.support.own_schemas import INLINE
from tests.unit.test_routed_schemas import message
from tests.unit.test_routed_schemas import write as write_routed

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
NOW_MS = 1_000_000


def rows(**values: list[Any]) -> pa.Table:
    return pa.table({**values}, schema=pa.schema([COLUMNS.field(name) for name in values]))


def of_query(query: str, number: int) -> Transaction:
    return Transaction(writer=Transaction.writer_of_query(query), number=number)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])


@pytest.fixture
def place(table: Table) -> SinkTarget:
    return SinkTarget.of(table.store.url, {})


def batch(
    number: int = 0,
    query: str = "q",
    counters: Mapping[str, int] = MappingProxyType({}),
    parked: int | None = None,
    **lag: Any,
) -> BatchNumbers:
    sink = SinkNumbers(table="/lake/t", version=number + 1, counters=counters, parked=parked)
    report = Progress(query=query, query_id=query, batch=number, seconds=0.5, rows=7)
    return BatchNumbers(progress=report, sink=sink, **lag)


def report(versions: int = 0, since_ms: int | None = None) -> Mapping[str, Any]:
    since = {} if since_ms is None else {"": since_ms}
    lag = {"versions": versions, "most": {"": versions} if versions else {}, "since_ms": since}
    return {"inputs": 1, "pressure": {}, "lag": lag}


def numbers_of(*reports: Any, sink: SinkNumbers | None = None) -> BatchNumbers:
    sources = [{"description": "x", "latestOffset": each} for each in reports]
    numbers = {"batchId": 3, "batchDuration": 250, "numInputRows": 9}
    progress = Progress.of_json({"id": "q", "name": None, **numbers, "sources": sources})
    return progress.numbers(sink, now_ms=NOW_MS)


def test_the_version_with_the_batch_tells_its_rows(table: Table, place: SinkTarget) -> None:
    table.upsert(rows(k=[1, 2], v=[1, 1]), transaction=of_query("a", 0))
    table.upsert(rows(k=[2, 3], v=[2, 2]), transaction=of_query("b", 0))
    sinks = Sinks()
    numbers = sinks.numbers(place, "b", 0)
    assert (numbers.version, dict(numbers.counters)) == (2, {"inserts": 1, "updates": 1})
    assert (numbers.live_rows, numbers.runs) == (3, 2)
    assert dict(sinks.numbers(place, "a", 0).counters) == {"inserts": 2}
    assert (sinks.has(place, "b"), sinks.has(place, "c")) == (True, False)
    unknown = sinks.numbers(place, "c", 0)
    assert (unknown.version, dict(unknown.counters)) == (None, {})


def test_later_batches_are_found_by_the_same_look(table: Table, place: SinkTarget) -> None:
    sinks = Sinks()
    for number in range(4):
        table.upsert(rows(k=[number], v=[0]), transaction=of_query("a", number))
        assert sinks.numbers(place, "a", number).version == table.log.head().version
        table.compact(full=True)
        assert sinks.numbers(place, "a", number).runs == 1


def test_a_table_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    place, sinks = SinkTarget.of(str(tmp_path / "t"), {}), Sinks()
    for count in (3, 1):
        made = Table.create(place.path, COLUMNS, keys=["k"])
        for number in range(count):
            made.upsert(rows(k=[number], v=[count]), transaction=of_query("a", number))
        assert sinks.numbers(place, "a", count - 1).live_rows == count
        if count == 1:
            assert sinks.numbers(place, "a", 2).version is None
        (tmp_path / "t").rename(tmp_path / f"gone{count}")


def test_a_mirror_that_is_behind_is_told(table: Table, place: SinkTarget) -> None:
    table.upsert(rows(k=[1], v=[1]))
    table.publish()
    table.alter(table.schema, {"publish": "delta", "publishInterval": "1 hour"})
    table.upsert(rows(k=[2], v=[1]), transaction=of_query("a", 0))
    numbers = Sinks().numbers(place, "a", 0)
    assert numbers.mirror_versions == 2
    assert numbers.mirror_seconds is not None


def test_a_line_has_what_is_known_and_is_not_zero_and_a_dict_has_all() -> None:
    line = batch(3, counters={"inserts": 2, "tied": 1}, lag_versions=0).line()
    assert line == (
        "batch done: query=q query_id=q batch=3 seconds=0.5 rows=7 table=/lake/t version=4"
        " inserts=2 tied=1 lag_versions=0 lag_seconds=0.0"
    )
    told = json.loads(json.dumps(batch(counters={"inserts": 2}).to_json()))
    assert (told["inserts"], told["updates"], told["troubles"], told["lags"]) == (2, 0, [], {})


def test_secrets_of_an_address_are_not_told() -> None:
    numbers = numbers_of(sink=SinkNumbers(table="s3://me:secret@lake/t", version=1, counters={}))
    assert "secret" not in numbers.line() + json.dumps(numbers.to_json())


def test_counters_that_mean_trouble_have_a_remedy() -> None:
    for name in TROUBLES.keys() - {"parked", "stale"}:
        troubled = batch(counters={name: 1, "inserts": 5})
        assert troubled.troubles == (name,)
        assert troubled.advice() == f"{name}: {TROUBLES[name]}"
    assert TROUBLES.keys() - {"parked"} <= Counters().to_json().keys()


def test_parked_rows_mean_trouble_and_the_advice_names_the_root() -> None:
    assert batch(parked=0).troubles == ()
    sink = SinkNumbers(table="/lake/shop/{topic}", version=1, counters={}, parked=2, tables=1)
    numbers = numbers_of(sink=sink)
    assert numbers.troubles == ("parked",)
    assert numbers.advice().endswith("see 'upsertflow dead-letters /lake/shop'")


def test_a_batch_that_is_stale_as_a_whole_means_trouble() -> None:
    few = STALE_MIN - 1
    for rows_, epochs, is_trouble in (
        (STALE_MIN, 1, True),
        (1, STALE_MIN, True),
        (few, few, False),
    ):
        stale = {"stale_rows": rows_, "stale_epochs": epochs}
        sink = SinkNumbers(table="/lake/t", version=1, counters={"stale": 20}, **stale)
        numbers = numbers_of(sink=sink)
        assert numbers.troubles == (("stale",) if is_trouble else ())
        assert ("after a database was restored" in numbers.advice()) == is_trouble
        assert f"stale_epochs={epochs}" in numbers.line()


OrderedCase = tuple[dict[str, Any], list[list[int]], list[tuple[int, int]]]
FIRST_ROW = {"engine": MergeEngine(Engine.FIRST_ROW)}
ORDERED: dict[str, OrderedCase] = {
    "a restart": ({}, [[9] * 3, [1] * 3, [2] * 2, [10]], [(0, 0), (3, 1), (2, 2), (0, 0)]),
    "a replay": ({}, [[9] * 3, [9] * 3, [1] * 3], [(0, 0), (0, 0), (3, 1)]),
    "a late row among others": ({}, [[9], [1, 9, 9]], [(0, 0), (0, 0)]),
    "the first row of each key stays": (FIRST_ROW, [[1] * 3, [2] * 3], [(0, 0), (0, 0)]),
}


@pytest.mark.parametrize("case", ORDERED.values(), ids=ORDERED)
def test_epochs_whose_rows_are_all_stale_are_counted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    case: OrderedCase,
) -> None:
    monkeypatch.setattr(ties, "STALE_MIN", 3)
    more, batches, expected = case
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"], sequence_by=["v"], **more)
    place, sinks = SinkTarget.of(table.store.url, {}), Sinks()
    for number, values in enumerate(batches):
        caplog.clear()
        table.upsert(rows(k=list(range(len(values))), v=values), transaction=of_query("a", number))
        numbers = sinks.numbers(place, "a", number)
        assert (numbers.stale_rows, numbers.stale_epochs) == expected[number]
        is_warned = "rows are stale, and nothing was applied" in caplog.text
        assert is_warned == (max(expected[number]) >= 3)


@pytest.mark.parametrize(
    ("engine", "second", "stale_rows"), [("deduplicate", 1, STALE_MIN), ("first-row", 10, 0)]
)
def test_a_table_of_many_whose_rows_are_all_stale_is_counted(
    tmp_path: Path, engine: str, second: int, stale_rows: int
) -> None:
    options = {**INLINE, "sequenceBy": "value.n", "mergeEngine": engine}
    for number, value in enumerate((9, second)):
        sent = [message("a", key, n=("int32", value)) for key in range(STALE_MIN)]
        sent.append(message("b", number, n=("int32", 5)))
        write_routed(open_store(str(tmp_path), {}), number, sent, **options)
    numbers = Sinks().numbers(SinkTarget.of(f"{tmp_path}/{{topic}}", {}), "q", 1)
    assert (numbers.counters["stale"], numbers.stale_rows) == (STALE_MIN, stale_rows)


def test_the_oldest_change_that_waits_is_told() -> None:
    numbers = numbers_of(report(2, NOW_MS - 4_000), 17, report(1, NOW_MS - 9_000))
    assert (numbers.lag_versions, numbers.lag_seconds) == (3, 9.0)
    assert [(lag.versions, lag.seconds) for lag in numbers.lags] == [(2, 4.0), (1, 9.0)]


def test_what_is_not_known_of_the_lag_is_not_told() -> None:
    for reports, expected in (
        ([report()], (0, 0.0)),
        ([report(2)], (2, None)),
        ([17, {"partitions": {}}, None], (None, None)),
    ):
        numbers = numbers_of(*reports)
        assert (numbers.lag_versions, numbers.lag_seconds) == expected


COUNTED = ("inserts", "stale", "deletes")
OF_TABLES = ("version", "stale_rows", "stale_epochs")


def values(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {
        (each.name, *(each.labels[name] for name in sorted(each.labels))): each.value
        for each in samples
    }


def test_prometheus_is_told_sums_and_the_newest_values_and_each_batch_once() -> None:
    totals = Totals()
    assert totals.add(batch(0, counters={"inserts": 2}, lag_versions=4))
    assert totals.add(batch(1, counters={"inserts": 3, "stale": 1}, lag_versions=1))
    assert not totals.add(batch(1, counters={"inserts": 3}))
    assert not totals.add(batch(0, counters={"inserts": 2}))
    told = values(totals.prometheus())
    rows = {name: told["upsertflow_rows_total", name, "q", "/lake/t"] for name in COUNTED}
    assert rows == {"inserts": 5, "stale": 1, "deletes": 0}
    assert (told["upsertflow_batches_total", "q"], told["upsertflow_lag_versions", "q"]) == (2, 1)
    of_table = {name: told[f"upsertflow_{name}", "q", "/lake/t"] for name in OF_TABLES}
    assert of_table == {"version": 2, "stale_rows": 0, "stale_epochs": 0}
    registry = CollectorRegistry()
    registry.register(totals)
    assert registry.get_sample_value("upsertflow_read_rows_total", {"query": "q"}) == 14


def test_metrics_stay_few_however_many_queries_come() -> None:
    totals = Totals()
    for number in range(QUERIES_MAX + 5):
        totals.add(batch(query=f"q{number}"))
    assert len({sample.labels[0] for sample in totals.samples()}) == QUERIES_MAX
