"""Totals over batches, as metrics: counters that only grow, and gauges of the newest batch.

A batch counts once for its query, however often Spark reports it: numbers of batches only grow. A
query that rests for long is forgotten once `QUERIES_MAX` others have been seen, so that what is
told stays bounded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from spark_upsert.model.bounded import LruMap
from spark_upsert.numbers.batches import SHOWN, BatchNumbers

QUERIES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric, by the name that stands behind ``upsertflow_``."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str


def _metrics(*told: tuple[str, Literal["counter", "gauge"], str, str]) -> dict[str, Metric]:
    return {
        name: Metric(name=name, kind=kind, unit=unit, text=text) for name, kind, unit, text in told
    }


METRICS = _metrics(
    ("batches", "counter", "", "Micro-batches that were seen."),
    ("read_rows", "counter", "", "Rows that the query read."),
    ("rows", "counter", "", "Rows that came into the table, by what became of them."),
    ("batch", "gauge", "", "Number of the newest micro-batch."),
    ("batch_seconds", "gauge", "s", "Time that the newest micro-batch took."),
    ("version", "gauge", "", "Version of the table that the newest micro-batch became."),
    ("parked_rows", "gauge", "", "Rows that wait beside the tables of a root."),
    ("stale_rows", "gauge", "", "Rows of the newest micro-batch in tables where all were stale."),
    ("stale_epochs", "gauge", "", "Epochs in a row, up to the newest, whose rows were all stale."),
    ("runs", "gauge", "", "Runs that a look-up in the table searches."),
    ("live_rows", "gauge", "", "Rows of the table."),
    ("mirror_lag_versions", "gauge", "", "Versions that the mirror does not show."),
    ("mirror_lag_seconds", "gauge", "s", "Time that the mirror has not shown a change."),
    ("lag_versions", "gauge", "", "Versions behind the newest micro-batch in all inputs."),
    ("lag_seconds", "gauge", "s", "Time that the oldest change has waited to be read."),
    ("source_lag_versions", "gauge", "", "Versions behind the newest micro-batch, by input."),
    ("source_lag_seconds", "gauge", "s", "Time that a change has waited to be read, by input."),
)
"""All metrics by name, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A value of a metric."""

    metric: Metric
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(slots=True)
class _Query:
    newest: BatchNumbers
    sums: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)


class Totals:
    """Totals of all queries since the program watches them. Safe for threads."""

    def __init__(self) -> None:
        self._queries: LruMap[str, _Query] = LruMap(QUERIES_MAX)
        self._lock = threading.Lock()

    def add(self, batch: BatchNumbers) -> bool:
        """Take a batch in; False if it counts already."""
        with self._lock:
            known = self._queries.get(batch.query_id)
            if known is not None and batch.batch <= known.newest.batch:
                return False
            query = known or _Query(batch)
            query.newest = batch
            query.sums.update(batches=1, read_rows=batch.rows)
            if batch.sink is not None:
                query.rows.update(batch.sink.counters)
            self._queries.put(batch.query_id, query)
            return True

    def samples(self) -> Iterator[MetricSample]:
        """Yield all values, metric by metric."""
        with self._lock:
            told = [sample for query in self._queries.values() for sample in _samples(query)]
        order = {name: at for at, name in enumerate(METRICS)}
        yield from sorted(told, key=lambda each: order[each.metric.name])


def _samples(query: _Query) -> Iterator[MetricSample]:
    newest, sink = query.newest, query.newest.sink
    labels = (("query", newest.query),)
    for name, count in query.sums.items():
        yield MetricSample(METRICS[name], labels, count)
    values: dict[str, float | None] = {
        "batch": newest.batch,
        "batch_seconds": newest.seconds,
        "lag_versions": newest.lag_versions,
        "lag_seconds": newest.lag_seconds,
    }
    if sink is not None:
        of_table = (*labels, ("table", sink.table))
        for outcome in SHOWN:
            told = (*of_table, ("outcome", outcome))
            yield MetricSample(METRICS["rows"], told, query.rows[outcome])
        gauges = {
            "version": sink.version,
            "parked_rows": sink.parked,
            "stale_rows": sink.stale_rows,
            "stale_epochs": sink.stale_epochs,
            "runs": sink.runs,
            "live_rows": sink.live_rows,
            "mirror_lag_versions": sink.mirror_versions,
            "mirror_lag_seconds": sink.mirror_seconds,
        }
        yield from (
            MetricSample(METRICS[k], of_table, v) for k, v in gauges.items() if v is not None
        )
    yield from (MetricSample(METRICS[k], labels, v) for k, v in values.items() if v is not None)
    for lag in newest.lags:
        of_source = (*labels, ("source", lag.source))
        yield MetricSample(METRICS["source_lag_versions"], of_source, lag.versions)
        if lag.seconds is not None:
            yield MetricSample(METRICS["source_lag_seconds"], of_source, lag.seconds)
