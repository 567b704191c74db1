"""Metrics of streaming queries: the effect of each micro-batch on its table, and the query's lag.

`Sinks` finds a batch in the table's log by its transaction, `BatchNumbers` adds Spark's report
(`Progress`), and `Totals` sums batches for Prometheus. An unknown number is None (docs/adr/0004).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from spark_upsert.core.durations import Fields
from spark_upsert.core.lru import LruMap
from spark_upsert.core.path_template import Template, is_routed
from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.follow import measure_mirror_lag
from spark_upsert.errors import OtherTableError, masked
from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.store.open import PrefixStore, open_store
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.published import is_published
from spark_upsert.table.state.reduce import STALE_MIN, Counters, count_all_stale
from spark_upsert.table.table import Table

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

SCANNED_EPOCHS_MAX = 256
"""Maximum versions read per table poll."""

TABLES_MAX = 64
"""Maximum tables per routed batch whose counters are summed; each costs two or more requests."""

QUERIES_MAX = 256
"""Maximum queries with totals; the least recently used query is dropped first."""

_TABLES_KEPT = 256

_BATCHES_KEPT = 4_096

SHOWN = (
    *("inserts", "updates", "deletes", "absent", "stale", "superseded", "duplicates"),
    *("tied", "late", "rejected", "quarantined", "displaced", "skipped", "retracted", "restored"),
)
"""Counters shown per batch."""

TROUBLES: Mapping[str, str] = {
    "tied": "sequenceBy does not tell two changes of a key apart: order by more columns",
    "late": "rows are older than the deletes that are remembered: raise tombstoneRetention",
    "rejected": "rows are older than the deletes that are remembered: raise tombstoneRetention",
    "quarantined": "rows could not be applied: read them by metadata=quarantine",
    "parked": "tables cannot take their rows: see 'upsertflow dead-letters ROOT'",
    "stale": "all rows are older than the table's: a replay catches up by itself; if the order of "
    "the source has restarted, as after a database was restored, take a new snapshot into a new "
    "table",
}
"""Advice by metric for values that should be 0; `stale` applies if all rows are stale."""


# -- a batch ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """A query's lag for one input, after a batch."""

    source: str
    """Input name; ``""`` if unnamed."""
    versions: int
    """Unread input versions after the batch."""
    seconds: float | None = None
    """Waiting time for the first unread version; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNumbers:
    """A batch's effect on its table, and the table state."""

    table: str
    version: int | None = None
    """Version committed by the batch; with several tables, their group's version."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Row counts by outcome (`SHOWN`), without zeros."""
    parked: int | None = None
    """Dead-letter rows from all batches, over all tables; None for a single table."""
    tables: int = 1
    """Number of tables written by the batch."""
    uncounted: int = 0
    """Tables whose counters are not summed, because the batch wrote more than `TABLES_MAX`."""
    runs: int | None = None
    live_rows: int | None = None
    mirror_versions: int | None = None
    """Versions missing in the mirror; None without a mirror."""
    mirror_seconds: float | None = None
    """Waiting time for the first missing version that changed rows."""
    stale_rows: int = 0
    """Stale rows in tables where all rows from the batch were stale."""
    stale_epochs: int = 0
    """Consecutive versions, up to the batch, whose rows were all stale."""

    @property
    def is_stale(self) -> bool:
        """Whether stale rows or versions reach the reporting threshold (`STALE_MIN`)."""
        return max(self.stale_rows, self.stale_epochs) >= STALE_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Fields used from Spark's batch report."""

    query: str
    """Query name, or its id if unnamed."""
    query_id: str
    batch: int
    seconds: float
    """Batch duration."""
    rows: int
    """Rows that the query read for the batch."""
    reports: tuple[Mapping[str, Any], ...] = ()
    """Reports from upsertflow's own sources (`streams.planner.stream`)."""

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Progress:
        """Parse a query's progress JSON."""
        latest = [source.get("latestOffset") for source in record.get("sources", ())]
        return cls(
            query=record.get("name") or record["id"],
            query_id=record["id"],
            batch=int(record["batchId"]),
            seconds=(record.get("batchDuration") or 0) / 1000,
            rows=int(record.get("numInputRows") or 0),
            reports=tuple(offset for offset in latest if _is_report(offset)),
        )

    def numbers(
        self, sink: SinkNumbers | None, *, now_ms: int, problem: str | None = None
    ) -> BatchNumbers:
        """Return the batch metrics, including its effect on its table."""
        lags = [report["lag"] for report in self.reports if "lag" in report]
        return BatchNumbers(
            progress=self,
            sink=sink,
            lags=tuple(lag for lag_report in lags for lag in _iter_lags(lag_report, now_ms)),
            lag_versions=sum(lag["versions"] for lag in lags) if lags else None,
            problem=problem,
        )


def _is_report(offset: Any) -> bool:
    return isinstance(offset, Mapping) and "inputs" in offset and "pressure" in offset


def _iter_lags(lag: Mapping[str, Any], now_ms: int) -> Iterator[SourceLag]:
    for source, versions in lag.get("most", {}).items():
        since_ms = lag.get("since_ms", {}).get(source)
        seconds = None if since_ms is None else max(0, now_ms - since_ms) / 1000
        yield SourceLag(source=source, versions=versions, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """Metrics for one micro-batch."""

    progress: Progress
    sink: SinkNumbers | None = None
    """None if the query writes no upsertflow table, or the table is unknown."""
    lags: tuple[SourceLag, ...] = ()
    """Inputs with the greatest lag; empty if the batch reached the end of all inputs."""
    lag_versions: int | None = None
    """Unread versions over all upsertflow inputs after the batch; None without such inputs."""
    problem: str | None = None
    """Reason why the table could not be read."""

    @property
    def lag_seconds(self) -> float | None:
        """Waiting time for the oldest unread change; 0 if none, None if unknown."""
        if self.lag_versions is None:
            return None
        seconds = [lag.seconds for lag in self.lags if lag.seconds is not None]
        return max(seconds) if seconds else (None if self.lag_versions else 0.0)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Names of metrics that indicate trouble (`TROUBLES`)."""
        if self.sink is None:
            return ()
        counted = {**self.sink.counters, "parked": self.sink.parked or 0}
        counted["stale"] = int(self.sink.is_stale)
        return tuple(name for name in TROUBLES if counted.get(name))

    def to_json(self) -> dict[str, Any]:
        """Return the metrics for programs: all counters, including zeros."""
        lags = {lag.source: {"versions": lag.versions, "seconds": lag.seconds} for lag in self.lags}
        present = {name: value for name, value in self._fields() if value is not None}
        return {**present, "lags": lags, "troubles": list(self.troubles)}

    def line(self) -> str:
        """Return a log line; zero counters are left out."""
        fields = self._fields()
        shown = {k: v for k, v in fields if v is not None and not (k in SHOWN and not v)}
        return f"batch done: {Fields(**shown)}"

    def advice(self) -> str:
        """Return advice for the metrics that indicate trouble."""
        text = "; ".join(f"{name}: {TROUBLES[name]}" for name in self.troubles)
        if self.sink is None or not is_routed(self.sink.table):
            return text
        return text.replace("ROOT", f"{masked(Template.parse(self.sink.table).root)}")

    def _fields(self) -> Iterator[tuple[str, Any]]:
        report, sink = self.progress, self.sink
        yield from (("query", report.query), ("query_id", report.query_id))
        yield from (("batch", report.batch), ("seconds", report.seconds), ("rows", report.rows))
        if sink is not None:
            yield from (("table", masked(sink.table)), ("version", sink.version))
            yield from ((name, sink.counters.get(name, 0)) for name in SHOWN)
            yield "parked", sink.parked
            if sink.parked is not None:
                yield from (("tables", sink.tables), ("uncounted", sink.uncounted))
            yield from (("runs", sink.runs), ("live_rows", sink.live_rows))
            yield "stale_epochs", sink.stale_epochs or None
            yield "mirror_versions", sink.mirror_versions
            yield "mirror_seconds", sink.mirror_seconds
        yield from (("lag_versions", self.lag_versions), ("lag_seconds", self.lag_seconds))
        yield "problem", self.problem


# -- the table of a batch --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """Sink target: a table path, or a path template for several tables."""

    path: str
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: str, storage: Mapping[str, str]) -> SinkTarget:
        """Return a sink target with its storage options."""
        return cls(path=path, storage=tuple(sorted(storage.items())))


class Sinks:
    """Reads batch effects from the tables that queries write. Not thread-safe."""

    def __init__(self) -> None:
        self._logs: LruMap[SinkTarget, _Batches] = LruMap(_TABLES_KEPT)
        self._groups: LruMap[SinkTarget, GroupTable] = LruMap(_TABLES_KEPT)

    def has(self, target: SinkTarget, query_id: str) -> bool:
        """Return whether a query has written a target, as far as its log remembers."""
        writer = Transaction.writer_of_query(query_id)
        if is_routed(target.path):
            batch = self._group(target).at().batch
            return batch is not None and batch.writer == writer
        return writer in self._batches(target).table.log.head().transactions

    def numbers(self, target: SinkTarget, query_id: str, batch: int) -> SinkNumbers:
        """Return a batch's effect on its table, without counters if no version contains it."""
        of_batch = self._group_numbers if is_routed(target.path) else self._table_numbers
        writer = Transaction.writer_of_query(query_id)
        try:
            return of_batch(target, writer, batch)
        except OtherTableError:  # The path has another table now.
            self._logs.pop(target)
            self._groups.pop(target)
            return of_batch(target, writer, batch)

    def _batches(self, target: SinkTarget) -> _Batches:
        return self._logs.get_or_create(
            target, lambda: _Batches(Table(open_store(target.path, dict(target.storage))))
        )

    def _group(self, target: SinkTarget) -> GroupTable:
        root = Template.parse(target.path).root
        return self._groups.get_or_create(
            target, lambda: GroupTable(open_store(root, dict(target.storage)))
        )

    def _table_numbers(self, target: SinkTarget, writer: str, batch: int) -> SinkNumbers:
        batches = self._batches(target)
        commit, head, stale_epochs = batches.look(writer, batch)
        mirror = measure_mirror_lag(batches.table) if is_published(head.properties) else None
        return SinkNumbers(
            table=target.path,
            version=None if commit is None else commit.version,
            counters={} if commit is None else _nonzero_counters(commit.counters),
            runs=head.run_count,
            live_rows=head.live_rows,
            mirror_versions=None if mirror is None else mirror[0],
            mirror_seconds=None if mirror is None else mirror[1] / 1000,
            stale_rows=0 if commit is None else _count_stale_rows(commit, head.schema),
            stale_epochs=stale_epochs,
        )

    def _group_numbers(self, target: SinkTarget, writer: str, batch: int) -> SinkNumbers:
        group_metrics = self._group(target)
        group = group_metrics.at()
        if group.batch is not None and (group.batch.number or 0) > batch:
            group = group_metrics.of_batch(batch)
        if group.batch is None or (group.batch.writer, group.batch.number) != (writer, batch):
            return SinkNumbers(table=target.path, parked=0, tables=0)
        members = group.members.values()
        written = [
            member.folder for member in members if (member.writer, member.batch) == (writer, batch)
        ]
        counters: Counter[str] = Counter()
        stale_rows = 0
        for of_table, stale in _iter_counters(group_metrics, group, written[:TABLES_MAX]):
            counters.update(of_table)
            stale_rows += stale
        return SinkNumbers(
            table=target.path,
            version=group.version,
            counters=dict(counters),
            parked=group.batch.parked,
            tables=len(written),
            uncounted=max(0, len(written) - TABLES_MAX),
            stale_rows=stale_rows,
        )


def _iter_counters(
    known: GroupTable, group: TableGroup, folders: list[str]
) -> Iterator[tuple[Mapping[str, int], int]]:
    """Yield the counters per table, and its stale row count if all its rows were stale, else 0."""
    for folder in folders:
        log = Table(PrefixStore(known.root, folder)).log
        counters = _nonzero_counters(log.commit(group.members[folder].place.version).counters)
        # The newest schema, which costs requests, shows whether stale rows are usual.
        is_all = counters.keys() <= {"stale", "superseded", "skipped", "tied"}
        is_many = is_all and counters.get("stale", 0) >= STALE_MIN
        own_counters = Counters.from_json(counters)
        yield counters, count_all_stale(own_counters, log.head().schema) if is_many else 0


class _Batches:
    """Batches from the read part of a table's log."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._upper = 0
        self._stale_epochs = 0
        self._found: LruMap[tuple[str, int], tuple[Commit, int]] = LruMap(_BATCHES_KEPT)

    def look(self, writer: str, number: int) -> tuple[Commit | None, Manifest, int]:
        """Return the commit for a batch, the newest table state, and a stale version count.

        The count is for consecutive versions with only stale rows, up to that commit; 0 without a
        commit. The commit is None if the batch is unknown.
        """
        with self.table.log.refresh() as look:
            head = look.head()
            lower = max(self._upper, head.since, head.upper - SCANNED_EPOCHS_MAX)
            for commit in look.commits(lower, head.upper):
                if commit.is_epoch:
                    is_stale = _count_stale_rows(commit, head.schema) > 0
                    self._stale_epochs = self._stale_epochs + 1 if is_stale else 0
                for transaction in commit.transactions:
                    self._found.put(
                        (transaction.writer, transaction.number), (commit, self._stale_epochs)
                    )
            self._upper = head.upper
        counted, stale_epochs = self._found.peek((writer, number)) or (None, 0)
        return counted, head, stale_epochs


def _count_stale_rows(commit: Commit, schema: TableSchema) -> int:
    return count_all_stale(Counters.from_json(commit.counters), schema)


def _nonzero_counters(counters: Mapping[str, int]) -> dict[str, int]:
    return {name: counters[name] for name in SHOWN if counters.get(name)}


# -- totals ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric definition; its Prometheus name is ``upsertflow_<name>``."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str


METRICS = {
    metric.name: metric
    for metric in (
        Metric("batches", "counter", "", "Micro-batches that were seen."),
        Metric("read_rows", "counter", "", "Rows that the query read."),
        Metric("rows", "counter", "", "Rows that came into the table, by their outcome."),
        Metric("batch", "gauge", "", "Number of the newest micro-batch."),
        Metric("batch_seconds", "gauge", "s", "Time that the newest micro-batch took."),
        Metric("version", "gauge", "", "Version of the table that the newest micro-batch became."),
        Metric("parked_rows", "gauge", "", "Rows that wait for tables of a root."),
        Metric("stale_rows", "gauge", "", "Rows of the newest micro-batch in all-stale tables."),
        Metric("stale_epochs", "gauge", "", "Epochs in a row, to the newest, of stale rows only."),
        Metric("runs", "gauge", "", "Runs that a look-up in the table searches."),
        Metric("live_rows", "gauge", "", "Rows of the table."),
        Metric("mirror_lag_versions", "gauge", "", "Versions that the mirror does not show."),
        Metric("mirror_lag_seconds", "gauge", "s", "Time that the mirror has not shown a change."),
        Metric("lag_versions", "gauge", "", "Versions after the newest batch in all inputs."),
        Metric("lag_seconds", "gauge", "s", "Time that the oldest change has waited to be read."),
        Metric("source_lag_versions", "gauge", "", "Versions after the newest batch, by input."),
        Metric("source_lag_seconds", "gauge", "s", "Time that a change has waited, by input."),
    )
}
"""Metrics by name, in the order of `Totals.samples`."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Metric value with labels."""

    metric: Metric
    labels: Labels
    value: float


@dataclass(slots=True)
class _Query:
    newest: BatchNumbers
    sums: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)


class Totals:
    """Totals per query since the program began to watch it. Thread-safe.

    A collector for a registry of ``prometheus_client`` (``pip install upsertflow[prometheus]``).
    """

    def __init__(self) -> None:
        self._queries: LruMap[str, _Query] = LruMap(QUERIES_MAX)
        self._lock = threading.Lock()

    def add(self, batch: BatchNumbers) -> bool:
        """Add a batch; return False if it was already added."""
        report = batch.progress
        with self._lock:
            record = self._queries.get(report.query_id)
            if record is not None and report.batch <= record.newest.progress.batch:
                return False
            query = record or _Query(batch)
            query.newest = batch
            query.sums.update(batches=1, read_rows=report.rows)
            if batch.sink is not None:
                query.rows.update(batch.sink.counters)
            self._queries.put(report.query_id, query)
            return True

    def samples(self) -> Iterator[MetricSample]:
        """Yield all values in metric order."""
        with self._lock:
            values = [value for query in self._queries.values() for value in _iter_values(query)]
        order = {name: at for at, name in enumerate(METRICS)}
        for name, labels, value in sorted(values, key=lambda each: order[each[0]]):
            if value is not None:
                yield MetricSample(METRICS[name], labels, value)

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield metrics without values; a registry calls it instead of `collect`."""
        yield from (_family(metric, ()) for metric in METRICS.values())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics that have values; called by a registry."""
        for metric, group in groupby(self.samples(), lambda each: each.metric):
            samples = list(group)
            family = _family(metric, [name for name, _ in samples[0].labels])
            for sample in samples:
                family.add_metric([value for _, value in sample.labels], sample.value)
            yield family

    def prometheus(self) -> str:
        """Return the totals in Prometheus text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()


def _family(metric: Metric, labels: Iterable[str]) -> CounterMetricFamily | GaugeMetricFamily:
    # Imported lazily: prometheus_client is optional.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return make(f"upsertflow_{metric.name}", metric.text, labels=tuple(labels))


def _iter_values(query: _Query) -> Iterator[tuple[str, Labels, float | None]]:
    """Yield name, labels and value for each metric of a query."""
    newest, sink = query.newest, query.newest.sink
    labels: Labels = (("query", newest.progress.query),)
    yield from ((name, labels, count) for name, count in query.sums.items())
    yield "batch", labels, newest.progress.batch
    yield "batch_seconds", labels, newest.progress.seconds
    yield "lag_versions", labels, newest.lag_versions
    yield "lag_seconds", labels, newest.lag_seconds
    for lag in newest.lags:
        yield "source_lag_versions", (*labels, ("source", lag.source)), lag.versions
        yield "source_lag_seconds", (*labels, ("source", lag.source)), lag.seconds
    if sink is None:
        return
    labels = (*labels, ("table", sink.table))
    yield from (("rows", (*labels, ("outcome", name)), query.rows[name]) for name in SHOWN)
    for name in ("version", "runs", "live_rows", "stale_rows", "stale_epochs"):
        yield name, labels, getattr(sink, name)
    yield "parked_rows", labels, sink.parked
    yield "mirror_lag_versions", labels, sink.mirror_versions
    yield "mirror_lag_seconds", labels, sink.mirror_seconds
