"""Query monitoring (`Watch`): a listener fills a bounded queue, a thread reads the tables.

Spark calls one listener for all queries, so it must return at once. Late reports are dropped and
counted; no error reaches Spark (docs/adr/0004).
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_upsert.core.lru import LruMap
from spark_upsert.errors import UpsertFlowError, masked
from spark_upsert.metrics import BatchNumbers, Progress, Sinks, SinkTarget, Totals
from spark_upsert.options.declare import STORAGE_PREFIX, fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


_LOGGER = logging.getLogger("spark_upsert.metrics")

REPORTS_MAX = 1_000
"""Maximum queued progress reports; further ones are dropped and counted."""

BATCHES_KEPT = 100
"""Number of recent batches available later, over all queries."""

_QUERIES_MAX = 256

_STOP_S = 10.0
"""How long `Watch.stop` waits for a running read of a table."""


class Watch:
    """Reports each micro-batch in a session's queries; `upsertflow.watch` creates it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    places : sequence of Place
        Tables possibly written by queries, if a query's plan does not name them.
    tell : callable, optional
        Called with each batch as a dict, by the table-reading thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        places: Sequence[SinkTarget] = (),
        *,
        tell: Callable[[Mapping[str, Any]], object] | None = None,
        reports_max: int = REPORTS_MAX,
    ) -> None:
        self._spark = spark
        self._has_plans = hasattr(spark, "_jsparkSession")
        self._places = tuple(places)
        self._tell = tell
        self._sinks = Sinks()
        self._totals = Totals()
        self._recent: deque[BatchNumbers] = deque(maxlen=BATCHES_KEPT)
        self._reports: Queue[tuple[str, Any] | None] = Queue(reports_max)
        self._written: LruMap[str, SinkTarget] = LruMap(_QUERIES_MAX)
        self._queries: LruMap[str, Any] = LruMap(_QUERIES_MAX)
        self._lock = Lock()
        self._is_stopped = False
        self.dropped = 0
        """Reports dropped because too many were queued for the thread."""
        self.failures = 0
        """Reports whose telling failed; the log has each."""
        self._listener = _Listener(self)
        self._thread = Thread(target=self._work, name="upsertflow-watch", daemon=True)
        self._thread.start()
        spark.streams.addListener(self._listener)

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "running"
        return f"Watch({state}, batches={len(self._recent)}, dropped={self.dropped})"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def batches(self) -> list[dict[str, Any]]:
        """The newest batches over all queries as dicts, the oldest first."""
        with self._lock:
            return [batch.to_json() for batch in self._recent]

    @property
    def totals(self) -> Totals:
        """The metrics, a collector for a ``prometheus_client`` registry."""
        return self._totals

    def prometheus(self) -> str:
        """Return all metrics in Prometheus text format (``upsertflow[prometheus]``)."""
        return self._totals.prometheus()

    def flush(self) -> None:
        """Wait until all reports received so far are processed."""
        self._reports.join()

    def stop(self) -> None:
        """Stop watching, after pending reports are processed. Twice is harmless."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._spark.streams.removeListener(self._listener)
        # A thread hanging in a storage request does not hang the program: it is a daemon.
        with suppress(Full):
            self._reports.put(None, timeout=_STOP_S)
            self._thread.join(_STOP_S)

    # -- in the thread of the listener, which must not wait ------------------------------

    def enqueue(self, kind: str, report: Any) -> None:
        """Queue a report, or drop it; never waits and never fails."""
        try:
            self._reports.put_nowait((kind, report))
        except Full:
            self.dropped += 1

    def query_of(self, query_id: str) -> Any:
        """Return a running query, if the session gives access to its plan; otherwise None."""
        return self._spark.streams.get(query_id) if self._has_plans else None

    # -- in the reporting thread ---------------------------------------------------------

    def _work(self) -> None:
        while (report := self._reports.get()) is not None:
            try:
                self._process(*report)
            except Exception as error:  # noqa: BLE001 - the next report is processed anyway
                self.failures += 1
                _LOGGER.warning("batch not told: %s", masked(f"{error!r}"))
            finally:
                self._reports.task_done()
        self._drain()

    def _drain(self) -> None:
        self._reports.task_done()
        while True:
            try:
                self._reports.get_nowait()
            except Empty:
                return
            self._reports.task_done()

    def _process(self, kind: str, report: Any) -> None:
        if kind == _STARTED:
            query_id, query = report
            self._queries.put(query_id, query)
            return
        progress = Progress.of_json(json.loads(report))
        batch = self._numbers(progress)
        if batch is None or not self._totals.add(batch):
            return
        with self._lock:
            self._recent.append(batch)
        _LOGGER.info("%s", batch.line())
        if batch.troubles:
            _LOGGER.warning(
                "batch with trouble: query=%s batch=%d %s",
                batch.progress.query,
                batch.progress.batch,
                batch.advice(),
            )
        if self._tell is not None:
            self._tell(batch.to_json())

    def _numbers(self, progress: Progress) -> BatchNumbers | None:
        """Return a batch's numbers; None if the query neither reads nor writes our tables."""
        sink, problem = None, None
        try:
            location = self._sink_of(progress.query_id)
            if location is None and not progress.reports:
                return None
            if location is not None:
                sink = self._sinks.numbers(location, progress.query_id, progress.batch)
        except (UpsertFlowError, OSError) as error:
            problem, *_ = masked(str(error)).splitlines() or [type(error).__name__]
        return progress.numbers(sink, now_ms=int(time.time() * 1000), problem=problem)

    def _sink_of(self, query_id: str) -> SinkTarget | None:
        """Return a query's sink; cached once it is known."""
        location = self._written.get(query_id)
        if location is None:
            location = self._sink_in_plan(query_id) or self._sink_in_tables(query_id)
            if location is not None:
                self._written.put(query_id, location)
        return location

    def _sink_in_plan(self, query_id: str) -> SinkTarget | None:
        """Return the sink in a query's plan; None in a session without access to the JVM."""
        try:
            query = self._queries.get(query_id) or self.query_of(query_id)
            plan = query._jsq.streamingQuery().logicalPlan()
            if plan.table().name() != _FORMAT:
                return None
            pairs = plan.writeOptions().iterator()
            options = {}
            while pairs.hasNext():
                pair = pairs.next()
                options[pair._1()] = pair._2()
        except Exception:  # noqa: BLE001 - Spark's own plan: another release may have another one
            return None
        return _sink_target_from_options(options)

    def _sink_in_tables(self, query_id: str) -> SinkTarget | None:
        """Return the listed table whose writers include a query."""
        return next(
            (location for location in self._places if self._sinks.has(location, query_id)), None
        )


_STARTED, _PROGRESS = "started", "progress"
_FORMAT = "upsertflow"


def _sink_target_from_options(options: Mapping[str, str]) -> SinkTarget | None:
    """Return the table written with these sink options; None without ``path``."""
    path = next((text for name, text in options.items() if fold(name) == "path"), None)
    storage = {
        name[len(STORAGE_PREFIX) :]: text
        for name, text in options.items()
        if fold(name).startswith(STORAGE_PREFIX)
    }
    return None if path is None else SinkTarget.of(path, storage)


class _Listener(StreamingQueryListener):
    """Forwards Spark's query events; each method returns at once, and never raises."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        # Cached now: after a query has ended, Spark does not return its plan.
        try:
            query_id = str(event.id)
            self._watch.enqueue(_STARTED, (query_id, self._watch.query_of(query_id)))
        except Exception as error:  # noqa: BLE001 - the start of a query waits for this
            _LOGGER.warning("query not known: %s", masked(f"{error!r}"))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._watch.enqueue(_PROGRESS, event.progress.json)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the numbers remain those after the last batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last batches may still be in the queue."""
