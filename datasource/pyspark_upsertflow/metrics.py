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
from spark_upsert.metrics import BatchNumbers, Place, Progress, Sinks, Totals
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
"""Reports that wait to be told; what comes beyond them is dropped and counted."""

BATCHES_KEPT = 100
"""Batches whose numbers can be asked for later, of all queries together."""

_QUERIES_MAX = 256

_STOP_S = 10.0
"""How long `Watch.stop` waits for a look at a table that is under way."""


class Watch:
    """Tells of each micro-batch of a session's queries; `pyspark_upsertflow.watch` makes it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    places : sequence of Place
        Tables that queries may write, where a query does not say it itself.
    tell : callable, optional
        Called with each batch as a dict, by the thread that looks at tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        places: Sequence[Place] = (),
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
        self._written: LruMap[str, Place] = LruMap(_QUERIES_MAX)
        self._queries: LruMap[str, Any] = LruMap(_QUERIES_MAX)
        self._lock = Lock()
        self._is_stopped = False
        self.dropped = 0
        """Reports that were not told, because the thread had too many of them."""
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
        """The newest batches of all queries as dicts, the oldest first."""
        with self._lock:
            return [batch.to_json() for batch in self._recent]

    @property
    def totals(self) -> Totals:
        """The metrics, which a registry of ``prometheus_client`` takes as a collector."""
        return self._totals

    def prometheus(self) -> str:
        """Return all metrics in the text format of Prometheus (``upsertflow[prometheus]``)."""
        return self._totals.prometheus()

    def flush(self) -> None:
        """Wait until all reports that came so far are told."""
        self._reports.join()

    def stop(self) -> None:
        """Watch no more; what came before is told. Twice is harmless."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._spark.streams.removeListener(self._listener)
        # A thread that hangs in a storage does not hang the program: it is a daemon.
        with suppress(Full):
            self._reports.put(None, timeout=_STOP_S)
            self._thread.join(_STOP_S)

    # -- in the thread of the listener, which must not wait ------------------------------

    def offer(self, kind: str, told: Any) -> None:
        """Take a report, or drop it; never waits and never fails."""
        try:
            self._reports.put_nowait((kind, told))
        except Full:
            self.dropped += 1

    def query_of(self, query_id: str) -> Any:
        """Return a running query of the session, if its plan can be asked; else None."""
        return self._spark.streams.get(query_id) if self._has_plans else None

    # -- in the thread that tells --------------------------------------------------------

    def _work(self) -> None:
        while (report := self._reports.get()) is not None:
            try:
                self._take(*report)
            except Exception as error:  # noqa: BLE001 - whatever fails, the next report is told
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

    def _take(self, kind: str, told: Any) -> None:
        if kind == _STARTED:
            query_id, query = told
            self._queries.put(query_id, query)
            return
        progress = Progress.of_json(json.loads(told))
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
        """Return a batch in numbers; None if the query has nothing of ours."""
        sink, problem = None, None
        try:
            location = self._place(progress.query_id)
            if location is None and not progress.reports:
                return None
            if location is not None:
                sink = self._sinks.numbers(location, progress.query_id, progress.batch)
        except (UpsertFlowError, OSError) as error:
            problem, *_ = masked(str(error)).splitlines() or [type(error).__name__]
        return progress.numbers(sink, now_ms=int(time.time() * 1000), problem=problem)

    def _place(self, query_id: str) -> Place | None:
        """Return where a query writes; remembered once it is known."""
        location = self._written.get(query_id)
        if location is None:
            location = self._said(query_id) or self._found(query_id)
            if location is not None:
                self._written.put(query_id, location)
        return location

    def _said(self, query_id: str) -> Place | None:
        """Return what the plan of a query says of its sink, in a session with a JVM at hand."""
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
        return _place_of(options)

    def _found(self, query_id: str) -> Place | None:
        """Return the given table that names a query among its writers."""
        return next(
            (location for location in self._places if self._sinks.has(location, query_id)), None
        )


_STARTED, _PROGRESS = "started", "progress"
_FORMAT = "upsertflow"


def _place_of(options: Mapping[str, str]) -> Place | None:
    path = next((text for name, text in options.items() if fold(name) == "path"), None)
    storage = {
        name[len(STORAGE_PREFIX) :]: text
        for name, text in options.items()
        if fold(name).startswith(STORAGE_PREFIX)
    }
    return None if path is None else Place.of(path, storage)


class _Listener(StreamingQueryListener):
    """Hands on what Spark tells; each method returns at once, and raises nothing."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        # Kept from here on: of a query that has ended, Spark tells no more where it wrote.
        try:
            query_id = str(event.id)
            self._watch.offer(_STARTED, (query_id, self._watch.query_of(query_id)))
        except Exception as error:  # noqa: BLE001 - the start of a query waits for this
            _LOGGER.warning("query not known: %s", masked(f"{error!r}"))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._watch.offer(_PROGRESS, event.progress.json)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the numbers stay as the last batch left them."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: what the last batches did may not be told yet."""
